"""Links to other peers: dialled or accepted, encrypted, and mended when they break.

The thread of the switchboard moves all bytes. Whoever trains posts messages and takes them from the
mailbox. A link that breaks is dialled again by either end, and its session goes on where it was.
"""

import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from parley.errors import BadValue, ParleyError
from parley.fabric.base import Buffer, WorkerLost
from parley.fabric.messages import printable
from parley.peers import keys
from parley.peers.connection import Connection, Refused, Security
from parley.peers.file import Peers, listening
from parley.peers.frames import (
    ACKNOWLEDGE,
    BYE,
    DATA,
    HELLO,
    BadFrame,
    Flood,
    Frame,
    Kept,
    Session,
    parsed,
    shown,
)
from parley.peers.link import Link
from parley.peers.mailbox import ENVELOPE, FLOOD, LANES, Mailbox, space
from parley.peers.switchboard import SHAKING_HANDS, Switchboard, listening_socket

log = logging.getLogger(__name__)

BEAT = 1.0
"""Seconds after which a silent link says that it is there."""
RETRY = 0.2
"""Seconds between two attempts to dial, and twice as many after each failure, up to ten seconds."""
PARTING = 2.0
"""Seconds in which a peer without which the others have gone on can still be told so."""
YOUNG = 5.0
"""Seconds in which two connections of the same peers may be due to both having dialled."""
AT_ONCE = 8 << 20
"""Bytes after which they are acknowledged without waiting for something else to send."""
CONTROL = 16 << 20
"""Bytes of the longest frame before the model is known."""
WAITING = 64 << 20
"""Bytes from one peer that may wait in the mailbox; a peer that sends more has to wait itself."""
FLOODING = 8 << 20
"""Bytes for everyone that a peer may send in a second; whoever sends more has to wait as well."""
EACH = 1024
"""Bytes that a message for everyone costs, however short it is."""
MOST_LIFE = 64
"""Characters that name a peer's start."""

Judge = Callable[[Mapping[str, Any]], str]
"""Says why a peer's hello is not acceptable; empty if it is."""


