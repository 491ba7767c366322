"""Synthetic docs, made from what templates expect of a doc."""
