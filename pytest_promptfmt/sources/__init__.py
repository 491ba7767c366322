"""Readers of what exists outside: task files, Python functions, docs."""
