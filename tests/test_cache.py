"""Compiled code is loaded only from where nobody else can put any."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parley import cache
from parley.compute import kernels
from tests.compiler import compiler

posix = pytest.mark.skipif(os.name != "posix", reason="rights are not modes here")
compiled = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

PLANTED = """
#include <stdio.h>
__attribute__((constructor)) static void planted(void) { fclose(fopen("%s", "w")); }
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the user's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PARLEY_CACHE", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return folder


class TestFolders:
    def test_a_new_folder_is_closed_to_others(self, own: Path) -> None:
        before = os.umask(0o002)
        try:
            assert cache.code_folder() == own
        finally:
            os.umask(before)
        assert not own.stat().st_mode & 0o077

    @posix
    @pytest.mark.parametrize("mode", [0o777, 0o775, 0o707])
    def test_a_folder_that_others_can_write_is_not_used(
        self, own: Path, mode: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        own.mkdir()
        own.chmod(mode)
        found = cache.code_folder()
        assert found == own.parent / "home" / "parley"
        assert not found.stat().st_mode & 0o077
        (own.parent / "home" / "parley").chmod(0o777)
        found = cache.code_folder()
        assert found not in (own, own.parent / "home" / "parley")
        assert not found.stat().st_mode & 0o077
        assert f"{own} can be written by others" in caplog.text

    @posix
    def test_nor_one_that_anybody_can_replace(self, own: Path) -> None:
        own.parent.joinpath("open").mkdir()
        own.parent.joinpath("open").chmod(0o777)
        assert "anybody can replace it" in cache.distrust(own.parent / "open" / "cache")
        own.parent.joinpath("open").chmod(0o1777)
        assert cache.distrust(own.parent / "open" / "cache") == ""

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="not root")
    def test_nor_one_of_another_user(self, own: Path) -> None:
        own.mkdir()
        os.chown(own, 12345, 12345)
        assert cache.distrust(own) == "belongs to another user (12345)"

    def test_files_of_others_are_passed_over(self, own: Path) -> None:
        own.mkdir(mode=0o700)
        for name, mode in (("a.so", 0o600), ("b.so", 0o666), ("c.so", 0o755)):
            (own / name).write_text("")
            (own / name).chmod(mode)
        (own / "d.so").symlink_to(own / "a.so")
        assert sorted(path.name for path in cache.own_files(own, "*.so")) == ["a.so", "c.so"]
        assert len(list(own.iterdir())) == 4


SCRIPT = "from parley.compute import kernels; print(kernels.reason() or kernels.lanes())"


@posix
@compiled
def test_a_planted_library_does_not_run(own: Path, tmp_path: Path) -> None:
    """With the right name and the right digest, in a folder that somebody else can write."""
    if not kernels.available():
        pytest.skip(kernels.reason())
    own.mkdir(mode=0o700, exist_ok=True)
    quick = compiler(tmp_path / "quick", str(shutil.which("cc")), "-O0")
    environment = os.environ | {"CC": quick, "PYTHONPATH": str(Path(cache.__file__).parents[1])}

    def started() -> str:
        command = [sys.executable, "-c", SCRIPT]
        # With a umask under which a linker's files can be written by the group.
        done = subprocess.run(
            command, umask=0o002, capture_output=True, text=True, env=environment, check=True
        )
        return done.stdout.strip()

    assert started() == str(kernels.lanes())
    [genuine] = own.glob("kernels-*.so")
    sign = tmp_path / "planted-code-ran"
    (tmp_path / "planted.c").write_text(PLANTED % sign)
    planted = tmp_path / "planted.so"
    make = ["cc", "-shared", "-fPIC", str(tmp_path / "planted.c"), "-o", str(planted)]
    subprocess.run(make, check=True)
    digest = hashlib.sha256(planted.read_bytes()).hexdigest()[:20]
    name = f"{genuine.stem.rpartition('-')[0]}-{digest}.so"
    genuine.unlink()
    shutil.copyfile(planted, own / name)
    (own / name).chmod(0o666)
    assert started() == str(kernels.lanes()), "compiled anew"
    assert not sign.exists()
    assert (own / name).exists(), "what is not ours is left alone"
    for path in own.glob("kernels-*.so"):
        path.unlink()
    shutil.copyfile(planted, own / name)
    (own / name).chmod(0o644)
    own.chmod(0o777)
    assert started() == str(kernels.lanes()), "compiled elsewhere"
    assert not sign.exists()
    ctypes.CDLL(str(planted))
    assert sign.exists(), "it would have run"
