"""lm-eval's filters, metrics and aggregations."""
