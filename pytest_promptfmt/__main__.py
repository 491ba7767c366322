"""`python -m pytest_promptfmt`: the command `promptfmt` where it is not on the path."""

from pytest_promptfmt.cli import main

if __name__ == "__main__":
    main()
