"""Memory of the kernels; freed memory is kept, unless the environment says otherwise."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from parley.compute.memory import zeros

FAULTS = """
import ctypes, resource, sys, torch
from contextlib import ExitStack
from parley.process import MMAP, TRIM, kept_memory

for threshold in (MMAP, TRIM):  # glibc's own change with what was freed before
    ctypes.CDLL(None).mallopt(threshold, 65536)

def step():
    return [torch.zeros(1_000_000) for _ in range(6)]

holding = ExitStack()
if sys.argv[1] == "kept":
    holding.enter_context(kept_memory())
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
GIVES_BACK = {"MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_MMAP_THRESHOLD_": "65536"}


def faults(word: str, **more: str) -> int:
    """Pages that had to be found anew."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")} | more
    command = [sys.executable, "-c", FAULTS, word]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(found.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_steps_use_the_same_pages_again() -> None:
    assert faults("kept") < faults("as it is") / 10
    # Who asks the C library for something else gets that.
    assert faults("kept", **GIVES_BACK) > 10 * faults("kept")
    tuned = "glibc.malloc.trim_threshold=65536:glibc.malloc.mmap_threshold=65536"
    assert faults("kept", GLIBC_TUNABLES=tuned) > 10 * faults("kept")


@pytest.mark.parametrize("floats", [1, 100, 3 << 19, (5 << 19) + 7])
def test_memory_for_the_kernels_is_zero_and_begins_on_a_cache_line(floats: int) -> None:
    memory = zeros(floats)
    assert len(memory) >= floats and memory.data_ptr() % 64 == 0
    assert not memory.any()
    assert float(memory[:floats].fill_(1).sum(dtype=torch.float64)) == floats
