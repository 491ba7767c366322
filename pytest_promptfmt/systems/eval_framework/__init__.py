"""eval-framework: task classes."""
