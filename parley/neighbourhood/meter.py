"""Counts the gradients that were computed."""

from collections.abc import Sequence

from parley.data import Batch


class Meter:
    """Counts sample gradients, as a transport counts bytes."""

    def __init__(self) -> None:
        self.samples = 0

    def count(self, batch: Batch, rows: Sequence[int]) -> None:
        """Counts a gradient on the batch of each of these rows."""
        self.samples += sum(map(batch.sizes.__getitem__, rows))
