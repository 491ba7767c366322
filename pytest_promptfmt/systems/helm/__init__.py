"""HELM: adapter files and recorded runs."""
