"""The harnesses whose files are read: each turns its files into tasks, finds their docs, and lays prompts out."""
