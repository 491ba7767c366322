"""The results of a run: changes and findings by cause, and the terminal, files and pages that show them."""
