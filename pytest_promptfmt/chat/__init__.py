"""Chat templates: rendered as transformers does, and probed for facts."""
