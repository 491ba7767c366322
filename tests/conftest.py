"""What every test may use: pytest's own fixture for running pytest."""

pytest_plugins = ["pytester"]
