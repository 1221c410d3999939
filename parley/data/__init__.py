"""Samples, their transforms and sources, and who holds which of them."""

from parley.data.batches import Batch, Batches, steps_per_epoch
from parley.data.from_python import from_user
from parley.data.samples import Samples, cut_each, cut_own, hold_out, joined, share_of
from parley.data.sources import SOURCES, load
from parley.data.transforms import Transform

__all__ = [
    "SOURCES",
    "Batch",
    "Batches",
    "Samples",
    "Transform",
    "cut_each",
    "cut_own",
    "from_user",
    "hold_out",
    "joined",
    "load",
    "share_of",
    "steps_per_epoch",
]
