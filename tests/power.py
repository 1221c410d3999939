"""Power cuts for tests: what a disk still has of a folder once its power is gone.

`Disk` watches what a program puts on the disk, and makes the folder that a cut would leave. `cut`
does it for real, to a file system of its own.
"""

import fcntl
import os
import shutil
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SHUTDOWN, NOTHING_FLUSHED = 0x8004587D, 2
"""Of ext4: ends all writing at once, and leaves in memory what is there."""


class Disk:
    """What has been synced of a folder, file by file and name by name.

    A cut takes what was not synced, and there are two ways to be unlucky. Names may be lost, of new
    files and of renamed ones; or names may be kept and what the files held be lost.
    """

    def __init__(self, root: Path, before_each: Callable[[], None] = lambda: None) -> None:
        self.root = root
        self._before_each = before_each
        self._content: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._kept_open: dict[int, int] = {}
        """An inode's number is not used again as long as it is open."""

    @contextmanager
    def watching(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Sees every `os.fsync` of this process below the folder."""
        fsync = os.fsync

        def seen(file: int) -> None:
            self._before_each()
            fsync(file)
            self._synced(file)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", seen)
            yield
        for descriptor in self._kept_open.values():
            os.close(descriptor)

    def _synced(self, file: int) -> None:
        status = os.fstat(file)
        if status.st_ino not in self._kept_open:
            self._kept_open[status.st_ino] = os.dup(file)
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = _listed(file)
        else:
            with os.fdopen(os.open(f"/proc/self/fd/{file}", os.O_RDONLY), "rb") as whole:
                self._content[status.st_ino] = whole.read()

    def after_a_cut(self, target: Path, names_lost: bool) -> Path:
        """A folder as it would be found. Each kept file has the content that was synced last, or
        none."""
        self._copy(self.root.stat().st_ino, self.root, target, names_lost)
        return target

    def _copy(self, inode: int, now: Path | None, target: Path, names_lost: bool) -> None:
        target.mkdir(parents=True)
        present = {e.name: e.inode() for e in os.scandir(now)} if now else {}
        names = self._names.get(inode, {}) if names_lost else present
        for name, number in names.items():
            still = now / name if now and present.get(name) == number else None
            if number in self._names or (still and still.is_dir()):
                self._copy(number, still, target / name, names_lost)
            else:
                (target / name).write_bytes(self._content.get(number, b""))


def _listed(folder: int) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}


@contextmanager
def own_file_system(folder: Path, megabytes: int = 64) -> Iterator[Path]:
    """A folder with an ext4 file system of its own, whose power can be `cut`."""
    if os.geteuid() or not shutil.which("mkfs.ext4"):
        pytest.skip("a file system of its own needs root and mkfs.ext4")
    image, place = folder / "disk.image", folder / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    if said := mount(folder):
        pytest.skip(f"a file system cannot be mounted here: {said}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def mount(folder: Path) -> str:
    """What was wrong, if anything was."""
    words = ["mount", "-o", "loop", str(folder / "disk.image"), str(folder / "disk")]
    return subprocess.run(words, capture_output=True, text=True).stderr.strip()


def cut(place: Path) -> None:
    """From now on nothing is written, and what is in memory is lost."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", NOTHING_FLUSHED))
    except OSError as error:
        pytest.skip(f"this file system cannot be shut down: {error}")
    finally:
        os.close(descriptor)


def power_on(place: Path) -> None:
    """Mounts it again, from what the disk has."""
    subprocess.run(["umount", str(place)], check=True)
    assert not (said := mount(place.parent)), said
