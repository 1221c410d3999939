"""What every codec can do, and error feedback around any of them.

Axes: E messages, D flat parameters, B bytes of one message.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor


class Codec(ABC):
    """How the values of one edge are encoded as bytes."""

    number: int
    """Identifies the codec in a message's header."""
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
        """Encodes `p_ED` and subtracts what the message carries: the error remains."""
        wire_EB = self.encode(p_ED)
        p_ED.sub_(self.decode(wire_EB, p_ED.dtype))
        return wire_EB

    def round_trip(self, m_ED: Tensor) -> Tensor:
        """The values as a receiver sees them."""
        return self.decode(self.encode(m_ED), m_ED.dtype)
