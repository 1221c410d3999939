"""Memory: in large pages, and kept where the C library would give it back."""

import ctypes
import mmap
import os
from contextlib import suppress

import torch
from torch import Tensor

MMAP, TRIM = -3, -1
"""M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's mallopt."""
LARGEST = 32 << 20
"""Bytes: larger blocks always come from the system and go back to it."""
KEPT = 128 << 20
"""Bytes of freed memory at the end of the heap that the process keeps."""
LARGE_PAGE = 1 << 21
"""Bytes. A network's memory is touched in so many places that small pages cost a twentieth of the
time for VGG-11 and for a residual network."""


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


def zeros(floats: int) -> Tensor:
    """Zeroed memory that begins on a cache line, in large pages where the system has them."""
    size = 4 * floats + LARGE_PAGE
    if size < 3 * LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        memory = torch.zeros(floats + 16)
        return memory[-(memory.data_ptr() // 4) % 16 :]
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(pages, dtype=torch.float32)
    return memory[-memory.data_ptr() % LARGE_PAGE // 4 :][:floats]
