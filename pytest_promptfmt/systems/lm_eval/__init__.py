"""lm-evaluation-harness 0.4.13: YAML tasks and groups, their docs, prompts, filters and metrics."""
