"""How the C library deals with memory that is freed."""

import ctypes
import os
from contextlib import suppress

MMAP, TRIM = -3, -1
"""M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's mallopt."""
LARGEST = 32 << 20
"""Bytes: larger blocks always come from the system and go back to it."""
KEPT = 128 << 20
"""Bytes of freed memory at the end of the heap that the process keeps."""


def keep_freed_memory() -> None:
    """Keeps freed blocks for the next ones.

    Every step allocates and frees some tensors of the size of all models together. glibc would give
    most of them back to the system, which has to find and clear new pages a moment later; with
    small networks that takes a good part of a step. Without glibc, or if the environment sets
    ``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_`` or glibc's tunables of malloc, nothing is
    changed.
    """
    if {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys():
        return
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with suppress(AttributeError, OSError, TypeError):  # no glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP, LARGEST)
        mallopt(TRIM, KEPT)
