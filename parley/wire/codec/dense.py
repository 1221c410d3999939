"""Every entry separately: as it is, or in half precision.

Axes: E messages, D flat parameters, B bytes of one message.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from parley.wire.codec.base import Codec


@dataclass(frozen=True)
class Dense(Codec):
    """The numbers as they are: 4 bytes per entry for float32. Encoding is a view, not a copy.

    >>> codec = Dense(3)
    >>> wire = codec.encode(torch.tensor([[1.0, -2.0, 0.5]]))
    >>> wire.shape, codec.decode(wire, torch.float32).tolist()
    (torch.Size([1, 12]), [[1.0, -2.0, 0.5]])
    """

    size: int
    """D, the number of entries."""
    number = 1

    def message_bytes(self, dtype: torch.dtype) -> int:
        """D entries of the tensor's own width."""
        return self.size * dtype.itemsize

    def encode(self, m_ED: Tensor) -> Tensor:
        """A view as bytes."""
        return m_ED.contiguous().view(torch.uint8)

    def decode(self, wire_EB: Tensor, dtype: torch.dtype) -> Tensor:
        """A view as numbers."""
        return wire_EB.view(dtype)

    def take(self, p_ED: Tensor) -> Tensor:
        """Takes everything; a copy, because a view would be overwritten."""
        wire_EB = self.encode(p_ED.clone())
        p_ED.sub_(self.decode(wire_EB, p_ED.dtype))
        return wire_EB


@dataclass(frozen=True)
class Half(Codec):
    """IEEE half precision: 2 bytes per entry, with a relative error of at most 2⁻¹¹.

    Finite numbers beyond ±65504 are sent as ±65504, those below about 6·10⁻⁸ as 0; NaN and infinity
    are preserved.

    >>> Half(3).round_trip(torch.tensor([[1.0, 1e9, 1 / 3]])).tolist()
    [[1.0, 65504.0, 0.333251953125]]
    """

    size: int
    """D, the number of entries."""
    number = 8

    def message_bytes(self, dtype: torch.dtype) -> int:
        """D entries of 2 bytes."""
        return 2 * self.size

    def encode(self, m_ED: Tensor) -> Tensor:
        """Rounded to the nearest."""
        largest = torch.finfo(torch.float16).max
        limited_ED = torch.where(m_ED.isinf(), m_ED, m_ED.clamp(-largest, largest))
        return limited_ED.to(torch.float16).contiguous().view(torch.uint8)

    def decode(self, wire_EB: Tensor, dtype: torch.dtype) -> Tensor:
        """Exact: every half is a float."""
        # A copy: the bytes of a slice may not be aligned.
        return wire_EB.clone(memory_format=torch.contiguous_format).view(torch.float16).to(dtype)
