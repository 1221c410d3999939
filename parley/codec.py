"""Wire formats: what a message looks like in bytes.

Axes: E messages, D flat parameters, B bytes of one message.

A codec turns values into the bytes that travel and back. Every message of a codec has the same
length, known to both ends from the model alone, so that a receiver can post its buffer early and
nothing has to be unpickled. Workers that live in one process run the same encode and decode, so
the arithmetic and the byte counts are those of the wire.
"""

import ctypes
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from parley import kernels


class Codec(ABC):
    """How the values of one edge are written as bytes."""

    number: int
    """Names the codec in a message's header."""

    @abstractmethod
    def message_bytes(self, dtype: torch.dtype) -> int:
        """Length of one encoded message."""

    @abstractmethod
    def encode(self, m_ED: Tensor) -> Tensor:
        """Values to bytes, ``uint8[E, B]``."""

    @abstractmethod
    def decode(self, wire_EB: Tensor, dtype: torch.dtype) -> Tensor:
        """Bytes to values, ``[E, D]``."""

    def take(self, p_ED: Tensor) -> Tensor:
        """Encodes `p_ED` and takes out of it what the message carries: the error stays."""
        wire_EB = self.encode(p_ED)
        p_ED.sub_(self.decode(wire_EB, p_ED.dtype))
        return wire_EB

    def round_trip(self, m_ED: Tensor) -> Tensor:
        """The values as a receiver sees them."""
        return self.decode(self.encode(m_ED), m_ED.dtype)


@dataclass(frozen=True)
class Dense(Codec):
    """The numbers as they are: 4 bytes an entry for float32. Encoding is a view, not a copy.

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


@dataclass(frozen=True)
class ScaledSign(Codec):
    """One bit an entry: ``(‖p‖₁ / d) · sgn(p)``, eight signs to a byte behind their scales.

    A bit has two values, so ``sgn(0) = +1`` here where the papers' arithmetic has 0. The two
    differ only on entries that are exactly zero (dead units), and error feedback takes up the
    difference in the next step.

    >>> codec = ScaledSign((4,))
    >>> wire = codec.encode(torch.tensor([[1.0, -2.0, 0.5, -0.5]]))
    >>> wire.shape, codec.decode(wire, torch.float32).tolist()
    (torch.Size([1, 5]), [[1.0, -1.0, 1.0, -1.0]])
    """

    sizes: tuple[int, ...]
    """Entries under each scale: ``(D,)`` for one scale over the whole vector, or one size for
    every parameter tensor."""
    number = 2

    def message_bytes(self, dtype: torch.dtype) -> int:
        """``⌈D/8⌉`` bytes of signs and one number for each scale."""
        return len(self.sizes) * dtype.itemsize + (sum(self.sizes) + 7) // 8

    def encode(self, m_ED: Tensor) -> Tensor:
        """Scales, then signs."""
        m_ED = m_ED.contiguous()  # or the rounding of a mean would depend on the strides
        if _compiled(m_ED):
            length = self.message_bytes(m_ED.dtype)
            wire_EB = torch.empty(len(m_ED), length, dtype=torch.uint8)
            kernels.library().parley_encode_signs(
                m_ED.data_ptr(), len(m_ED), self._sizes, len(self.sizes), wire_EB.data_ptr()
            )
            return wire_EB
        scales_ES = torch.stack([part.abs().mean(1) for part in m_ED.split(self.sizes, 1)], 1)
        return torch.cat([scales_ES.view(torch.uint8), pack_bits(m_ED >= 0)], 1)

    def decode(self, wire_EB: Tensor, dtype: torch.dtype) -> Tensor:
        """Each sign times its scale."""
        m_ED = torch.empty(len(wire_EB), sum(self.sizes), dtype=dtype, device=wire_EB.device)
        if _compiled(m_ED):
            self._decode(wire_EB, m_ED, subtract=False)
            return m_ED
        split = len(self.sizes) * dtype.itemsize
        # A copy: the bytes of a slice need not lie where a number may start.
        scales_ES = wire_EB[:, :split].clone(memory_format=torch.contiguous_format).view(dtype)
        m_ED.copy_(unpack_signs(wire_EB[:, split:], sum(self.sizes), dtype))
        for part, scale_E in zip(m_ED.split(self.sizes, 1), scales_ES.unbind(1), strict=True):
            part.mul_(scale_E[:, None])
        return m_ED

    def take(self, p_ED: Tensor) -> Tensor:
        """As `Codec.take`, with no values made in between where the kernels can be used."""
        if not (_compiled(p_ED) and p_ED.is_contiguous()):
            return super().take(p_ED)
        wire_EB = self.encode(p_ED)
        self._decode(wire_EB, p_ED, subtract=True)
        return wire_EB

    def _decode(self, wire_EB: Tensor, m_ED: Tensor, subtract: bool) -> None:
        wire_EB = wire_EB.contiguous()
        kernels.library().parley_decode_signs(
            wire_EB.data_ptr(), len(m_ED), self._sizes, len(self.sizes), m_ED.data_ptr(), subtract
        )

    @cached_property
    def _sizes(self) -> "ctypes.Array[ctypes.c_int64]":
        return (ctypes.c_int64 * len(self.sizes))(*self.sizes)


def _compiled(values: Tensor) -> bool:
    """Whether the compiled kernels can take these; they compute the same, up to rounding."""
    return values.dtype == torch.float32 and values.is_cpu and kernels.available()


# Eight bytes that are each 0 or 1, read as one little-endian 64-bit number and multiplied by this,
# have their eight bits side by side in the top byte: byte i moves by 56 - 7i bits, every other
# partial product falls outside the top byte, and no two of them meet, so nothing carries.
_GATHER_BITS = sum(1 << (56 - 7 * i) for i in range(8))


def pack_bits(bits_ED: Tensor) -> Tensor:
    """Booleans to ``uint8[E, ⌈D/8⌉]``, the first of each eight in the lowest bit.

    >>> pack_bits(torch.tensor([[True, False, True, False, False, False, False, False, True]]))
    tensor([[5, 1]], dtype=torch.uint8)
    """
    padded = torch.nn.functional.pad(bits_ED, (0, -bits_ED.shape[1] % 8))
    return ((padded.contiguous().view(torch.int64) * _GATHER_BITS) >> 56).to(torch.uint8)


@lru_cache
def _sign_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Row b: the eight signs, +1 or -1, that the bits of byte b stand for."""
    bytes_ = torch.arange(256, device=device)
    bits = (bytes_[:, None] >> torch.arange(8, device=device)) & 1
    return (2 * bits - 1).to(dtype)


def unpack_signs(packed_EB: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """The inverse of `pack_bits`, as +1 and -1.

    >>> unpack_signs(torch.tensor([[5]], dtype=torch.uint8), 3, torch.float32)
    tensor([[ 1., -1.,  1.]])
    """
    signs = _sign_table(dtype, packed_EB.device)[packed_EB.int()]
    return signs.flatten(1)[:, :size].contiguous()
