"""pytest-promptfmt: prompt-format regression testing, as a pytest plugin and as a library."""
