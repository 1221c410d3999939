"""The version of this package, and the commit it was built from."""

import subprocess
from functools import cache
from pathlib import Path

__version__ = "0.3.0.dev0"

BUILT = Path(__file__).with_name("_commit.txt")
"""Written when the package is built; a checkout has none, and asks git."""


@cache
def commit() -> str | None:
    """The short commit hash, with ``-dirty`` if files have changed since; None if unknown."""
    if BUILT.is_file():
        return BUILT.read_text(encoding="utf-8").strip() or None
    checkout = BUILT.parents[1]
    # Only our own repository counts, not one that happens to hold an environment with Parley in it.
    if not ((checkout / ".git").exists() and (checkout / "pyproject.toml").is_file()):
        return None
    asked = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None


def full_version() -> str:
    """Version and commit, as ``parley --version`` prints them and hosts compare them."""
    found = commit()
    return f"{__version__} (commit {found})" if found else __version__
