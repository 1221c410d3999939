"""Links to other peers: dialled or accepted, encrypted, and mended when they break.

A carrier moves all bytes, by connections that it makes and that may break
(`parley.peers.switchboard`: over sockets and TLS, in a thread of its own). Whoever trains posts
messages, takes them from the mailbox, and reads what else has happened as events. A link that
breaks is dialled again by either end, and its session goes on where it was.
"""

import json
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from parley.errors import ParleyError
from parley.fabric.base import Buffer
from parley.fabric.messages import printable
from parley.peers.carrier import SHAKING_HANDS, Behind, Carrier, Event, Said
from parley.peers.connection import Connection, Refused
from parley.peers.file import Peers
from parley.peers.frames import (
    ACKNOWLEDGE,
    BYE,
    DATA,
    HELLO,
    MOST_LIFE,
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
HEARD = 4096
"""Messages for everyone that wait to be read; of more, the oldest are forgotten. What matters in
them is said again."""
Judge = Callable[[Mapping[str, Any]], str]
"""Says why a peer's hello is not acceptable; empty if it is."""


class Links:
    """All links of one peer."""

    def __init__(
        self,
        me: str,
        peers: Peers,
        carrier: Carrier,
        hello: Mapping[str, Any] | None = None,
        judge: Judge = lambda said: "",
        patience: float = 600.0,
        checking: bool = False,
        grows: bool = False,
    ) -> None:
        """`hello` is what this peer says about itself; `checking`: it only looks who is there;
        `grows`: peers with another revision of ``peers.toml`` are let in, and reported."""
        self.me = me
        self.peers = peers
        self.patience = patience
        self.hello = dict(hello or {})
        self.judge = judge
        self.checking = checking
        self.grows = grows
        self.life = secrets.token_hex(16)
        self.limit = CONTROL
        self.mailbox = Mailbox()
        self.changed = carrier.changed
        """Held while anything here is looked at or changed."""
        self.links = {name: Link(name) for name in peers.names if name != self.me}
        self.hellos: dict[str, Mapping[str, Any]] = {}
        """What others have said about themselves."""
        self.verdicts: dict[str, str] = {}
        """Why that is not acceptable; empty if it is."""
        self.failure: ParleyError | None = None
        """Raised by whoever waits, once set."""
        self._parting = self.patience  # in which a peer that is removed may still vote
        self._last_words = ""
        self._events: deque[Event] = deque(maxlen=HEARD)
        self._flood = Flood(me, self.life)
        self._carrier = carrier
        self.now = carrier.now
        carrier.start(self)

    # --- for whoever trains ------------------------------------------------------------------

    def want(self, names: Sequence[str]) -> None:
        """Keeps links to these peers, from now on and to no others."""
        with self.changed:
            now = self.now()
            for link in self.links.values():
                if link.name in names and not link.wanted:
                    link.since = now
                link.wanted = link.name in names
        self._carrier.wake()

    def post(
        self, name: str, lane: int, generation: int, number: int, parts: Sequence[Buffer]
    ) -> None:
        """Sends a message, now or when the link is there again."""
        with self.changed:
            self._post(self.links[name], lane, generation, number, parts)
        self._carrier.wake()

    def reserve(self, name: str, lane: int, generation: int, number: int, at: memoryview) -> None:
        """A message that will be taken had best be put there."""
        with self.changed:
            self.mailbox.reserve(lane, generation, name, number, at)

    def take(
        self, name: str, lane: int, generation: int, number: int, seconds: float = 0.0
    ) -> memoryview | None:
        """The message of that number, if it has come; waits a moment for it, or until something
        else has happened."""
        with self.changed:
            body = self._taken(name, lane, generation, number)
            if body is None and not self._events:
                self.changed.wait(seconds)
                body = self._taken(name, lane, generation, number)
            connection = self.links[name].connection
            if body is not None and connection is not None and connection.paused:
                self._pause(self.links[name])
                self._carrier.wake()
        return body

    def _taken(self, name: str, lane: int, generation: int, number: int) -> memoryview | None:
        if self.failure is not None:
            raise self.failure
        return self.mailbox.take(lane, generation, name, number)

    def lost(self, name: str, began: float) -> str | None:
        """Why a peer counts as gone for somebody who has waited since `began`, if it does."""
        with self.changed:
            return self.links[name].lost(self.now(), began, self.patience)

    def events(self) -> list[Event]:
        """What has happened since this was asked last."""
        if not self._events:
            return []
        with self.changed:
            events = list(self._events)
            self._events.clear()
        return events

    def wait(self, seconds: float) -> None:
        """Returns when something has happened, or after so many seconds."""
        with self.changed:
            if not self._events:
                self.changed.wait(seconds)

    def announce(self, **said: Any) -> None:
        """From now on this peer says this about itself as well, to whoever it is linked with."""
        with self.changed:
            self.hello |= said

    def say_at_last(self, words: str) -> None:
        """Why this peer leaves, for the others."""
        self._last_words = words

    def let_go(self) -> None:
        """Whoever is removed has voted for the last time."""
        self._parting = PARTING

    def troubles(self, names: Iterable[str]) -> dict[str, str]:
        """Those of some peers that are not connected just now, and why not, as far as is known."""
        with self.changed:
            away = [self.links[name] for name in names if self.links[name].connection is None]
            return {link.name: link.trouble or "it did not call" for link in away}

    def flood(self, message: Any) -> None:
        """Tells every peer that can be reached, directly or through others."""
        with self.changed:
            self._pass_on(self._flood.say(message), "")
        self._carrier.wake()

    def fail(self, error: ParleyError) -> None:
        """Whoever waits for a message here gives up."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def begin(self, generation: int) -> None:
        """A new generation: older messages do not count, nor who was started anew before."""
        with self.changed:
            self.mailbox.begin(generation)
            for link in self.links.values():
                link.restarted = False
                if link.connection is not None:
                    self._pause(link)
        self._carrier.wake()

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
            self.peers = peers
            self._carrier.revise(peers)
            for peer in peers.peer:
                if peer.name != self.me and peer.name not in self.links:
                    self.links[peer.name] = Link(peer.name)
                link = self.links.get(peer.name)
                if link is not None and peer.removed and not link.removed:
                    link.removed = f"revision {peers.revision} of peers.toml removes it"
                    link.removed_at = self.now()
                    self._parting = self.patience
            self.changed.notify_all()
        self._carrier.wake()

    def until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Waits until something holds of the links; False if it does not in time."""
        deadline = self.now() + seconds
        with self.changed:
            while not ready():
                if self.failure is not None:
                    raise self.failure
                if self.now() > deadline:
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
                    said = json.dumps({"words": self._last_words}).encode()
                    frame = Frame(BYE, len(said), link.session.sent, link.session.received)
                    link.connection.put(frame, [said])
        self._carrier.end()

    # --- what the switchboard tells ------------------------------------------------------------

    def dropped(self, connection: Connection, why: str) -> None:
        """A connection has ended; a link that it carried is dialled again."""
        name = connection.name or connection.dialled
        link = self.links.get(name or "")
        if link is not None and link.connection is connection:
            link.connection, link.since = None, self.now()
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
        for connection in list(self._carrier.connections):
            used = self.links.get(connection.name or "")
            in_use = connection.ready and used is not None and used.connection is connection
            if not in_use and now - connection.begun > SHAKING_HANDS:
                self._carrier.drop(connection, "it did not say who it is in time", True)
        silence = max(3.0, min(self.patience / 2, 15.0))
        for link in self.links.values():
            current = link.connection
            if current is None:
                if link.wanted and link.left is None and not link.removed:
                    self._dial(link, now)
                continue
            if link.removed and now - link.removed_at > self._parting:
                self._carrier.drop(current, link.removed)
            elif now - current.heard > silence and not current.paused:
                self._carrier.drop(current, f"it was silent for {silence:g} seconds", True)
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
        if address is None or now < link.next_dial or self._carrier.dials(link.name):
            return
        later = 0.0 if self.me < link.name else RETRY  # both need not dial at the same moment
        if not link.failures and now - link.since < later:
            return
        link.failures += 1
        link.next_dial = now + min(RETRY * 2.0 ** (link.failures - 1), 10.0)
        self._carrier.dial(link.name, address)

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
        why = self.judge(said) or link.removed or self.peers.differs(said, self.grows)
        link.trouble = self.verdicts[link.name] = why
        link.wanted = link.wanted and not self.checking
        self.changed.notify_all()
        if why:
            raise Refused(why)
        if self.checking or said.get("checking"):
            for other in list(self._carrier.connections):  # one look at a time is enough
                if other.ready and other.name == link.name and other is not link.connection:
                    self._carrier.drop(other, "")
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
            young = self.now() - link.since < YOUNG
            if young and kept == first and dialler != first:
                self._carrier.drop(connection, "")  # both have dialled, and one is enough
                return
        if link.life != life:
            if link.life:
                link.restarted = True
                link.session = Session()
                self.mailbox.forget(link.name)
            link.life, link.told = life, 0
        again = link.session.resume(received if yours == self.life else 0)
        link.left = None
        link.connection, link.since = connection, self.now()
        if old is not None:
            self._carrier.drop(old, "")
        connection.ready, connection.limit = True, self.limit
        link.failures, link.told, link.unsaid = 0, link.session.received, 0
        for kept_frame in again:
            self._put(link, kept_frame)
        log.debug("link to %s at %s", link.name, connection.where)
        if self.grows and said.get("revision") != self.peers.revision:
            self._events.append(Behind(link.name))
        self.changed.notify_all()

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
        if (said := self._flood.read(body)) is not None:
            self._pass_on(body, came_from)
            self._events.append(Said(*said))
            self.changed.notify_all()

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
        link.told, link.unsaid, link.spoke = link.session.received, 0, self.now()

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
            self._carrier.read_on(link.connection)
