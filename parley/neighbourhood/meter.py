"""How much has been computed."""

from collections.abc import Sequence

from parley.data import Batch


class Meter:
    """Counts gradients, as a transport counts bytes: each as often as it has samples."""

    def __init__(self) -> None:
        self.samples = 0

    def count(self, batch: Batch, rows: Sequence[int]) -> None:
        """Notes a gradient on the batch in each of these rows."""
        self.samples += sum(map(batch.sizes.__getitem__, rows))
