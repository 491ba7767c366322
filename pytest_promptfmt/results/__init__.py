"""What people read after a run: clusters of equal changes, and the terminal summary."""
