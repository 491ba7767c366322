"""Pytest hooks: options and the activation test; the work is done by the plugin object registered when asked for."""
