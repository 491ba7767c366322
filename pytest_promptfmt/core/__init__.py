"""The values and errors that everything else is built on."""
