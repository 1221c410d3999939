"""A few entries only: the largest, or some at random.

Axes: E messages, D flat parameters, B bytes of one message, K entries that are sent.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from parley.errors import ParleyError
from parley.wire.codec.base import Codec
from parley.wire.codec.bits import (
    pack_bits,
    pack_numbers,
    packed_bytes,
    random_bits,
    unpack_numbers,
)

KEY_BYTES = 8


def kept(size: int, fraction: float) -> int:
    """How many of `size` entries a fraction is, rounded up.

    >>> kept(1000, 0.01), kept(10, 0.01), kept(100, 0.07)
    (10, 1, 7)
    """
    return max(1, math.ceil(round(size * fraction, 6)))  # 0.07 · 100 is a little above 7


def _values(wire_EB: Tensor, dtype: torch.dtype) -> Tensor:
    # A copy: the bytes of a slice may not be aligned.
    return wire_EB.clone(memory_format=torch.contiguous_format).view(dtype)


@dataclass(frozen=True)
class TopK(Codec):
    """The entries of largest magnitude, and their positions. The others are 0.

    ``‖m - C(m)‖² ≤ (1 - K/D) ‖m‖²`` for every m. Positions are numbers of ⌈log₂ D⌉ bits, packed,
    or one bit for each of the D entries if that is shorter; values are in order of position.

    >>> codec = TopK((4,), 0.5)
    >>> wire = codec.encode(torch.tensor([[1.0, -3.0, 0.5, 2.0]]))
    >>> wire.shape, codec.decode(wire, torch.float32).tolist()
    (torch.Size([1, 9]), [[0.0, -3.0, 0.0, 2.0]])
    """

    sizes: tuple[int, ...]
    """Entries among which the largest are chosen: ``(D,)``, or one size for every tensor."""
    fraction: float
    """Fraction of the entries of each that is sent, rounded up."""
    number = 3

    @cached_property
    def _counts(self) -> tuple[int, ...]:
        return tuple(kept(size, self.fraction) for size in self.sizes)

    @property
    def _size(self) -> int:
        return sum(self.sizes)

    @property
    def _width(self) -> int:
        return max(1, (self._size - 1).bit_length())

    @property
    def _position_bytes(self) -> int:
        as_numbers = packed_bytes(sum(self._counts), self._width)
        return min(as_numbers, packed_bytes(self._size, 1))

    @property
    def _by_bits(self) -> bool:
        return self._position_bytes == packed_bytes(self._size, 1)

    def message_bytes(self, dtype: torch.dtype) -> int:
        """K values, and ``min(⌈K ⌈log₂ D⌉ / 8⌉, ⌈D / 8⌉)`` bytes of positions."""
        return sum(self._counts) * dtype.itemsize + self._position_bytes

    def encode(self, m_ED: Tensor) -> Tensor:
        """Values, then positions."""
        chosen, start = [], 0
        for part, count in zip(m_ED.split(self.sizes, 1), self._counts, strict=True):
            chosen.append(part.abs().topk(count, dim=1).indices + start)
            start += part.shape[1]
        at_EK = torch.cat(chosen, 1).sort(1).values
        values_EB = m_ED.gather(1, at_EK).view(torch.uint8)
        if self._by_bits:
            marks_ED = torch.zeros(m_ED.shape, dtype=torch.bool, device=m_ED.device)
            positions_EB = pack_bits(marks_ED.scatter_(1, at_EK, True))
        else:
            positions_EB = pack_numbers(at_EK, self._width)
        return torch.cat([values_EB, positions_EB], 1)

    def decode(self, wire_EB: Tensor, dtype: torch.dtype) -> Tensor:
        """Each value in its place."""
        count = sum(self._counts)
        values_EK = _values(wire_EB[:, : count * dtype.itemsize], dtype)
        positions_EB = wire_EB[:, count * dtype.itemsize :]
        if self._by_bits:
            marks_ED = unpack_numbers(positions_EB, self._size, 1)
            if bool((marks_ED.sum(1) != count).any()):
                raise ParleyError(f"a Top-k message marks {count} entries, and this one does not")
            at_EK = marks_ED.nonzero()[:, 1].view(len(wire_EB), count)
        else:
            at_EK = unpack_numbers(positions_EB, count, self._width)
            if bool((at_EK >= self._size).any()) or bool((at_EK.diff(dim=1) <= 0).any()):
                raise ParleyError(f"positions that are not those of {self._size} entries in order")
        m_ED = torch.zeros(len(wire_EB), self._size, dtype=dtype, device=wire_EB.device)
        return m_ED.scatter_(1, at_EK, values_EK)


@dataclass(frozen=True)
class RandomK(Codec):
    """Random entries; the others are 0. Instead of positions, a key of 8 bytes is sent.

    They are the K entries with the smallest `random_bits` of the message's key, which both ends
    can compute. Plain, ``E‖m - C(m)‖² = (1 - K/D) ‖m‖²``; unbiased, the values are multiplied by
    D/K before they are sent, so that ``E C(m) = m``, and the codec is not a contraction.

    >>> codec = RandomK(4, 0.5).keyed(torch.tensor([7]))
    >>> wire = codec.encode(torch.tensor([[1.0, -3.0, 0.5, 2.0]]))
    >>> wire.shape, int(codec.decode(wire, torch.float32).count_nonzero())
    (torch.Size([1, 16]), 2)
    """

    size: int
    """D, the number of entries."""
    fraction: float
    """Fraction of the entries that is sent, rounded up."""
    unbiased: bool = False
    """Whether values are multiplied by D/K."""
    key_E: Tensor | None = field(default=None, compare=False, repr=False)
    draws = True
    number = 4

    @property
    def _count(self) -> int:
        return kept(self.size, self.fraction)

    def message_bytes(self, dtype: torch.dtype) -> int:
        """The key and K values."""
        return KEY_BYTES + self._count * dtype.itemsize

    def keyed(self, key_E: Tensor) -> Self:
        """Draws with these keys."""
        return replace(self, key_E=key_E)

    def encode(self, m_ED: Tensor) -> Tensor:
        """The key, then the values in order of position."""
        key_E = checked_keys(self.key_E, m_ED)
        values_EK = m_ED.gather(1, self._places(key_E))
        if self.unbiased:
            values_EK = values_EK * (self.size / self._count)
        return torch.cat([key_E[:, None].view(torch.uint8), values_EK.view(torch.uint8)], 1)

    def decode(self, wire_EB: Tensor, dtype: torch.dtype) -> Tensor:
        """Each value at the position given by the key."""
        key_E = _values(wire_EB[:, :KEY_BYTES], torch.int64)[:, 0]
        values_EK = _values(wire_EB[:, KEY_BYTES:], dtype)
        m_ED = torch.zeros(len(wire_EB), self.size, dtype=dtype, device=wire_EB.device)
        return m_ED.scatter_(1, self._places(key_E), values_EK)

    def _places(self, key_E: Tensor) -> Tensor:
        bits_ED = random_bits(key_E, self.size)
        return bits_ED.topk(self._count, dim=1, largest=False).indices.sort(1).values


def checked_keys(key_E: Tensor | None, m_ED: Tensor) -> Tensor:
    """The keys of the messages, checked to be one for each."""
    if key_E is None or len(key_E) != len(m_ED):
        found = "none" if key_E is None else str(len(key_E))
        raise ParleyError(
            f"codec: it is random and needs a key for each of {len(m_ED)} messages, but {found} "
            "were given; hood.keyed(codec) provides those of this step"
        )
    return key_E.to(m_ED.device)
