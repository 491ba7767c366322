"""Answers read and judged without a model: the phrasing battery, trials of scores, recordings."""
