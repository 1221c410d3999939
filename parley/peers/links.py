"""Links to other peers: dialled or accepted, encrypted, and mended when they break.

One thread moves all bytes. Whoever trains posts messages and takes them from the mailbox. A link
that breaks is dialled again by either end, and its session goes on where it was.
"""

import json
import logging
import secrets
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from parley.errors import BadValue, ParleyError
from parley.peers import keys
from parley.peers.connection import Connection, Refused, Security
from parley.peers.file import Peers, address_of, listening
from parley.peers.frames import (
    ACKNOWLEDGE,
    BYE,
    DATA,
    HELLO,
    BadFrame,
    Buffer,
    Flood,
    Frame,
    Kept,
    Session,
)
from parley.peers.mailbox import ENVELOPE, FLOOD, LANES, Mailbox
from parley.wire.transport import WorkerLost

log = logging.getLogger(__name__)

MOST_HALF_OPEN = 128
"""Connections that have not proved who they are; of more, the oldest are closed."""
SHAKING_HANDS = 10.0
"""Seconds in which a connection has to prove who it is."""
BEAT = 1.0
"""Seconds after which a silent link says that it is there."""
TICK = 0.05
"""Seconds between two looks at what is due."""
RETRY = 0.2
"""Seconds between two attempts to dial, and twice as many after each failure, up to ten seconds."""
YOUNG = 5.0
"""Seconds in which two connections of the same peers may be due to both having dialled."""
AT_ONCE = 1 << 20
"""Bytes after which they are acknowledged without waiting for something else to send."""
CONTROL = 16 << 20
"""Bytes of the longest frame before the model is known."""
WAITING = 64 << 20
"""Bytes from one peer that may wait in the mailbox; a peer that sends more has to wait itself."""
AGAIN = 60.0
"""Seconds for which the same complaint about the same address is not repeated."""

Judge = Callable[[Mapping[str, Any]], str]
"""Says why a peer's hello is not acceptable; empty if it is."""


