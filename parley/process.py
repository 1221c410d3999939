"""What Parley changes in the whole process: each with its reason, for as long as it is needed, and
undone afterwards, since a program that calls `parley.train` has settings of its own.

What cannot be undone is at the end: a process that only exists for a run needs no undoing, and what
a library reads once has to be there before.
"""

import ctypes
import ctypes.util
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import parent_process, resource_tracker
from multiprocessing.connection import wait
from typing import Any

MMAP, TRIM = -3, -1
"""M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's mallopt."""
LARGEST = 32 << 20
"""Bytes: larger blocks always come from the system and go back to it."""
KEPT = 128 << 20
"""Bytes of freed memory at the end of the heap that a run keeps."""
THROWN = b"N4gloo13EnforceNotMetE"
"""The type of the error that gloo ends a process with, as the compiler writes it."""

_words: list[Callable[[], str]] = []
_handlers: list[object] = []
"""Functions that C++ may still call, which must not be freed."""


@contextmanager
def loading(for_good: bool = False) -> Iterator[None]:
    """While modules are imported, nothing is searched for garbage: importing creates a million
    objects that stay, which the collector would look through again and again.

    `for_good`: nor are these objects searched later, of which the last search, at the end of the
    process, alone takes half a second. Only for a command, and while it has made nothing else yet.
    """
    for_good = for_good and "torch" not in sys.modules
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if for_good:
            gc.freeze()
        if collected:
            gc.enable()


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """How many threads torch splits an operation over: by default one, since more rarely pay off
    and slow down whatever else the machine does."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def kept_memory() -> Iterator[None]:
    """Freed blocks are kept for the next ones.

    Every step allocates and frees some tensors of the size of all models together. glibc would give
    most of them back to the system, which has to find and clear new pages a moment later; with
    small networks that takes a good part of a step. Without glibc, or if the environment sets
    ``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_`` or glibc's tunables of malloc, nothing is
    changed.

    glibc does not say what its limits are, and no longer adjusts them once they are set. Afterwards
    they are what it arrives at by itself when a block of `LARGEST` bytes has been freed, and what
    was kept goes back to the system.
    """
    set_by_user = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys()
    if set_by_user or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        yield
        return
    library: Any = None
    with suppress(AttributeError, OSError, TypeError):  # no glibc
        library = ctypes.CDLL(None)
        library.mallopt(MMAP, LARGEST)
        library.mallopt(TRIM, KEPT)
    try:
        yield
    finally:
        with suppress(AttributeError):
            library.mallopt(TRIM, 2 * LARGEST)
            library.malloc_trim(0)


@contextmanager
def switching(seconds: float) -> Iterator[None]:
    """After how long Python lets another thread have its turn: one that moves bytes needs little
    time, but often, and training waits for it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """A variable of the environment, for libraries that take settings from nowhere else."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Processes that are started meanwhile never see Ctrl-C: the one that starts them handles it,
    and they follow."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # starting it would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def last_words(say: Callable[[], str]) -> Iterator[None]:
    """While this is open, a process that gloo aborts ends with the line that `say` returns.

    Gloo takes a message that is longer than expected for a fault of the program. It throws an error
    in a thread of its own, where it cannot be caught, and the process would be aborted without a
    word. The handler that C++ calls then is the one place from which the user can still be told.
    """
    _words.append(say)
    set_handler = _handled() if len(_words) == 1 else None
    try:
        yield
    finally:
        _words.remove(say)
        if set_handler is not None:
            set_handler()


def _handled() -> Callable[[], object] | None:
    """Sets the handler, where that is possible (GNU's C++ library); how to set back the former."""
    with suppress(OSError, AttributeError, ValueError):
        library = ctypes.CDLL(ctypes.util.find_library("stdc++") or "libstdc++.so.6")
        handler = ctypes.CFUNCTYPE(None)
        current = library["__cxa_current_exception_type"]
        current.restype = ctypes.c_void_p
        install = library["_ZSt13set_terminatePFvvE"]
        install.argtypes, install.restype = [handler], ctypes.c_void_p

        def end() -> None:
            # A type of C++ begins with a pointer to its functions; its name comes next.
            type_ = current()
            name = ctypes.cast(type_ + 8, ctypes.POINTER(ctypes.c_char_p))[0] if type_ else b""
            if name == THROWN and _words:
                print(f"error: {_words[-1]()}", file=sys.stderr, flush=True)
                os._exit(2)
            before()

        made = handler(end)
        before = handler(install(made))
        _handlers.extend((made, before))
        return lambda: install(before)
    return None


def without_groups() -> None:
    """The next group of `torch.distributed` gets the name of a first one.

    A group's name is the count of those made before it, which must be the same in every process;
    ending a group sets it back, but one that was never complete cannot be ended.
    """
    from torch.distributed import distributed_c10d

    distributed_c10d._world.group_count = 0


def follow_parent(environment: Mapping[str, str]) -> None:
    """In a process that was started for a run, for good: it has the variables of the one that asked
    for it (the server that starts processes may be older), leaves Ctrl-C to it, and ends with it,
    even if that was killed."""
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def quiet_torch() -> None:
    """Torch reports a lost connection with its own call stack before Parley can say what it means.
    It reads this when it is imported; for good, but a user's own setting counts."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
