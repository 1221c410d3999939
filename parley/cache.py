"""Where data that can be recreated is kept."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """PARLEY_CACHE, or the folder `parley` in the user's cache."""
    if own := os.environ.get("PARLEY_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "parley"