@dataclass
class Link:
    """What is known of one other peer."""

    name: str
    session: Session = field(default_factory=Session)
    life: str = ""
    """Which start of the other peer the session is with."""
    connection: Connection | None = None
    since: float = 0.0
    """When the connection was made or lost."""
    told: int = 0
    """The last number that was acknowledged to it."""
    unsaid: int = 0
    """Bytes that have come since."""
    spoke: float = 0.0
    """When something was last sent to it."""
    wanted: bool = False
    dialling: bool = False
    next_dial: float = 0.0
    failures: int = 0
    trouble: str = ""
    """Why there is no connection, if that is known."""
    left: str | None = None
    """Its last words, if it has left of its own accord."""
    restarted: bool = False
    """Whether it has been started anew since the generation began."""
    given_up: bool = False
    """Whether somebody has waited for it in vain since then."""


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
        self.ended = -1
        """The newest generation of which others have said that it is over."""
        self.bytes_sent = 0
        certificate = keys.read_certificate(identity.certificate)
        self._security = Security(identity, peers, certificate)
        self._flood = Flood()
        self._floods = 0
        self._listener = self._listen(listening(peers.peer[peers.number(self.me)], listen))
        self._selector = selectors.DefaultSelector()
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._near, self._far = socket.socketpair()
        self._far.setblocking(False)
        self._selector.register(self._far, selectors.EVENT_READ, None)
        self._connections: dict[Connection, int] = {}
        self._again: set[Connection] = set()
        self._adopted: list[tuple[str, Any]] = []
        self._complaints: dict[tuple[str, str], float] = {}
        self._ending = False
        self._thread = threading.Thread(target=self._loop, name="parley-links", daemon=True)
        self._thread.start()

    # --- for whoever trains ------------------------------------------------------------------

    def want(self, names: Sequence[str]) -> None:
        """Keeps links to these peers, from now on and to no others."""
        with self.changed:
            now = time.monotonic()
            for link in self.links.values():
                if link.name in names and not link.wanted:
                    link.since = now
                link.wanted = link.name in names
        self._wake()

    def post(
        self, name: str, lane: int, generation: int, number: int, parts: Sequence[Buffer]
    ) -> None:
        """Sends a message, now or when the link is there again."""
        with self.changed:
            self._post(self.links[name], lane, generation, number, parts)
        self._wake()

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
                if (why := self._lost(link, began)) is not None:
                    link.given_up = not link.restarted
                    raise WorkerLost(f"peers: lost {name} ({why})", [self.peers.number(name)], True)
                self.changed.wait(0.1)
            connection = link.connection
            if connection is not None and connection.paused:
                self._pause(link)
                self._wake()
        return body

    def flood(self, message: Any) -> None:
        """Tells every peer that can be reached, directly or through others."""
        with self.changed:
            self._floods += 1
            said = {"origin": self.me, "life": self.life, "number": self._floods, "said": message}
            self._flood.new(self.me, self.life, self._floods)
            self._pass_on(json.dumps(said).encode(), "")
        self._wake()

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
        self._wake()

    def expect(self, longest: int) -> None:
        """Messages may be so long from now on."""
        with self.changed:
            self.limit = max(self.limit, longest + ENVELOPE.size)
            for link in self.links.values():
                if link.connection is not None:
                    link.connection.limit = self.limit

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

    def close(self, words: str = "") -> None:
        """Waits a little until everything has arrived, says goodbye and closes all."""

        def arrived() -> bool:
            live = [link for link in self.links.values() if link.connection is not None]
            return not any(link.session.outstanding for link in live)

        if self.failure is None:
            with suppress(ParleyError):
                self.until(arrived, min(self.patience, 10.0))
        with self.changed:
            for link in self.links.values():
                if link.connection is not None:
                    said = json.dumps({"words": words[:2000]}).encode()
                    frame = Frame(BYE, len(said), link.session.sent, link.session.received)
                    link.connection.put(frame, [said])
            self._ending = True
        self._wake()
        self._thread.join(5.0)

    # --- the thread --------------------------------------------------------------------------

    def _listen(self, where: tuple[str, int] | None) -> socket.socket | None:
        if where is None:
            return None
        try:
            family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
            made = socket.create_server(where, family=family, backlog=512)
        except OSError as error:
            if self.checking:
                return None
            reason = error.strerror or str(error)
            shown = f"{where[0] or '0.0.0.0'}:{where[1]}"
            raise BadValue(
                "listen", shown, "an address of this host with a free port", reason
            ) from None
        made.setblocking(False)
        return made

    def _wake(self) -> None:
        with suppress(OSError):
            self._near.send(b"\0")

    def _loop(self) -> None:
        ticked = 0.0
        try:
            while not self._ending:
                events = self._selector.select(0.0 if self._again else TICK)
                now = time.monotonic()
                for key, mask in events:
                    if key.fileobj is self._far:
                        with suppress(BlockingIOError):
                            self._far.recv(4096)
                    elif key.fileobj is self._listener:
                        self._accept(now)
                    else:
                        self._serve(key.data, mask, now)
                for connection in list(self._again):
                    self._serve(connection, selectors.EVENT_READ, now)
                if now - ticked > TICK:
                    ticked = now
                    with self.changed:
                        self._tick(now)
                for connection in list(self._connections):
                    self._flush(connection)
        except Exception as error:  # a fault of ours: nobody may wait for ever
            log.debug("links", exc_info=True)
            self.fail(ParleyError(f"peers: the links have failed: {error!r}"))
        finally:
            self._shut()

    def _shut(self) -> None:
        for connection in list(self._connections):
            with suppress(OSError):
                if connection.ready:
                    connection.sock.settimeout(0.5)
                    connection.writable()
            self._drop(connection, "")
        with self.changed:
            self._ending = True
            dialled = [sock for _, sock in self._adopted if isinstance(sock, socket.socket)]
        for one in (self._listener, self._near, self._far, *dialled):
            if one is not None:
                one.close()
        self._selector.close()

    def _accept(self, now: float) -> None:
        assert self._listener is not None
        for _ in range(64):
            try:
                sock, where = self._listener.accept()
            except OSError:
                return
            half_open = [c for c in self._connections if not c.ready and c.dialled is None]
            if len(half_open) >= MOST_HALF_OPEN:
                hosts = [c.where.rpartition(":")[0] for c in half_open]
                crowd = max(set(hosts), key=hosts.count)
                first = next(c for c, h in zip(half_open, hosts, strict=True) if h == crowd)
                self._complain(crowd, "it opens connections and says nothing")
                self._drop(first, "")
            self._adopt(sock, f"{where[0]}:{where[1]}", None, now)

    def _adopt(self, sock: socket.socket, where: str, dialled: str | None, now: float) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(
            sock, self._security, where, dialled, now, self._greet, self._on_frame
        )
        self._connections[connection] = selectors.EVENT_READ
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _serve(self, connection: Connection, mask: int, now: float) -> None:
        """Reads and writes what can be; closes what is not as it should be."""
        if connection not in self._connections:
            self._again.discard(connection)
            return
        try:
            before = connection.sock
            if mask & selectors.EVENT_WRITE:
                connection.writable()
            if mask & selectors.EVENT_READ:
                more = connection.readable(now)
                (self._again.add if more else self._again.discard)(connection)
            if connection.sock is not before:  # TLS has taken over
                interest = self._connections[connection]
                self._selector.unregister(before)
                self._selector.register(connection.sock, interest, connection)
        except (Refused, BadFrame, ParleyError, ssl.SSLError, OSError) as error:
            closed = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
            self._drop(connection, _words(error), closed)

    def _flush(self, connection: Connection) -> None:
        """Sends what waits, and asks to be told when more can be."""
        if connection not in self._connections:
            return
        try:
            if connection.wants_to_write:
                connection.writable()
        except (ssl.SSLError, OSError, Refused) as error:
            self._drop(connection, _words(error), True)
            return
        interest = 0 if connection.paused else selectors.EVENT_READ
        if connection.wants_to_write:
            interest |= selectors.EVENT_WRITE
        before = self._connections[connection]
        if interest == before:
            return
        if not interest:
            self._selector.unregister(connection.sock)
        elif not before:
            self._selector.register(connection.sock, interest, connection)
        else:
            self._selector.modify(connection.sock, interest, connection)
        self._connections[connection] = interest

    def _drop(self, connection: Connection, why: str, quietly: bool = False) -> None:
        """Closes a connection; a link that it carried is dialled again."""
        if connection not in self._connections:
            return
        del self._connections[connection]
        self._again.discard(connection)
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.close()
        name = connection.name or connection.dialled
        with self.changed:
            link = self.links.get(name or "")
            if link is not None and link.connection is connection:
                link.connection, link.since = None, time.monotonic()
                link.next_dial, link.failures = link.since + RETRY, 0
                log.debug("link to %s: %s", name, why)
            elif link is not None and connection.dialled and why:
                link.trouble = why
            self.changed.notify_all()
        if why and not quietly and connection.ready:
            log.warning("peers: the connection with %s was cut: %s", name, why)
        elif why and not quietly:
            host = connection.where.rpartition(":")[0]
            claim = f"{name} at {connection.where}" if connection.dialled else host
            if name and not connection.dialled:
                said = name if connection.encrypted else f"which claims to be {name}"
                claim = f"{host} ({said})"
            self._complain(claim, why)

    def _complain(self, who: str, why: str) -> None:
        """One line on who was not let in, now and then."""
        now = time.monotonic()
        if now - self._complaints.get((who, why), -AGAIN) < AGAIN:
            return
        if len(self._complaints) > 1000:
            self._complaints.clear()
        self._complaints[who, why] = now
        log.warning("peers: %s is not let in: %s", who, why)

    # --- what is due -------------------------------------------------------------------------

    def _tick(self, now: float) -> None:
        for connection in list(self._connections):
            used = self.links.get(connection.name or "")
            in_use = connection.ready and used is not None and used.connection is connection
            if not in_use and now - connection.begun > SHAKING_HANDS:
                self._drop(connection, "it did not say who it is in time", True)
        for name, sock in self._adopted:
            link = self.links[name]
            link.dialling = False
            if isinstance(sock, socket.socket):
                self._adopt(sock, self._address(name), name, now)
            else:
                link.trouble = str(sock)
        self._adopted.clear()
        silence = max(3.0, min(self.patience / 2, 15.0))
        for link in self.links.values():
            current = link.connection
            if current is None:
                if link.wanted and link.left is None:
                    self._dial(link, now)
                continue
            if now - current.heard > silence and not current.paused:
                self._drop(current, f"it was silent for {silence:g} seconds", True)
            elif link.told < link.session.received or now - link.spoke > BEAT:
                self._acknowledge(link, now)
        self.changed.notify_all()

    def _acknowledge(self, link: Link, now: float) -> None:
        assert link.connection is not None
        session = link.session
        link.connection.put(Frame(ACKNOWLEDGE, 0, session.sent, session.received))
        link.told, link.unsaid, link.spoke = session.received, 0, now

    def _address(self, name: str) -> str:
        return self.peers.peer[self.peers.number(name)].address or ""

    def _dial(self, link: Link, now: float) -> None:
        """Dials in a thread of its own, since finding an address can take its time."""
        under_way = any(c.dialled == link.name for c in self._connections)
        if link.dialling or under_way or now < link.next_dial or not self._address(link.name):
            return
        later = 0.0 if self.me < link.name else RETRY  # both need not dial at the same moment
        if not link.failures and now - link.since < later:
            return
        link.dialling = True
        link.failures += 1
        link.next_dial = now + min(RETRY * 2.0 ** (link.failures - 1), 10.0)
        where = address_of(self._address(link.name))

        def dial() -> None:
            found: Any
            try:
                found = socket.create_connection(where, timeout=SHAKING_HANDS)
            except OSError as error:
                found = f"{_words(error)} at {where[0]}:{where[1]}"
            with self.changed:
                if self._ending and isinstance(found, socket.socket):
                    found.close()
                else:
                    self._adopted.append((link.name, found))
            self._wake()

        threading.Thread(target=dial, daemon=True).start()

    # --- frames ------------------------------------------------------------------------------

    def _greet(self, connection: Connection) -> None:
        with self.changed:
            self._say_hello(connection)

    def _say_hello(self, connection: Connection) -> None:
        assert connection.name is not None
        link = self.links[connection.name]
        said = {
            **self.hello,
            "from": self.me,
            "to": link.name,
            "life": self.life,
            "yours": link.life,
            "received": link.session.received,
            "peers": self.peers.digest(),
            "checking": self.checking,
        }
        body = json.dumps(said).encode()
        connection.put(Frame(HELLO, len(body), 0, 0), [body])

    def _on_frame(self, connection: Connection, frame: Frame, body: memoryview) -> None:
        assert connection.name is not None
        with self.changed:
            link = self.links[connection.name]
            if frame.kind == HELLO:
                if connection.ready:
                    raise BadFrame("it said hello twice")
                self._on_hello(connection, link, _parsed(body))
            elif link.connection is not connection:
                pass  # another connection has taken its place
            elif frame.kind == BYE:
                link.left = str(_parsed(body).get("words", ""))
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
                f"it has the certificate of {link.name} and says that it is {said.get('from')}, "
                f"calling {said.get('to')}"
            )
        self.hellos[link.name] = said
        why = self.judge(said)
        if not why and said.get("peers") != self.peers.digest():
            why = "its peers.toml differs from the one here"
        link.trouble = self.verdicts[link.name] = why
        link.wanted = link.wanted and not self.checking
        self.changed.notify_all()
        if why:
            raise Refused(why)
        if self.checking or said.get("checking"):
            connection.ready = True  # both know what they wanted to know
            return
        life, yours, received = said.get("life"), said.get("yours"), said.get("received")
        if not (isinstance(life, str) and life and isinstance(received, int)):
            raise Refused("its hello is incomplete")
        old = link.connection
        if old is not None and old.ready and life == link.life:
            first = min(self.me, link.name)
            dialler = self.me if connection.dialled else link.name
            kept = self.me if old.dialled else link.name
            young = time.monotonic() - link.since < YOUNG
            if young and kept == first and dialler != first:
                self._drop(connection, "")  # both have dialled, and one connection is enough
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
            self._drop(old, "")
        connection.ready, connection.limit = True, self.limit
        link.failures, link.told, link.unsaid = 0, link.session.received, 0
        for kept_frame in again:
            self._put(link, kept_frame)
        log.debug("link to %s at %s", link.name, connection.where)
        self.changed.notify_all()

    def _on_data(self, connection: Connection, link: Link, frame: Frame, body: memoryview) -> None:
        if not link.session.take(frame.number):
            return
        link.unsaid += len(body)
        if link.unsaid > AT_ONCE:
            self._acknowledge(link, connection.heard)
        if len(body) < ENVELOPE.size:
            raise BadFrame("a message without an envelope")
        lane, generation, number = ENVELOPE.unpack_from(body)
        if lane not in LANES:
            raise BadFrame(f"a message on lane {lane}")
        if lane == FLOOD:
            self._on_flood(link.name, bytes(body[ENVELOPE.size :]))
            return
        if not self.mailbox.put(lane, generation, link.name, number, body[ENVELOPE.size :]):
            raise BadFrame(f"message {number} came twice")
        self._pause(link)
        self.changed.notify_all()

    def _on_flood(self, came_from: str, body: bytes) -> None:
        said = _parsed(body)
        origin, life, number = said.get("origin"), said.get("life"), said.get("number")
        if not (isinstance(origin, str) and isinstance(life, str) and isinstance(number, int)):
            raise BadFrame("a message for everyone that is from nobody")
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
        link.connection.put(frame, list(kept.parts))
        link.told, link.unsaid, link.spoke = link.session.received, 0, time.monotonic()
        self.bytes_sent += frame.length

    def _pause(self, link: Link) -> None:
        """Reads no more from a peer while too much of it waits; then goes on."""
        assert link.connection is not None
        was = link.connection.paused
        most = max(WAITING, 4 * self.limit)
        link.connection.paused = self.mailbox.waiting(link.name) > most
        if was and not link.connection.paused:
            self._again.add(link.connection)

    def _lost(self, link: Link, began: float) -> str | None:
        """Why a peer counts as gone for somebody who has waited since then, if it does."""
        now = time.monotonic()
        if link.restarted:
            return "it was started again"
        if link.left is not None:
            return f"it has left: {link.left}" if link.left else "it has left"
        if link.connection is None and now - max(link.since, began) > self.patience:
            why = f"no connection for {self.patience:g} seconds"
            return f"{why}: {link.trouble}" if link.trouble else why
        # Whoever waits for another itself is given the time to say so.
        if now - began > 1.5 * self.patience:
            return f"no answer for {1.5 * self.patience:g} seconds"
        return None


def _parsed(body: Buffer) -> dict[str, Any]:
    """JSON, and nothing else, and an object."""
    try:
        found = json.loads(bytes(body))
    except (ValueError, RecursionError):
        raise BadFrame("it sent something that is not JSON") from None
    if not isinstance(found, dict):
        raise BadFrame("it sent JSON that is not an object")
    return found


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate does not hold: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return str(error)
