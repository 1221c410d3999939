"""The command line: one file per command."""

from parley.cli.app import main

__all__ = ["main"]
