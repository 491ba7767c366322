"""The values and errors that everything else is built on. PYTEST_DONT_REWRITE: it is imported before the plugin."""
