"""Where messages from other peers wait until somebody asks for them.

What waits for whom is decided here and nowhere else: whoever takes a message names its sender,
lane, generation and number.
"""

import struct

import numpy as np

ENVELOPE = struct.Struct("<B3xIQ")
"""Lane, generation and number: 16 bytes before every message."""
FLOOD, PARCEL, TREE = 0, 1, 2
"""Lanes: for everyone; messages between agents; what all peers do together."""
LANES = (FLOOD, PARCEL, TREE)
EACH = 512
"""Bytes that a message takes here besides its own."""


class Mailbox:
    """Messages by lane, generation, sender and number.

    >>> box = Mailbox()
    >>> box.put(PARCEL, 0, "ward-a", 1, memoryview(b"hello"))
    True
    >>> box.waiting("ward-a"), bytes(box.take(PARCEL, 0, "ward-a", 1)), box.waiting("ward-a")
    (517, b'hello', 0)
    """

    def __init__(self) -> None:
        self.generation = 0
        """Older messages than of this generation are of no use any more."""
        self._letters: dict[tuple[int, int, str], dict[int, memoryview]] = {}
        self._places: dict[tuple[int, int, str, int], memoryview] = {}
        self._bytes: dict[str, int] = {}

    def reserve(
        self, lane: int, generation: int, sender: str, number: int, place: memoryview
    ) -> None:
        """Where a message that is awaited had best be put, so that nobody has to copy it; unless it
        has come."""
        if number not in self._letters.get((lane, generation, sender), {}):
            self._places[lane, generation, sender, number] = place

    def place(
        self, lane: int, generation: int, sender: str, number: int, length: int
    ) -> memoryview:
        """Where to put a message that begins to arrive.

        A place is given once, and to the first that comes: whoever sends a message twice cannot
        change it once it is taken.
        """
        found = self._places.pop((lane, generation, sender, number), None)
        return found if found is not None and len(found) == length else space(length)

    def put(self, lane: int, generation: int, sender: str, number: int, body: memoryview) -> bool:
        """Keeps a message unless it comes too late; False if there is one of that number."""
        if generation < self.generation:
            return True
        letters = self._letters.setdefault((lane, generation, sender), {})
        if number in letters:
            return False
        letters[number] = body
        # Whatever comes under this number from now on must not reach what is taken here.
        self._places.pop((lane, generation, sender, number), None)
        self._bytes[sender] = self.waiting(sender) + len(body) + EACH
        return True

    def take(self, lane: int, generation: int, sender: str, number: int) -> memoryview | None:
        """The message of that number, if it has come."""
        letters = self._letters.get((lane, generation, sender), {})
        body = letters.pop(number, None)
        if body is not None:
            self._bytes[sender] -= len(body) + EACH
        return body

    def waiting(self, sender: str) -> int:
        """Bytes from this sender that nobody has taken yet."""
        return self._bytes.get(sender, 0)

    def begin(self, generation: int) -> None:
        """Drops what earlier generations have left."""
        self.generation = generation
        self._places.clear()
        self._drop([key for key in self._letters if key[1] < generation])

    def forget(self, sender: str) -> None:
        """Drops everything from a peer that has been started anew."""
        self._drop([key for key in self._letters if key[2] == sender])

    def _drop(self, keys: list[tuple[int, int, str]]) -> None:
        for key in keys:
            for body in self._letters.pop(key).values():
                self._bytes[key[2]] -= len(body) + EACH


def space(length: int) -> memoryview:
    """Room for so many bytes; not zeroed first, unlike a bytearray."""
    return np.empty(length, np.uint8).data
