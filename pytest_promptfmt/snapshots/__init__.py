"""Snapshot documents: their text format, and the extension through which syrupy stores them."""
