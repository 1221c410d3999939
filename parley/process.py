"""What Parley changes in the whole process, each with its reason; all of it is undone afterwards.

A program that calls `parley.train` has settings of its own, and gets them back.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
