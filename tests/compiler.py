"""A compiler for tests that does what it is told, and something else as well."""

from pathlib import Path


def compiler(path: Path, real: str, flags: str, first: str = "") -> str:
    """A script that calls the real one with flags behind all others, where they count; `first` is
    what it does before."""
    path.write_text(f'#!/bin/sh\n{first}\nexec {real} "$@" {flags}\n')
    path.chmod(0o755)
    return str(path)
