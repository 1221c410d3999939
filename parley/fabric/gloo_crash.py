"""A readable error from a process that gloo aborts.

Gloo takes a message that is longer than expected for a fault of the program. It throws an error in
a thread of its own, which nobody can catch, and the process would be aborted without a word. The
handler that C++ calls then is the one place from which the user can still be told.
"""

import ctypes
import ctypes.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

THROWN = b"N4gloo13EnforceNotMetE"
"""The error's type, as the compiler writes it."""

_say: list[Callable[[], str]] = []
_installed: list[object] = []


@contextmanager
def last_words(say: Callable[[], str]) -> Iterator[None]:
    """While this is open, a process that gloo aborts ends with the line that `say` returns."""
    _install()
    _say.append(say)
    try:
        yield
    finally:
        _say.remove(say)


def _install() -> None:
    """Installs the handler once per process, where that is possible (GNU's C++ library)."""
    if _installed:
        return
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
            if name == THROWN and _say:
                print(f"error: {_say[-1]()}", file=sys.stderr, flush=True)
                os._exit(2)
            before()

        made = handler(end)
        before = handler(install(made))
        _installed.extend((made, before))
