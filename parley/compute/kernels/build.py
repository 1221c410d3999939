"""Compiles the kernels: on first use for the processor that is here, and ahead of it for wheels."""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from parley.compute.kernels import interface

HERE = Path(__file__).parent
# No -ffast-math: a NaN must stay visible. No vectorizer: the kernels are vectors already, and it
# takes a quarter of the time to compile.
FLAGS = (
    *("-std=gnu11", "-O2", "-fPIC"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-tree-vectorize"),
)
NATIVE = "-march=native"
_FAST = (
    *("graph", "convolution", "depthwise", "correlate", "winograd", "rows", "products"),
    *("norms", "batchnorm", "pixelwise", "pools", "losses"),
)
SOURCES = {
    **{f"{name}.c": "-ffp-contract=fast" for name in (*_FAST, "signs")},
    **dict.fromkeys(("average.c", "batches.c"), "-ffp-contract=off"),
}
"""Each file, and whether a product and a sum may become one operation that rounds once: not where
the result has to be the same as torch's."""
TIMEOUT = 900
"""Seconds that a compiler, or another process that compiles, may take."""


class Unavailable(Exception):
    """Why there are no kernels."""


class NoCompiler(Unavailable):
    """There is none; no other fault is mended by installing one."""


class Level(NamedTuple):
    """What a library of a wheel is compiled for."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]
    """What /proc/cpuinfo lists for a processor that can run it."""


_AVX2 = frozenset(("avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"))
_AVX512 = frozenset(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"))
LEVELS = (
    Level("avx512", ("-march=x86-64-v4",), _AVX2 | _AVX512),
    Level("avx2", ("-march=x86-64-v3",), _AVX2),
    Level("portable", (), frozenset()),
)
"""The fastest first; the last one runs on every processor of the wheel's platform."""


def prebuilt(processor: str) -> Path | None:
    """The fastest library of this wheel for a processor; None where the package has none."""
    for level in LEVELS:
        if level.needs <= {*processor.split()}:
            for path in HERE.glob(f"kernels-{level.name}-*.so"):
                return path
    return None


def for_wheel(folder: Path, machine: str) -> list[Path]:
    """Compiles what a wheel for this kind of machine contains."""
    levels = LEVELS if machine.lower() in ("x86_64", "amd64") else LEVELS[-1:]
    return [compiled(compiler(), level.flags, folder, level.name) for level in levels]


def key(using: list[str], processor: str) -> str:
    """Differs where the sources, the compiler or the processor do."""
    version = run([*using, "--version"])
    texts = [path.read_text() for path in sorted(HERE.glob("*.[ch]"))]
    parts = (interface.header(), *texts, *SOURCES.values(), *FLAGS, *using, version, processor)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def compiled(using: list[str], flags: tuple[str, ...], folder: Path, name: str) -> Path:
    """Made under another name, so that it is there as a whole or not at all."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="kernels-") as own:
        made = Path(own) / "kernels.so"
        (Path(own) / "interface.h").write_text(interface.header())
        objects = [str((Path(own) / source).with_suffix(".o")) for source in SOURCES]

        def compile_one(source: str, made: str) -> None:
            options = (*FLAGS, *flags, SOURCES[source], "-iquote", own, "-iquote", str(HERE))
            run([*using, *options, "-c", str(HERE / source), "-o", made])

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, SOURCES, objects))
        run([*using, "-shared", *objects, "-o", str(made), "-lm"])
        made.chmod(0o700)  # whatever the umask is: what others can write is not loaded
        return made.replace(folder / f"kernels-{name}-{digest(made)}.so")


def digest(path: Path) -> str:
    """Of the contents, which a library's name ends in."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:20]


def compiler() -> list[str]:
    """The command that compiles C."""
    if own := os.environ.get("CC"):
        return shlex.split(own)
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    raise NoCompiler("no C compiler (cc, gcc or clang) is on the PATH")


def run(command: list[str]) -> str:
    """What a compiler prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except FileNotFoundError:
        chosen = " (the environment variable CC names it)" if os.environ.get("CC") else ""
        why = f"the compiler {command[0]!r} was not found{chosen}"
        raise Unavailable(why) from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        raise Unavailable(f"{command[0]} failed with status {done.returncode}: {lines[0]}")
    return done.stdout
