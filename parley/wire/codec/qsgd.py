"""A few bits per entry, rounded at random so that the mean is exact.

Axes: E messages, D flat parameters, S buckets, B bytes of one message.
"""

from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from parley.wire.codec.base import Codec
from parley.wire.codec.bits import pack_numbers, packed_bytes, random_bits, unpack_numbers
from parley.wire.codec.sparse import checked_keys

BUCKET = 512
"""Entries under one scale."""
NUMBERS = {8: 5, 4: 6, 2: 7}
"""Bits to the codec's number."""


@dataclass(frozen=True)
class QSGD(Codec):
    """Multiples of 1/s of the largest magnitude of a bucket, s = 2^(bits - 1) - 1.

    Alistarh et al., NeurIPS 2017, with the largest magnitude as the scale. An entry lies between
    two multiples, with probabilities such that ``E C(m) = m``. Two bits are -1, 0 and 1
    times the scale. The step is 1/s of a bucket's largest entry, so for each entry the error is
    below that, and zeros stay zeros.

    >>> codec = QSGD(4, bits=2).keyed(torch.tensor([7]))
    >>> wire = codec.encode(torch.tensor([[1.0, -2.0, 0.0, 2.0]]))
    >>> wire.shape, codec.decode(wire, torch.float32).tolist()
    (torch.Size([1, 5]), [[2.0, -2.0, 0.0, 2.0]])
    """

    size: int
    """D, the number of entries."""
    bits: int = 8
    """8, 4 or 2."""
    bucket: int = BUCKET
    """Entries that share a scale."""
    key_E: Tensor | None = field(default=None, compare=False, repr=False)
    draws = True

    @property
    def number(self) -> int:  # type: ignore[override]
        """Each width has its own."""
        return NUMBERS[self.bits]

    @property
    def levels(self) -> int:
        """s, the multiples on either side of zero."""
        return int(2 ** (self.bits - 1)) - 1

    @property
    def _buckets(self) -> int:
        return -(-self.size // self.bucket)

    def message_bytes(self, dtype: torch.dtype) -> int:
        """One number per bucket, and ``⌈D bits / 8⌉`` bytes."""
        return self._buckets * dtype.itemsize + packed_bytes(self.size, self.bits)

    def keyed(self, key_E: Tensor) -> Self:
        """Rounds with these keys."""
        return replace(self, key_E=key_E)

    def encode(self, m_ED: Tensor) -> Tensor:
        """Scales, then levels: 0 stands for -s, s for zero, 2s for s."""
        key_E = checked_keys(self.key_E, m_ED)
        room = self._buckets * self.bucket - self.size
        m_ESb = torch.nn.functional.pad(m_ED, (0, room)).view(len(m_ED), self._buckets, self.bucket)
        scale_ES = m_ESb.abs().amax(2)
        exact_ESb = m_ESb / scale_ES[..., None] * self.levels
        exact_ED = exact_ESb.flatten(1)[:, : self.size].nan_to_num(0.0)  # 0/0 in an empty bucket
        chance_ED = ((random_bits(key_E, self.size) >> 11) & ((1 << 53) - 1)).double() * 2.0**-53
        below_ED = exact_ED.floor()
        # In float64, where a nonzero probability stays above 0.
        up_ED = chance_ED < (exact_ED - below_ED).double()
        levels_ED = (below_ED + up_ED).clamp(-self.levels, self.levels).to(torch.int64)
        packed_EB = pack_numbers(levels_ED + self.levels, self.bits)
        return torch.cat([scale_ES.view(torch.uint8), packed_EB], 1)

    def decode(self, wire_EB: Tensor, dtype: torch.dtype) -> Tensor:
        """Each level times its bucket's scale, over s."""
        split = self._buckets * dtype.itemsize
        scales = wire_EB[:, :split].clone(memory_format=torch.contiguous_format).view(dtype)
        levels_ED = unpack_numbers(wire_EB[:, split:], self.size, self.bits) - self.levels
        scale_ED = scales.repeat_interleave(self.bucket, 1)[:, : self.size]
        return levels_ED.to(dtype) / self.levels * scale_ED
