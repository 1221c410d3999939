"""TLS in pieces: all bytes arrive, however little room there is, and an end is noticed."""

import selectors
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from parley.peers import keys
from parley.peers.connection import Security
from parley.peers.file import Peers
from parley.peers.mailbox import PARCEL, Mailbox
from parley.peers.switchboard import Switchboard
from parley.peers.tunnel import Tunnel
from tests.peers.groups import NAMES, write_group


@contextmanager
def ends(folder: Path) -> Iterator[tuple[Tunnel, Tunnel, socket.socket]]:
    """Both ends of a tunnel through little room, before the handshake, and the first's socket."""
    peers = Peers.read(write_group(folder, [[0], [1]]))
    securities = []
    for name in NAMES[:2]:
        identity = keys.find(name, folder)
        certificate = keys.read_certificate(identity.certificate)
        securities.append(Security(identity, peers, certificate))
    here, there = socket.socketpair()
    with here, there:
        for one in (here, there):
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        calls = Tunnel(here, securities[0].context(securities[1].certificate, False), False)
        serves = Tunnel(there, securities[1].context(securities[0].certificate, True), True)
        yield calls, serves, here


def shake_hands(calls: Tunnel, serves: Tunnel) -> None:
    done: set[Tunnel] = set()
    while len(done) < 2:
        for end in (calls, serves):
            if end.shake_hands():
                done.add(end)
            with suppress(BlockingIOError):
                end.flush()


def test_everything_arrives_though_there_is_little_room(tmp_path: Path) -> None:
    with ends(tmp_path) as (calls, serves, _):
        shake_hands(calls, serves)
        sent = memoryview(bytes(range(256)) * 4000)
        arrived = bytearray(len(sent))
        at = came = waits = 0
        while came < len(sent):
            try:
                at += calls.send(sent[at:]) if at < len(sent) else 0
                calls.flush()
            except BlockingIOError:
                waits += 1
            with suppress(BlockingIOError):
                came += serves.receive_into(memoryview(arrived)[came:])
        assert arrived == sent
        assert waits > 10  # there was no room for all of it
        assert not calls.unsent


def test_the_end_of_a_connection_is_noticed(tmp_path: Path) -> None:
    with ends(tmp_path) as (calls, serves, sock):
        shake_hands(calls, serves)
        calls.send(memoryview(b"goodbye"))
        sock.close()
        found = bytearray(100)
        assert serves.receive_into(memoryview(found)) == 7
        assert serves.receive_into(memoryview(found)) == 0


def test_an_end_in_the_middle_of_the_handshake_is_an_error(tmp_path: Path) -> None:
    with ends(tmp_path) as (calls, serves, sock):
        assert not calls.shake_hands()
        sock.close()
        with pytest.raises((ssl.SSLError, OSError)):
            for _ in range(3):
                serves.shake_hands()


def test_a_place_in_the_mailbox_is_given_once() -> None:
    box, place = Mailbox(), memoryview(bytearray(3))
    box.reserve(PARCEL, 0, "ward-a", 1, place)
    assert box.place(PARCEL, 0, "ward-b", 1, 3) is not place
    assert box.place(PARCEL, 0, "ward-a", 1, 3) is place
    assert box.place(PARCEL, 0, "ward-a", 1, 3) is not place
    box.reserve(PARCEL, 0, "ward-a", 2, place)
    other = box.place(PARCEL, 0, "ward-a", 2, 4)
    assert other is not place and len(other) == 4


def test_a_message_that_comes_twice_cannot_change_what_is_taken() -> None:
    box, place = Mailbox(), memoryview(bytearray(3))
    box.put(PARCEL, 0, "ward-a", 1, memoryview(b"one"))
    box.reserve(PARCEL, 0, "ward-a", 1, place)  # it has come
    assert box.place(PARCEL, 0, "ward-a", 1, 3) is not place
    coming = box.place(PARCEL, 0, "ward-a", 2, 3)
    box.reserve(PARCEL, 0, "ward-a", 2, place)  # it is on its way
    box.put(PARCEL, 0, "ward-a", 2, coming)
    assert box.place(PARCEL, 0, "ward-a", 2, 3) is not place


class Trickle:
    """A socket with ever more bytes, none of which completes a record."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = 0

    def recv(self, most: int) -> bytes:
        self.received += 1
        return self.sock.recv(1)


def test_whoever_sends_no_data_does_not_keep_others_from_their_turn(tmp_path: Path) -> None:
    with ends(tmp_path) as (calls, serves, _):
        shake_hands(calls, serves)
        calls.send(memoryview(b"late"))
        serves._sock = trickle = cast(Any, Trickle(serves._sock))
        found = bytearray(4)
        with pytest.raises(BlockingIOError):
            serves.receive_into(memoryview(found))
        assert trickle.received == 1
        while not any(found):
            with suppress(BlockingIOError):
                serves.receive_into(memoryview(found))
        assert found == b"late"


def test_a_connection_that_may_read_on_while_it_stops_does_so() -> None:
    board = Switchboard(cast(Any, None), None)

    class Stops:
        """Somebody takes what it waits for just when it has found that it must wait."""

        def readable(self, now: float) -> bool:
            board.read_on(cast(Any, self))
            return False

    connection = cast(Any, Stops())
    board.connections[connection] = selectors.EVENT_READ
    try:
        board._serve(connection, selectors.EVENT_READ, 0.0)
        assert board._again == {connection}
    finally:
        board.connections.clear()
        board._shut()
