"""The kernels stay inside their memory, nothing in them is undefined, and they are built once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parley.compute.kernels import build
from tests.compiler import compiler

ROOT = Path(__file__).parents[2]


def runtime(gcc: str, name: str) -> str:
    asked = [gcc, f"-print-file-name={name}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return found if Path(found).is_absolute() else ""


def test_operations_with_address_and_undefined_behaviour_sanitizers(tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None or not (library := runtime(gcc, "libasan.so")):
        pytest.skip("no gcc with its address sanitizer")
    # With -O2 it would take twice as long.
    checks = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -g1 -O1"
    asked = [
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider"),
        *("--basetemp", str(tmp_path / "base")),
        *("tests/compute/test_operations.py", "tests/compute/test_convolutions.py"),
        "tests/compute/test_batching.py",
    ]
    environment = {
        **os.environ,
        "CC": compiler(tmp_path / "cc", gcc, checks),
        # The sanitizer passes on what torch throws, and must find who catches it.
        "LD_PRELOAD": f"{library} {runtime(gcc, 'libstdc++.so.6')}".strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        asked, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("no gcc")
    counted, folder = tmp_path / "calls", tmp_path / "cache"
    counting = compiler(tmp_path / "cc", gcc, "-O0", f"echo call >> {counted}")  # -O0 is quick
    environment = {**os.environ, "CC": counting, "PARLEY_CACHE": str(folder)}
    environment["PYTHONPATH"] = str(ROOT)
    asked = [sys.executable, "-c", "from parley.compute import kernels; kernels.library()"]
    started = [subprocess.Popen(asked, env=environment) for _ in range(2)]
    assert [process.wait(timeout=1800) for process in started] == [0, 0]
    versions, libraries = 2, 1
    assert counted.read_text().count("call") == versions + len(build.SOURCES) + libraries
    assert [path.suffix for path in folder.rglob("kernels-*")] == [".so"]
