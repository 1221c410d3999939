"""What goes through a link: frames with numbers, and the memory that lets none be lost.

Nothing here opens a socket or asks for the time. A `Session` outlives the connections that carry
it: frames are numbered, kept until they are acknowledged, and sent again on the next connection.
"""

import json
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from parley.fabric.base import Buffer
from parley.fabric.messages import check_depth, printable
from parley.peers.keys import NAMES

HEADER = struct.Struct("<4sB3xQQQ")
"""Magic, kind, length, number, acknowledged: 32 bytes before every frame."""
MAGIC = b"PRLF"
HELLO, DATA, ACKNOWLEDGE, BYE = 1, 2, 3, 4
KINDS = (HELLO, DATA, ACKNOWLEDGE, BYE)
MOST_LIFE = 64
"""Characters that name a peer's start."""


class BadFrame(Exception):
    """What came is not what a peer sends; the connection that carried it is closed."""


class Frame(NamedTuple):
    """A frame's header."""

    kind: int
    length: int
    number: int
    """Of data, counted from 1; of an acknowledgement, the last number that was sent."""
    acknowledged: int
    """The last number that has come the other way."""

    def packed(self) -> bytes:
        """As it stands on the wire."""
        return HEADER.pack(MAGIC, *self)

    @classmethod
    def read(cls, header: Buffer, limit: int) -> "Frame":
        """Checked before anything is allocated for it.

        >>> Frame.read(Frame(DATA, 5, 1, 0).packed(), limit=10)
        Frame(kind=2, length=5, number=1, acknowledged=0)
        """
        magic, *fields = HEADER.unpack(header)
        frame = cls(*fields)
        if magic != MAGIC or frame.kind not in KINDS:
            raise BadFrame("it does not begin as a frame does")
        if frame.length > limit:
            raise BadFrame(f"a frame of {frame.length} bytes, where at most {limit} are expected")
        return frame


class Kept(NamedTuple):
    """A frame that may have to be sent again."""

    number: int
    parts: Sequence[Buffer]

    def length(self) -> int:
        """Bytes behind the header."""
        return sum(len(part) for part in self.parts)


class Session:
    """What two peers have sent each other since both were started.

    >>> ours, theirs = Session(), Session()
    >>> first, second = ours.post([b"a"]), ours.post([b"b"])
    >>> theirs.take(first.number), theirs.take(first.number)  # the second time it is not new
    (True, False)
    >>> [kept.parts for kept in ours.resume(theirs.received)]
    [[b'b']]
    """

    def __init__(self) -> None:
        self.sent = 0
        """Number of the last frame that was posted here."""
        self.acknowledged = 0
        """Number of the last one that the other side has."""
        self.received = 0
        """Number of the last one that has come from there."""
        self._kept: deque[Kept] = deque()

    def post(self, parts: Sequence[Buffer]) -> Kept:
        """Numbers a frame and keeps it until it is acknowledged."""
        self.sent += 1
        kept = Kept(self.sent, parts)
        self._kept.append(kept)
        return kept

    def take(self, number: int) -> bool:
        """Whether a frame that has come is new; one that was missed in between is an error."""
        if number <= self.received:
            return False
        if number != self.received + 1:
            raise BadFrame(f"frame {number} came after frame {self.received}")
        self.received = number
        return True

    def caught_up(self, sent: int) -> None:
        """Checks that nothing is missing of what the other side says that it has sent before."""
        if sent > self.received:
            raise BadFrame(f"frame {self.received + 1} is missing")

    def acknowledge(self, number: int) -> None:
        """The other side has all frames up to this one."""
        if not self.acknowledged <= number <= self.sent:
            if number < self.acknowledged:
                return  # an older word that came late
            raise BadFrame(f"frame {number} was acknowledged, {self.sent} was the last")
        self.acknowledged = number
        while self._kept and self._kept[0].number <= number:
            self._kept.popleft()

    def resume(self, received: int) -> list[Kept]:
        """What to send again on a new connection, given what the other side has received."""
        if received < self.acknowledged:
            raise BadFrame(f"frame {received} is the last, {self.acknowledged} was acknowledged")
        self.acknowledge(received)
        return list(self._kept)

    @property
    def outstanding(self) -> int:
        """Frames that are not acknowledged yet."""
        return len(self._kept)


class Flood:
    """Messages for everyone: which have been seen already, so that each is passed on once.

    >>> ours, theirs = Flood("ward-a", "1"), Flood("ward-b", "2")
    >>> said = ours.say("hello")
    >>> theirs.read(said), theirs.read(said), ours.read(said)
    (('ward-a', 'hello'), None, None)
    """

    REMEMBERED = 4096

    def __init__(self, me: str, life: str) -> None:
        """`life` tells a start of this peer from an earlier one."""
        self._me, self._life, self._number = me, life, 0
        self._seen: set[tuple[str, str, int]] = set()
        self._order: deque[tuple[str, str, int]] = deque()

    def say(self, message: Any) -> bytes:
        """A message of this peer, as it goes from peer to peer."""
        self._number += 1
        self._new(self._me, self._life, self._number)
        who = {"origin": self._me, "life": self._life, "number": self._number}
        return json.dumps({**who, "said": message}).encode()

    def read(self, body: bytes) -> tuple[str, Any] | None:
        """Who says what, unless that has been seen."""
        said = parsed(body)
        origin, life, number = said.get("origin"), said.get("life"), said.get("number")
        if not (isinstance(origin, str) and isinstance(life, str) and isinstance(number, int)):
            raise BadFrame("a message for everyone without a sender")
        if not (NAMES.fullmatch(origin) and len(life) <= MOST_LIFE and 0 < number < 1 << 63):
            raise BadFrame("a message for everyone without a sender")
        return (origin, said.get("said")) if self._new(origin, life, number) else None

    def _new(self, origin: str, life: str, number: int) -> bool:
        mark = (origin, life, number)
        if mark in self._seen:
            return False
        self._seen.add(mark)
        self._order.append(mark)
        if len(self._order) > self.REMEMBERED:
            self._seen.discard(self._order.popleft())
        return True


def parsed(body: Buffer) -> dict[str, Any]:
    """The JSON object in a message from another peer; anything else is refused."""
    try:
        found = json.loads(bytes(body))
        check_depth(found)
    except (ValueError, RecursionError):
        raise BadFrame("it sent something that is not JSON") from None
    if not isinstance(found, dict):
        raise BadFrame("it sent JSON that is not an object")
    return found


def shown(text: Any) -> str:
    """Text from another peer as it may be printed: one short line without control characters.

    >>> shown("ward-a\\x1b[2J")
    'ward-a[2J'
    """
    return printable(str(text))[:80]
