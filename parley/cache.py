"""Where files that can be recreated are kept: decoded datasets and compiled code."""

import atexit
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """PARLEY_CACHE, or the folder `parley` in the user's cache."""
    if own := os.environ.get("PARLEY_CACHE"):
        return _at_home(own)
    return _users_cache()


def _users_cache() -> Path:
    return _at_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "parley"


def _at_home(path: str) -> Path:
    """A path that may begin with ``~``; a user without a home has a folder for this process."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return _for_this_process()


def code_folder() -> Path:
    """Where compiled code is kept: a folder that no other user can write to.

    The cache, or else the user's own cache, or else a folder that this process alone uses.
    """
    found, why = "", ""
    for folder in (cache_folder(), _users_cache()):
        why = distrust(folder)
        if not why:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                return folder
            except OSError as error:
                why = f"cannot be made ({error.strerror})"
        found = found or f"{folder} {why}"
    log.warning(
        "compiled code is not kept: %s; it should be your own folder, as after chmod go-w", found
    )
    return _for_this_process()


def own_files(folder: Path, pattern: str) -> Iterator[Path]:
    """The files of that pattern that are the user's own; those that others may have put there are
    passed over, and nothing is done to them."""
    for path in folder.glob(pattern):
        if why := _distrust(path, stat.S_ISREG):
            log.warning("%s is not used: it %s", path, why)
        else:
            yield path


def distrust(folder: Path) -> str:
    """Why code in that folder, or in one created there, could come from another user."""
    folder = folder.absolute()
    if folder.is_symlink():
        folder = folder.resolve()
    if folder.exists() and (why := _distrust(folder, stat.S_ISDIR)):
        return why
    for parent in {*folder.parents, *folder.resolve().parents}:
        if parent.exists():
            mode = parent.stat().st_mode
            if os.name == "posix" and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                return f"is in {parent}, where anybody can replace it"
    return ""


def _distrust(path: Path, is_kind: Callable[[int], bool]) -> str:
    """Why a file or folder is not the user's own; nothing if it is."""
    if os.name != "posix":
        return ""  # a profile's folders are the user's own there, by rights that modes do not show
    about = path.lstat()
    if not is_kind(about.st_mode):
        return "is a link or something else"
    if about.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user ({about.st_uid})"
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by others"
    return ""


@cache
def _for_this_process() -> Path:
    folder = tempfile.mkdtemp(prefix="parley-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