class Links:
    """All links of one peer."""

    def __init__(
        self,
        identity: keys.Identity,
        peers: Peers,
        hello: Mapping[str, Any] | None = None,
        judge: Judge = lambda said: "",
        patience: float = 600.0,
        listen: str | None = None,
        checking: bool = False,
    ) -> None:
        """`hello` is what this peer says about itself; `checking`: it only looks who is there."""
        self.me = identity.name
        self.peers = peers
        self.patience = patience
        self.hello = dict(hello or {})
        self.judge = judge
        self.checking = checking
        self.life = secrets.token_hex(16)
        self.limit = CONTROL
        self.mailbox = Mailbox()
        self.changed = threading.Condition()
        """Held while anything here is looked at or changed."""
        self.links = {name: Link(name) for name in peers.names if name != self.me}
        self.hellos: dict[str, Mapping[str, Any]] = {}
        """What others have said about themselves."""
        self.verdicts: dict[str, str] = {}
        """Why that is not acceptable; empty if it is."""
        self.failure: ParleyError | None = None
        """Raised by whoever waits, once set."""
        self.listeners: list[Callable[[str, Any], None]] = []
        """Told of messages for everyone: who sent it, and what."""
        self.behind: Callable[[], None] | None = None
        """Told that a peer has an older peers.toml; None: such peers are not let in."""
        self.parting = self.patience
        """Seconds for which a peer that is removed may still vote."""
        self.ended = -1
        """The newest generation of which others have said that it is over."""
        self.last_words = ""
        """Why this peer leaves, if the others are to know."""
        self._security = Security(identity, peers, keys.read_certificate(identity.certificate))
        self._flood = Flood()
        self._floods = 0
        where = listening(peers.peer[peers.number(self.me)], listen)
        opened: socket.socket | None = None
        # Whoever only looks may do so beside a process that listens there already.
        with suppress(*[BadValue] * checking):
            opened = listening_socket(where) if where is not None else None
        self._board = Switchboard(self, self._security, self.changed, opened)
        self._board.start()

    # --- for whoever trains ------------------------------------------------------------------

    def want(self, names: Sequence[str]) -> None:
        """Keeps links to these peers, from now on and to no others."""
        with self.changed:
            now = time.monotonic()
            for link in self.links.values():
                if link.name in names and not link.wanted:
                    link.since = now
                link.wanted = link.name in names
        self._board.wake()

    def post(
        self, name: str, lane: int, generation: int, number: int, parts: Sequence[Buffer]
    ) -> None:
        """Sends a message, now or when the link is there again."""
        with self.changed:
            self._post(self.links[name], lane, generation, number, parts)
        self._board.wake()

    def reserve(self, name: str, lane: int, generation: int, number: int, at: memoryview) -> None:
        """A message that will be taken had best be put there."""
        with self.changed:
            self.mailbox.reserve(lane, generation, name, number, at)

    def take(self, name: str, lane: int, generation: int, number: int) -> memoryview:
        """The message of that number; waits for it as long as the patience lasts."""
        began = time.monotonic()
        with self.changed:
            link = self.links[name]
            while True:
                if self.failure is not None:
                    raise self.failure
                body = self.mailbox.take(lane, generation, name, number)
                if body is not None:
                    break
                if generation <= self.ended:
                    raise WorkerLost("peers: others have ended this generation")
                if (why := link.lost(began, self.patience)) is not None:
                    link.given_up = not link.restarted
                    raise WorkerLost(f"peers: lost {name} ({why})", (), True, [name])
                self.changed.wait(0.1)
            connection = link.connection
            if connection is not None and connection.paused:
                self._pause(link)
                self._board.wake()
        return body

    def flood(self, message: Any) -> None:
        """Tells every peer that can be reached, directly or through others."""
        with self.changed:
            self._floods += 1
            said = {"origin": self.me, "life": self.life, "number": self._floods, "said": message}
            self._flood.new(self.me, self.life, self._floods)
            self._pass_on(json.dumps(said).encode(), "")
        self._board.wake()

    def fail(self, error: ParleyError) -> None:
        """Whoever waits for a message here gives up."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def end(self, generation: int) -> None:
        """Nobody need wait for messages of this generation any longer."""
        with self.changed:
            self.ended = max(self.ended, generation)
            self.changed.notify_all()

    def begin(self, generation: int) -> None:
        """A new generation: older messages do not count, nor who was started anew before."""
        with self.changed:
            self.mailbox.begin(generation)
            for link in self.links.values():
                link.restarted = link.given_up = False
                if link.connection is not None:
                    self._pause(link)
        self._board.wake()

    def expect(self, longest: int) -> None:
        """Messages may be so long from now on."""
        with self.changed:
            self.limit = max(self.limit, longest + ENVELOPE.size)
            for link in self.links.values():
                if link.connection is not None:
                    link.connection.limit = self.limit

    def revise(self, peers: Peers) -> None:
        """From now on a newer ``peers.toml`` counts: newcomers are let in, and whoever is removed
        may only vote, on the connection that it has, until the others have gone on."""
        with self.changed:
            self.peers = self._security.peers = peers
            for peer in peers.peer:
                if peer.name != self.me and peer.name not in self.links:
                    self.links[peer.name] = Link(peer.name)
                link = self.links.get(peer.name)
                if link is not None and peer.removed and not link.removed:
                    link.removed = f"revision {peers.revision} of peers.toml removes it"
                    link.removed_at = time.monotonic()
                    self.parting = self.patience
            self.changed.notify_all()
        self._board.wake()

    def until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Waits until something holds of the links; False if it does not in time."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while not ready():
                if self.failure is not None:
                    raise self.failure
                if time.monotonic() > deadline:
                    return False
                self.changed.wait(0.05)
        return True

    def connected(self, name: str) -> bool:
        """Whether there is a link just now."""
        return self.links[name].connection is not None

    def close(self) -> None:
        """Waits a little until everything has arrived, says goodbye and closes all."""

        def arrived() -> bool:
            every = self.links.values()
            return not any(link.session.outstanding for link in every if link.connection)

        if self.failure is None:
            with suppress(ParleyError):
                self.until(arrived, min(self.patience, 10.0))
        with self.changed:
            for link in self.links.values():
                if link.connection is not None:
                    said = json.dumps({"words": self.last_words}).encode()
                    frame = Frame(BYE, len(said), link.session.sent, link.session.received)
                    link.connection.put(frame, [said])
        self._board.end()

    # --- what the switchboard tells ------------------------------------------------------------

    def dropped(self, connection: Connection, why: str) -> None:
        """A connection has ended; a link that it carried is dialled again."""
        name = connection.name or connection.dialled
        link = self.links.get(name or "")
        if link is not None and link.connection is connection:
            link.connection, link.since = None, time.monotonic()
            link.next_dial, link.failures = link.since + RETRY, 0
            log.debug("link to %s: %s", name, why)
        elif link is not None and connection.dialled and why:
            link.trouble = why
        self.changed.notify_all()

    def not_dialled(self, name: str, why: str) -> None:
        """Nobody could be reached at a peer's address."""
        self.links[name].trouble = why

    def tick(self, now: float) -> None:
        """What is due: to close what says nothing, to dial, and to show that this peer is there."""
        for connection in list(self._board.connections):
            used = self.links.get(connection.name or "")
            in_use = connection.ready and used is not None and used.connection is connection
            if not in_use and now - connection.begun > SHAKING_HANDS:
                self._board.drop(connection, "it did not say who it is in time", True)
        silence = max(3.0, min(self.patience / 2, 15.0))
        for link in self.links.values():
            current = link.connection
            if current is None:
                if link.wanted and link.left is None and not link.removed:
                    self._dial(link, now)
                continue
            if link.removed and now - link.removed_at > self.parting:
                self._board.drop(current, link.removed)
            elif now - current.heard > silence and not current.paused:
                self._board.drop(current, f"it was silent for {silence:g} seconds", True)
            elif link.told < link.session.received or now - link.spoke > BEAT:
                self._acknowledge(link, now)
            if current.paused and now - link.flooded_at > 1.0:
                link.flooded = 0
                self._pause(link)
        self.changed.notify_all()

    def _acknowledge(self, link: Link, now: float) -> None:
        assert link.connection is not None
        link.connection.put(Frame(ACKNOWLEDGE, 0, link.session.sent, link.session.received))
        link.told, link.unsaid, link.spoke = link.session.received, 0, now

    def _dial(self, link: Link, now: float) -> None:
        address = self.peers.peer[self.peers.number(link.name)].address
        if address is None or now < link.next_dial or self._board.dials(link.name):
            return
        later = 0.0 if self.me < link.name else RETRY  # both need not dial at the same moment
        if not link.failures and now - link.since < later:
            return
        link.failures += 1
        link.next_dial = now + min(RETRY * 2.0 ** (link.failures - 1), 10.0)
        self._board.dial(link.name, address)

    # --- frames ------------------------------------------------------------------------------

    def encrypted(self, connection: Connection) -> None:
        """The other end has proved who it is: says hello."""
        assert connection.name is not None
        with self.changed:
            self._say_hello(connection, self.links[connection.name])

    def _say_hello(self, connection: Connection, link: Link) -> None:
        said = {
            **self.hello,
            "from": self.me,
            "to": link.name,
            "life": self.life,
            "yours": link.life,
            "received": link.session.received,
            "peers": self.peers.digest(),
            "revision": self.peers.revision,
            "checking": self.checking,
        }
        body = json.dumps(said).encode()
        connection.put(Frame(HELLO, len(body), 0, 0), [body])

    def place(self, connection: Connection, length: int) -> memoryview:
        """Where a message that begins to arrive is to be put."""
        link = self.links[connection.name or ""]
        lane, generation, number = ENVELOPE.unpack(connection.envelope)
        with self.changed:
            if link.connection is not connection:
                return space(length)  # what comes beside the link is not kept
            return self.mailbox.place(lane, generation, link.name, number, length)

    def came(self, connection: Connection, frame: Frame, body: memoryview) -> None:
        """A frame is complete; of a message, what its envelope contains."""
        assert connection.name is not None
        with self.changed:
            link = self.links[connection.name]
            if frame.kind == HELLO:
                if connection.ready:
                    raise BadFrame("it said hello twice")
                self._on_hello(connection, link, parsed(body))
            elif link.connection is not connection:
                pass  # another connection has taken its place
            elif frame.kind == BYE:
                link.left = printable(str(parsed(body).get("words", "")))
                self.changed.notify_all()
            else:
                link.session.acknowledge(frame.acknowledged)
                if frame.kind == DATA:
                    self._on_data(connection, link, frame, body)
                else:
                    link.session.caught_up(frame.number)

    def _on_hello(self, connection: Connection, link: Link, said: Mapping[str, Any]) -> None:
        if (said.get("from"), said.get("to")) != (link.name, self.me):
            raise Refused(
                f"it has the certificate of {link.name} and says that it is "
                f"{shown(said.get('from'))}, calling {shown(said.get('to'))}"
            )
        self.hellos[link.name] = said
        why = self.judge(said) or link.removed or self._differs(said)
        link.trouble = self.verdicts[link.name] = why
        link.wanted = link.wanted and not self.checking
        self.changed.notify_all()
        if why:
            raise Refused(why)
        if self.checking or said.get("checking"):
            for other in list(self._board.connections):  # one look at a time is enough
                if other.ready and other.name == link.name and other is not link.connection:
                    self._board.drop(other, "")
            connection.ready = True  # both know what they wanted to know
            return
        life, yours, received = said.get("life"), said.get("yours"), said.get("received")
        if not (isinstance(life, str) and 0 < len(life) <= MOST_LIFE and isinstance(received, int)):
            raise Refused("its hello is incomplete")
        old = link.connection
        if old is not None and old.ready and life == link.life:
            first = min(self.me, link.name)
            dialler = self.me if connection.dialled else link.name
            kept = self.me if old.dialled else link.name
            young = time.monotonic() - link.since < YOUNG
            if young and kept == first and dialler != first:
                self._board.drop(connection, "")  # both have dialled, and one connection is enough
                return
        if link.life != life:
            if link.life:
                link.restarted = True
                link.session = Session()
                self.mailbox.forget(link.name)
            link.life, link.told = life, 0
        again = link.session.resume(received if yours == self.life else 0)
        link.left = None
        link.connection, link.since = connection, time.monotonic()
        if old is not None:
            self._board.drop(old, "")
        connection.ready, connection.limit = True, self.limit
        link.failures, link.told, link.unsaid = 0, link.session.received, 0
        for kept_frame in again:
            self._put(link, kept_frame)
        log.debug("link to %s at %s", link.name, connection.where)
        if self.behind is not None and said.get("revision") != self.peers.revision:
            self.behind()
        self.changed.notify_all()

    def _differs(self, said: Mapping[str, Any]) -> str:
        """Why another's ``peers.toml`` is not acceptable; one of another number can be."""
        if said.get("peers") == self.peers.digest():
            return ""
        theirs, ours = said.get("revision"), self.peers.revision
        if theirs == ours or not isinstance(theirs, int):
            return "its peers.toml differs from the one here"
        if self.behind is None or said.get("checking"):
            return f"its peers.toml is revision {theirs}, the one here is revision {ours}"
        return ""

    def _on_data(self, connection: Connection, link: Link, frame: Frame, body: memoryview) -> None:
        if not link.session.take(frame.number):
            return
        link.unsaid += len(body)
        if link.unsaid > AT_ONCE:
            self._acknowledge(link, connection.heard)
        lane, generation, number = ENVELOPE.unpack(connection.envelope)
        if link.removed and lane != FLOOD:
            return
        if lane not in LANES:
            raise BadFrame(f"a message on lane {lane}")
        if lane == FLOOD:
            self._on_flood(link.name, bytes(body))
            self._slow_down(link, len(body), connection.heard)
            return
        if not self.mailbox.put(lane, generation, link.name, number, body):
            raise BadFrame(f"message {number} came twice")
        self._pause(link)
        self.changed.notify_all()

    def _on_flood(self, came_from: str, body: bytes) -> None:
        said = parsed(body)
        origin, life, number = said.get("origin"), said.get("life"), said.get("number")
        if not (isinstance(origin, str) and isinstance(life, str) and isinstance(number, int)):
            raise BadFrame("a message for everyone without a sender")
        if not (keys.NAMES.fullmatch(origin) and len(life) <= MOST_LIFE and 0 < number < 1 << 63):
            raise BadFrame("a message for everyone without a sender")
        if not self._flood.new(origin, life, number):
            return
        self._pass_on(body, came_from)
        for listener in self.listeners:
            listener(origin, said.get("said"))

    def _pass_on(self, body: bytes, came_from: str) -> None:
        for link in self.links.values():
            if link.connection is not None and link.name != came_from:
                self._post(link, FLOOD, 0, 0, [body])

    def _post(
        self, link: Link, lane: int, generation: int, number: int, parts: Sequence[Buffer]
    ) -> None:
        kept = link.session.post([ENVELOPE.pack(lane, generation, number), *parts])
        if link.connection is not None:
            self._put(link, kept)

    def _put(self, link: Link, kept: Kept) -> None:
        assert link.connection is not None
        frame = Frame(DATA, kept.length(), kept.number, link.session.received)
        link.connection.put(frame, kept.parts)
        link.told, link.unsaid, link.spoke = link.session.received, 0, time.monotonic()

    def _slow_down(self, link: Link, length: int, now: float) -> None:
        """Counts what a peer says to everyone, which costs everyone something."""
        if now - link.flooded_at > 1.0:
            link.flooded, link.flooded_at = 0, now
        link.flooded += length + EACH
        if link.flooded > FLOODING and link.connection is not None:
            self._pause(link)

    def _pause(self, link: Link) -> None:
        """Reads no more from a peer while too much of it waits; then goes on."""
        assert link.connection is not None
        was = link.connection.paused
        most = max(WAITING, 4 * self.limit)
        waiting = self.mailbox.waiting(link.name)
        link.connection.paused = waiting > most or link.flooded > FLOODING
        if was and not link.connection.paused:
            self._board.read_on(link.connection)
