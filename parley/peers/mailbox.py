"""Where messages from other peers wait until somebody asks for them.

What waits for whom is decided here and nowhere else: whoever takes a message names its sender,
lane, generation and number.
"""

import struct
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

ENVELOPE = struct.Struct("<B3xIQ")
"""Lane, generation and number: 16 bytes before every message."""
FLOOD, PARCEL, TREE = 0, 1, 2
"""Lanes: for everyone; messages between agents; what all peers do together."""
LANES = (FLOOD, PARCEL, TREE)


class Letter(NamedTuple):
    """A message that has come."""

    number: int
    body: memoryview


class Mailbox:
    """Messages by lane, generation and sender, each in the order in which it was sent.

    >>> box = Mailbox()
    >>> box.put(PARCEL, 0, "ward-a", Letter(1, memoryview(b"hello")))
    >>> box.waiting("ward-a"), bytes(box.take(PARCEL, 0, "ward-a").body), box.waiting("ward-a")
    (5, b'hello', 0)
    """

    def __init__(self) -> None:
        self.generation = 0
        """Older messages than of this generation are of no use any more."""
        self._letters: dict[tuple[int, int, str], deque[Letter]] = {}
        self._bytes: dict[str, int] = {}

    def put(self, lane: int, generation: int, sender: str, letter: Letter) -> None:
        """Keeps a message unless it comes too late."""
        if generation < self.generation:
            return
        self._letters.setdefault((lane, generation, sender), deque()).append(letter)
        self._bytes[sender] = self.waiting(sender) + len(letter.body)

    def take(self, lane: int, generation: int, sender: str) -> Letter | None:
        """The oldest that has not been taken, if there is one."""
        letters = self._letters.get((lane, generation, sender))
        if not letters:
            return None
        letter = letters.popleft()
        self._bytes[sender] -= len(letter.body)
        return letter

    def waiting(self, sender: str) -> int:
        """Bytes from this sender that nobody has taken yet."""
        return self._bytes.get(sender, 0)

    def begin(self, generation: int) -> None:
        """Drops what earlier generations have left."""
        self.generation = generation
        self._drop(key for key in list(self._letters) if key[1] < generation)

    def forget(self, sender: str) -> None:
        """Drops everything from a peer that has been started anew."""
        self._drop(key for key in list(self._letters) if key[2] == sender)

    def _drop(self, keys: Iterable[tuple[int, int, str]]) -> None:
        for key in list(keys):
            for letter in self._letters.pop(key):
                self._bytes[key[2]] -= len(letter.body)
