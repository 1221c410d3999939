"""One bit per entry: signs with a common scale.

Axes: E messages, D flat parameters, B bytes of one message, S scales.
"""

import ctypes
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from parley.compute import kernels
from parley.wire.codec.base import Codec
from parley.wire.codec.bits import pack_bits, unpack_signs


@dataclass(frozen=True)
class ScaledSign(Codec):
    """One bit per entry: ``(‖p‖₁ / d) · sgn(p)``, the scales and then eight signs per byte.

    A bit has two values, so ``sgn(0) = +1`` here where the papers' arithmetic has 0. The two
    differ only on entries that are exactly zero (dead units), and error feedback corrects the
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
        # A copy: the bytes of a slice may not be aligned.
        scales_ES = wire_EB[:, :split].clone(memory_format=torch.contiguous_format).view(dtype)
        m_ED.copy_(unpack_signs(wire_EB[:, split:], sum(self.sizes), dtype))
        for part, scale_E in zip(m_ED.split(self.sizes, 1), scales_ES.unbind(1), strict=True):
            part.mul_(scale_E[:, None])
        return m_ED

    def take(self, p_ED: Tensor) -> Tensor:
        """Like `Codec.take`, without intermediate values where the kernels can be used."""
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
    """Whether the compiled kernels support these; they give the same result up to rounding."""
    return values.dtype == torch.float32 and values.is_cpu and kernels.available()
