"""Memory in large pages."""

import mmap
from contextlib import suppress

import torch
from torch import Tensor

LARGE_PAGE = 1 << 21
"""Bytes. A network's memory is touched in so many places that small pages cost a twentieth of the
time for VGG-11 and for a residual network."""


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
