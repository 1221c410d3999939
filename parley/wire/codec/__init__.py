"""Wire formats: what a message looks like in bytes.

    build("topk:0.01", sizes)    what a config or the command line writes
    TopK(sizes, 0.01)            the same from Python

A codec turns values into the bytes that travel and back. Every message of a codec has the same
length, known to both ends from the model alone, so that a receiver can post its buffer early and
no Python objects have to be deserialised. Agents in one process use the same encoding and decoding,
so the arithmetic and the byte counts are those of the wire.
"""

from collections.abc import Callable, Sequence

from parley.errors import BadValue, unknown_name
from parley.wire.codec.base import Codec
from parley.wire.codec.bits import hashed, pack_bits, unpack_signs
from parley.wire.codec.dense import Dense, Half
from parley.wire.codec.qsgd import BUCKET, NUMBERS, QSGD
from parley.wire.codec.sign import ScaledSign
from parley.wire.codec.sparse import RandomK, TopK

__all__ = [
    "EXAMPLES",
    "QSGD",
    "Codec",
    "Dense",
    "Half",
    "RandomK",
    "ScaledSign",
    "TopK",
    "build",
    "hashed",
    "pack_bits",
    "unpack_signs",
]


def _no_arguments(text: str) -> None:
    if text:
        raise ValueError("takes no arguments")


def _fraction(text: str) -> float:
    fraction = float(text)
    if not 0 < fraction <= 1:
        raise ValueError("not a fraction")
    return fraction


def _dense(text: str, sizes: tuple[int, ...]) -> Codec:
    _no_arguments(text)
    return Dense(sum(sizes))


def _half(text: str, sizes: tuple[int, ...]) -> Codec:
    _no_arguments(text)
    return Half(sum(sizes))


def _sign(text: str, sizes: tuple[int, ...]) -> Codec:
    _no_arguments(text)
    return ScaledSign(sizes)


def _topk(text: str, sizes: tuple[int, ...]) -> Codec:
    return TopK(sizes, _fraction(text))


def _randomk(text: str, sizes: tuple[int, ...]) -> Codec:
    fraction, _, form = text.partition(",")
    if form not in ("", "unbiased"):
        raise ValueError("unknown form")
    return RandomK(sum(sizes), _fraction(fraction), form == "unbiased")


def _qsgd(text: str, sizes: tuple[int, ...]) -> Codec:
    bits, comma, bucket = text.partition(",")
    per_scale = int(bucket) if comma else BUCKET
    if int(bits) not in NUMBERS or per_scale < 1:
        raise ValueError("unknown width")
    return QSGD(sum(sizes), int(bits), min(per_scale, sum(sizes)))


_FAMILIES: dict[str, tuple[str, Callable[[str, tuple[int, ...]], Codec]]] = {
    "dense": ("dense", _dense),
    "fp16": ("fp16", _half),
    "sign": ("sign", _sign),
    "topk": ("topk:0.01 (0 < fraction <= 1)", _topk),
    "randomk": ("randomk:0.01 or randomk:0.01,unbiased (0 < fraction <= 1)", _randomk),
    "qsgd": ("qsgd:8, qsgd:4, qsgd:2, or with a bucket size qsgd:4,512", _qsgd),
}

EXAMPLES = ("dense", "fp16", "sign", "topk:0.01", "randomk:0.01", "qsgd:8")
"""How each codec is written in a config."""


def build(spec: str, sizes: Sequence[int], field: str = "codec") -> Codec:
    """The codec for a spec; `field` is the name used in errors.

    `sizes` are the numbers of entries of each parameter tensor, or ``[D]``: `sign` has a scale and
    `topk` a selection for each of them; the others treat the vector as a whole.

    >>> import torch
    >>> build("topk:0.01", [1000]).message_bytes(torch.float32)  # 10 values, 10 times 10 bits
    53
    >>> build("topk", [1000])
    Traceback (most recent call last):
    parley.errors.BadValue: codec: 'topk' is not valid; valid: topk:0.01 (0 < fraction <= 1)
    >>> build("qsdg:8", [1000])
    Traceback (most recent call last):
    parley.errors.BadValue: codec: 'qsdg' is not valid (did you mean 'qsgd'?); valid: ...
    """
    name, _, text = spec.strip().partition(":")
    if name not in _FAMILIES:
        raise unknown_name(field, name, _FAMILIES)
    example, make = _FAMILIES[name]
    try:
        return make(text, tuple(sizes))
    except ValueError:
        raise BadValue(field, spec, example) from None
