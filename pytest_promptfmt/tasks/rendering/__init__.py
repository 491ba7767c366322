"""From field mappings and docs to prompts and requests, as lm-eval does it."""
