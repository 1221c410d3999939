"""What every codec can do, and error feedback around any of them.

Axes: E messages, D flat parameters, B bytes of one message.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor


class Codec(ABC):
    """How the values of one edge are written as bytes."""

    number: int
    """Names the codec in a message's header."""
    draws: ClassVar[bool] = False
    """Whether messages depend on random choices, for which it needs keys."""
    key_E: Tensor | None = None

    @abstractmethod
    def message_bytes(self, dtype: torch.dtype) -> int:
        """Length of one encoded message."""

    @abstractmethod
    def encode(self, m_ED: Tensor) -> Tensor:
        """Values to bytes, ``uint8[E, B]``."""

    @abstractmethod
    def decode(self, wire_EB: Tensor, dtype: torch.dtype) -> Tensor:
        """Bytes to values, ``[E, D]``."""

    def keyed(self, key_E: Tensor) -> Self:
        """The same codec with a key for each message, from which its random choices follow.

        Only codecs that draw at random look at it. The key is made of the seed, the step and the
        agents at both ends (`Neighbourhood.keyed`), so that a message does not depend on where
        it is computed; what is encoded twice with one key is the same message.
        """
        return self

    def take(self, p_ED: Tensor) -> Tensor:
        """Encodes `p_ED` and takes out of it what the message carries: the error stays."""
        wire_EB = self.encode(p_ED)
        p_ED.sub_(self.decode(wire_EB, p_ED.dtype))
        return wire_EB

    def round_trip(self, m_ED: Tensor) -> Tensor:
        """The values as a receiver sees them."""
        return self.decode(self.encode(m_ED), m_ED.dtype)


class Compensated(NamedTuple):
    """A message with what was held back before, and what it holds back itself."""

    wire_EB: Tensor
    e_ED: Tensor


class ErrorFeedback:
    """Adds to each message what earlier ones left out, whatever the codec.

        p = m + e;   δ = C(p);   e⁺ = p - δ

    What was sent and what is still held back always add up to all that was to be sent. After
    Seide et al., Interspeech 2014, and Karimireddy et al., ICML 2019. The error is the caller's
    to keep: it belongs to an algorithm's state.

    >>> from parley.wire.codec import build
    >>> feedback = ErrorFeedback(build("topk:0.5", [2]))
    >>> m_ED = torch.tensor([[3.0, 2.0]])
    >>> first = feedback.encode(m_ED, torch.zeros(1, 2))
    >>> second = feedback.encode(m_ED, first.e_ED)
    >>> [feedback.codec.decode(wire, m_ED.dtype).tolist() for wire, _ in (first, second)]
    [[[3.0, 0.0]], [[0.0, 4.0]]]
    >>> second.e_ED.tolist()
    [[3.0, 0.0]]
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def encode(self, m_ED: Tensor, e_ED: Tensor) -> Compensated:
        """The message for `m_ED` after the error `e_ED`, and the new error."""
        p_ED = m_ED + e_ED
        return Compensated(self.codec.take(p_ED), p_ED)

    def round_trip(self, m_ED: Tensor, e_ED: Tensor) -> tuple[Tensor, Tensor]:
        """What a receiver sees of `m_ED` after the error `e_ED`, and the new error."""
        wire_EB, e_ED = self.encode(m_ED, e_ED)
        return self.codec.decode(wire_EB, m_ED.dtype), e_ED
