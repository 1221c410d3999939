"""Bits: packing numbers of a few bits into bytes, and random bits that follow from a key.

Axes: E messages, D entries, B bytes.
"""

from functools import lru_cache

import torch
from torch import Tensor

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


def packed_bytes(count: int, width: int) -> int:
    """The bytes that `count` numbers of `width` bits take."""
    return (count * width + 7) // 8


def pack_numbers(values_ED: Tensor, width: int) -> Tensor:
    """Numbers from 0 to 2^width - 1, one after the other, lowest bits first.

    >>> pack_numbers(torch.tensor([[1, 2, 3]]), 4)  # 3 is alone in its byte
    tensor([[33,   3]], dtype=torch.uint8)
    """
    if 8 % width == 0:  # whole numbers fit into bytes: no bit by bit
        each = 8 // width
        padded = torch.nn.functional.pad(values_ED, (0, -values_ED.shape[1] % each))
        shifts = torch.arange(each, device=values_ED.device) * width
        parts = padded.view(len(padded), padded.shape[1] // each, each).to(torch.int64) << shifts
        return parts.sum(2).to(torch.uint8)
    bits = (values_ED[..., None] >> torch.arange(width, device=values_ED.device)) & 1
    return pack_bits(bits.bool().flatten(1))


def unpack_numbers(packed_EB: Tensor, count: int, width: int) -> Tensor:
    """The inverse of `pack_numbers`, ``int64[E, count]``.

    >>> unpack_numbers(torch.tensor([[33, 3]], dtype=torch.uint8), 3, 4)
    tensor([[1, 2, 3]])
    """
    if 8 % width == 0:
        shifts = torch.arange(0, 8, width, device=packed_EB.device)
        parts = (packed_EB[..., None].to(torch.int64) >> shifts) & ((1 << width) - 1)
        return parts.flatten(1)[:, :count]
    bits = (packed_EB[..., None].to(torch.int64) >> torch.arange(8, device=packed_EB.device)) & 1
    bits = bits.flatten(1)[:, : count * width].view(len(packed_EB), count, width)
    return (bits << torch.arange(width, device=packed_EB.device)).sum(2)


def random_bits(key_E: Tensor, count: int) -> Tensor:
    """64 random bits for each entry of each message, ``int64[E, count]``.

    Entry d of a message with key k has SplitMix64's output for the state k + (d + 1) γ. It is a
    hash, not a stream: the same on every machine, and part of a wire format. No two entries of a
    message have the same bits.

    >>> random_bits(torch.tensor([0]), 1)  # the published first output for seed 0
    tensor([[-2152535657050944081]])
    """
    entry = torch.arange(1, count + 1, device=key_E.device)
    return _mix(key_E[:, None] + entry * _signed(0x9E3779B97F4A7C15))


def hashed(*parts: int | Tensor) -> Tensor:
    """One key from several numbers, each of which may be one number per message.

    >>> bool(hashed(1, torch.tensor([2, 3]), 4).unique().numel() == 2)
    True
    """
    key = torch.zeros(1, dtype=torch.int64)
    for part in parts:
        key = _mix(key ^ torch.as_tensor(part, dtype=torch.int64)) + _signed(0x9E3779B97F4A7C15)
    return key


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, a bijection on 64-bit numbers."""
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, by: int) -> Tensor:
    """Shifts right, filling with zeros: torch only has signed numbers."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
