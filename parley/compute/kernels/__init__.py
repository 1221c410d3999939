"""Compiled kernels: of the wheel, or built from C on first use and kept in the cache; optional.

`graph.h` says how gradients are computed, and `interface.py` which operations there are. `signs.c`
has 1-bit messages, `average.c` sums in a fixed order, `batches.c` images on their way into a
network.

A wheel has libraries for several kinds of vectors, of which the processor's widest is used. Without
them (in a checkout, on other systems) a C compiler is asked; where there is none, `available()` is
False, `reason()` says why, and pure torch does the work.

The environment: `CC` names a compiler, which is then used in any case, `PARLEY_KERNELS=off` does
without kernels, `PARLEY_CACHE` is where a library that was compiled here is kept.
"""

import ctypes
import os
import platform
import subprocess
from ctypes import c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path

from filelock import FileLock

from parley.cache import code_folder, own_files
from parley.compute.kernels import build
from parley.compute.kernels.interface import (
    KINDS,
    NOTHING,
    STRUCTURES,
    ConvolutionOptions,
    Graph,
    Node,
    Value,
    declare,
)
from parley.errors import BadValue


def available() -> bool:
    """Whether the kernels can be used; builds them if that was not done before."""
    return not reason()


def reason() -> str:
    """Why the kernels cannot be used; empty if they can."""
    error = _load()[1]
    return f"no compiled kernels: {error}" if error else ""


def advice() -> str:
    """How to get the kernels where they are missing and nobody has asked for that; else nothing."""
    loaded, error = _load()
    if loaded is not None or switched_off("PARLEY_KERNELS"):
        return ""
    if isinstance(error, build.NoCompiler):
        how = "install gcc or clang (Linux: build-essential, macOS: xcode-select --install)"
        return f"{reason()}; for the engine that is usually fastest, {how}"
    return f"{reason()}; they would usually be the fastest engine"


def identity() -> str:
    """Differs where the kernels, their compiler or the processor do; empty without kernels."""
    return "" if reason() else Path(library()._name).stem


def library() -> ctypes.CDLL:
    """The loaded kernels."""
    loaded = _load()[0]
    if loaded is None:
        raise RuntimeError(reason())
    return loaded


def lanes() -> int:
    """Samples in one vector register."""
    return int(library().parley_lanes())


@cache
def _load() -> tuple[ctypes.CDLL | None, Exception | None]:
    try:
        return _open(_found()), None
    except (build.Unavailable, OSError, subprocess.SubprocessError) as error:
        return None, error


def _found() -> Path:
    """The library: the wheel's, unless a compiler is named; or the cache's; or compiled now."""
    if switched_off("PARLEY_KERNELS"):
        raise build.Unavailable("PARLEY_KERNELS is off")
    if not os.environ.get("CC") and (path := build.prebuilt(processor())) is not None:
        return path
    compiler = build.compiler()
    key, folder = build.key(compiler, processor()), code_folder()
    if (path := _built(folder, key)) is not None:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    # Of several processes that start at once, one compiles and the others wait for it.
    with FileLock(folder / f"kernels-{key}.lock", timeout=build.TIMEOUT) as lock:
        path = _built(folder, key) or build.compiled(compiler, (build.NATIVE,), folder, key)
        Path(lock.lock_file).unlink(missing_ok=True)  # later processes find the library
    return path


def _built(folder: Path, key: str) -> Path | None:
    """The library, if it is there and whole: loading a file that was cut short may crash."""
    for path in own_files(folder, f"kernels-{key}-*.so"):
        if path.stem.endswith(build.digest(path)):
            return path
        path.unlink(missing_ok=True)
    return None


def switched_off(variable: str) -> bool:
    """Whether this environment variable is off."""
    value = os.environ.get(variable, "")
    if value.lower() in ("off", "0", "no", "false"):
        return True
    if value.lower() in ("", "on", "1", "yes", "true"):
        return False
    raise BadValue(variable, value, "on, off")


def processor() -> str:
    """What -march=native depends on: a cache may be on a disk that several machines share."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))


def vectors() -> str:
    """The widest vector instructions of this processor that the kernels use, or would use if they
    could be built. A compiler can be told to leave some out: ``CC="gcc -mno-avx512f"``."""
    flags = processor().split()
    if "avx512f" in flags and (reason() or lanes() == 16):
        return "AVX-512"
    return "AVX2" if "avx2" in flags else platform.machine()


def processor_name() -> str:
    """What the processor calls itself, and its vectors."""
    named = [line for line in processor().splitlines() if line.startswith("model name")]
    name = named[0].partition(":")[2].strip() if named else platform.processor()
    return ", ".join(filter(None, (name, vectors())))


def _open(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    try:
        declare(loaded)
    except AttributeError as error:
        raise build.Unavailable(f"{path} lacks a function: {error}") from None
    _check(loaded)
    return loaded


def _check(loaded: ctypes.CDLL) -> None:
    """One linear layer whose answer is known: y = 2x + 1 for x = 3."""
    node = Node(KINDS["convolution"], 0, NOTHING, 1, parameter=(0, 1, NOTHING))
    node.convolution = STRUCTURES[ConvolutionOptions](*ConvolutionOptions())
    values = (Value * 2)(Value(1, 1, 1, 0, NOTHING), Value(1, 1, 1, 8, NOTHING))
    graph = Graph(nodes=1, parameters=2, input=0, output=1, vecs=1, scratch=16)
    graph.node, graph.value = (Node * 1)(node), values
    memory = ctypes.create_string_buffer(1 << 16)
    at = -(-ctypes.addressof(memory) // 64) * 64
    parameters, inputs, logits = (c_float * 2)(2, 1), (c_float * 1)(3), (c_float * 1)()
    loaded.parley_convert(graph, 1, inputs, 0, (c_int64 * 1)(1), at, 0)
    models = (c_void_p * 1)(ctypes.addressof(parameters))
    loaded.parley_predict(graph, 1, models, at, 1, logits, 1, at + 4096)
    if logits[0] != 7:
        raise build.Unavailable(f"the kernels answer {logits[0]}, not 7, to a known case")
