"""Answers read and judged without a model: filters, metrics, the phrasing battery, scorer checks, recordings."""
