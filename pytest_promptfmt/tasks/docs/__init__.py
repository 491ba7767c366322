"""Where the docs of a task come from."""
