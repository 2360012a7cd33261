"""The front door on the command line: one module per command."""
