"""Samples, their transforms and sources, and who holds which of them."""

from parley.data.sources import (
    SOURCES,
    Batch,
    Batches,
    Samples,
    Transform,
    cache_folder,
    cut_own,
    from_user,
    hold_out,
    joined,
    load,
    share_of,
    steps_per_epoch,
)

__all__ = [
    "SOURCES",
    "Batch",
    "Batches",
    "Samples",
    "Transform",
    "cache_folder",
    "cut_own",
    "from_user",
    "hold_out",
    "joined",
    "load",
    "share_of",
    "steps_per_epoch",
]
