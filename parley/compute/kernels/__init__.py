"""Compiled kernels: built from C on first use, kept in the cache, optional.

`graph.h` says how gradients are computed, and `graph.c` has the table of operations. `signs.c` has
1-bit messages, `average.c` sums in a fixed order, `batches.c` images on their way into a network.

Whoever has a C compiler gets them; for everyone else `available()` is False, `reason()` says why,
and pure torch does the work.

The environment: `CC` names the compiler, `PARLEY_KERNELS=off` does without, `PARLEY_CACHE` is where
the library is kept.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

from filelock import FileLock

from parley.cache import code_folder, own_files
from parley.errors import BadValue

# No -ffast-math: a NaN must stay visible. No vectorizer: the kernels are vectors already, and it
# takes a quarter of the time to compile.
FLAGS = (
    *("-std=gnu11", "-O2", "-march=native", "-fPIC"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-tree-vectorize"),
)
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
NOTHING = -1
"""Where there is no parameter, no value, no gradient."""


class Value(Structure):
    """A feature map, as in graph.h."""

    _fields_ = tuple((n, c_int64) for n in ("channels", "rows", "columns", "at", "slope"))


class Node(Structure):
    """One operation, as in graph.h."""

    _fields_ = (
        *((name, c_int64) for name in ("kind", "first", "second", "result")),
        ("parameter", c_int64 * 3),
        ("statistic", c_int64 * 2),
        ("frozen", c_void_p * 3),
        ("option", c_int64 * 14),
        ("number", c_float * 2),
        *((name, c_int64) for name in ("saved", "prepared")),
        *((name, c_int64 * 2) for name in ("wanted", "add")),
    )


class Graph(Structure):
    """A network as a list of operations, as in graph.h."""

    _fields_ = (
        *((n, c_int64) for n in ("nodes", "parameters", "input", "output", "vecs", "scratch")),
        ("loss", c_int64),
        ("smoothing", c_float),
        ("class_weights", c_void_p),
        ("node", POINTER(Node)),
        ("value", POINTER(Value)),
    )


class _Unavailable(Exception):
    """Why there are no kernels."""


class _NoCompiler(_Unavailable):
    """There is none; no other fault is mended by installing one."""


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
    if isinstance(error, _NoCompiler):
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
        return _build(), None
    except (_Unavailable, OSError, subprocess.SubprocessError) as error:
        return None, error


def _build() -> ctypes.CDLL:
    if switched_off("PARLEY_KERNELS"):
        raise _Unavailable("PARLEY_KERNELS is off")
    compiler = _compiler()
    version = _run([*compiler, "--version"])
    texts = [path.read_text() for path in sorted(Path(__file__).parent.glob("*.[ch]"))]
    parts = (*texts, *SOURCES.values(), *FLAGS, *compiler, version, processor())
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    folder = code_folder()
    if (path := _built(folder, key)) is not None:
        return _open(path)
    folder.mkdir(parents=True, exist_ok=True)
    # Of several processes that start at once, one compiles and the others wait for it.
    with FileLock(folder / f"kernels-{key}.lock", timeout=TIMEOUT) as lock:
        path = _built(folder, key) or _compile(compiler, folder, key)
        Path(lock.lock_file).unlink(missing_ok=True)  # whoever comes now finds the library
    return _open(path)


def _built(folder: Path, key: str) -> Path | None:
    """The library, if it is there and whole: loading a file that was cut short may crash."""
    for path in own_files(folder, f"kernels-{key}-*.so"):
        if path.stem.endswith(_digest(path)):  # the name ends in a hash of the contents
            return path
        path.unlink(missing_ok=True)
    return None


def _compile(compiler: list[str], folder: Path, key: str) -> Path:
    """Made under another name, so that it is there as a whole or not at all."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="kernels-") as own:
        made = Path(own) / "kernels.so"
        objects = [str((Path(own) / name).with_suffix(".o")) for name in SOURCES]

        def compile_one(name: str, made: str) -> None:
            source = str(Path(__file__).with_name(name))
            _run([*compiler, *FLAGS, SOURCES[name], "-c", source, "-o", made])

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, SOURCES, objects))
        _run([*compiler, "-shared", *objects, "-o", str(made), "-lm"])
        made.chmod(0o700)  # whatever the umask is: what others can write is not loaded
        return made.replace(folder / f"kernels-{key}-{_digest(made)}.so")


def switched_off(variable: str) -> bool:
    """Whether this environment variable is off."""
    value = os.environ.get(variable, "")
    if value.lower() in ("off", "0", "no", "false"):
        return True
    if value.lower() in ("", "on", "1", "yes", "true"):
        return False
    raise BadValue(variable, value, "on, off")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:20]


def _compiler() -> list[str]:
    if own := os.environ.get("CC"):
        return shlex.split(own)
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    raise _NoCompiler("no C compiler (cc, gcc or clang) is on the PATH")


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except FileNotFoundError:
        chosen = " (the environment variable CC names it)" if os.environ.get("CC") else ""
        why = f"the compiler {command[0]!r} was not found{chosen}"
        raise _Unavailable(why) from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        raise _Unavailable(f"{command[0]} failed with status {done.returncode}: {lines[0]}")
    return done.stdout


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


_SUMS = (
    *(c_int64, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_void_p),
    *(c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_int),
)


def _open(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    signatures = {
        "parley_lanes": (c_int64,),
        "parley_sizes": (None, POINTER(Graph), c_int64, POINTER(c_int64)),
        "parley_map_size": (c_int64, POINTER(Graph), c_int64),
        "parley_converted": (c_int64, POINTER(Graph), c_int64),
        "parley_convert": (
            *(None, POINTER(Graph), c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_int64),
        ),
        "parley_gradients": (
            *(None, POINTER(Graph), c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
            *(c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p),
        ),
        "parley_accumulate": (
            *(None, POINTER(Graph), c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
            *(c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
        ),
        "parley_predict": (
            *(None, POINTER(Graph), c_int64, c_void_p, c_void_p, c_int64, c_void_p, c_int64),
            c_void_p,
        ),
        "parley_statistics": (
            *(None, POINTER(Graph), c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
            *(c_int64, c_void_p),
        ),
        "parley_sums_float": (None, *_SUMS, c_float, c_void_p, c_int64),
        "parley_sums_double": (None, *_SUMS, c_double, c_void_p, c_int64),
        "parley_batch": (
            *(None, c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int64),
            *(c_void_p, c_void_p, c_void_p, c_void_p),
        ),
        "parley_encode_signs": (None, c_void_p, c_int64, c_void_p, c_int64, c_void_p),
        "parley_decode_signs": (None, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int),
    }
    for name, (result, *arguments) in signatures.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise _Unavailable(f"{path} lacks {name}") from None
        function.restype, function.argtypes = result, arguments
    _check(loaded)
    return loaded


def _check(loaded: ctypes.CDLL) -> None:
    """One linear layer whose answer is known: y = 2x + 1 for x = 3."""
    node = Node(kind=0, first=0, second=NOTHING, result=1, parameter=(0, 1, NOTHING))
    node.option[:10] = (1, 1, 1, 1, 1, 0, 0, 1, 1, 1)
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
        raise _Unavailable(f"the kernels answer {logits[0]}, not 7, to a known case")
