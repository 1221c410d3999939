"""Links carry every message once, in order, however often they break; over TLS 1.3 only."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from parley.errors import ParleyError
from parley.fabric.base import Member, WorkerLost
from parley.graphs import ring
from parley.peers import keys
from parley.peers.carrier import Said
from parley.peers.connection import Connection
from parley.peers.fabric import Linked
from parley.peers.file import Peers
from parley.peers.links import Links
from parley.peers.mailbox import ENVELOPE, PARCEL
from parley.peers.switchboard import over_tls
from parley.wire.placement import Placement
from parley.wire.spread import Spread
from tests.peers.groups import group, taken, write_group
from tests.ports import free_ports

SOON = 30.0


def opened(folder: Path, peers: Peers, name: str, **options: Any) -> Links:
    return over_tls(keys.find(name, folder), peers, **{"patience": SOON, **options})


@contextmanager
def pair(folder: Path, **options: Any) -> Iterator[tuple[Links, Links]]:
    """Two peers with a link between them."""
    peers = group(folder, 2)
    a, b = (opened(folder, peers, name, **options) for name in ("ward-a", "ward-b"))
    try:
        a.want(["ward-b"])
        b.want(["ward-a"])
        assert a.until(lambda: a.connected("ward-b"), SOON)
        assert b.until(lambda: b.connected("ward-a"), SOON)
        yield a, b
    finally:
        for one in (a, b):
            one.failure = ParleyError("over")
            one.close()


def cut(links: Links, name: str) -> None:
    """Breaks a link as a network does, in the middle of whatever is under way."""
    with links.changed:
        connection = links.links[name].connection
    if connection is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def test_messages_arrive_in_order_over_tls_1_3(tmp_path: Path) -> None:
    with pair(tmp_path) as (a, b):
        for number in range(50):
            a.post("ward-b", PARCEL, 0, number, [bytes([number]) * (number * 1000)])
        for number in range(50):
            assert bytes(taken(b, "ward-a", PARCEL, 0, number)) == bytes([number]) * (number * 1000)
        connection = a.links["ward-b"].connection
        assert connection is not None and connection.tunnel is not None
        assert connection.tunnel.version() == "TLSv1.3"


def test_a_link_that_breaks_again_and_again_loses_nothing(tmp_path: Path) -> None:
    with pair(tmp_path) as (a, b):
        size, count = 300_000, 40
        for number in range(count):
            a.post("ward-b", PARCEL, 0, number, [number.to_bytes(4, "little") * (size // 4)])
            b.post("ward-a", PARCEL, 0, number, [b"back" + number.to_bytes(4, "little")])
            if number % 7 == 3:
                cut((a, b)[number % 2], ("ward-b", "ward-a")[number % 2])
            if number % 10 == 9:
                time.sleep(0.3)
        for number in range(count):
            got = bytes(taken(b, "ward-a", PARCEL, 0, number))
            assert got == number.to_bytes(4, "little") * (size // 4)
            assert bytes(taken(a, "ward-b", PARCEL, 0, number))[4:] == number.to_bytes(4, "little")
        assert a.until(lambda: not a.links["ward-b"].session.outstanding, SOON)


def test_a_peer_that_only_dials_is_reached_too(tmp_path: Path) -> None:
    [port] = free_ports(1)
    peers = Peers.read(write_group(tmp_path, [[0], [1]], addresses=[f"127.0.0.1:{port}", None]))
    a, b = opened(tmp_path, peers, "ward-a"), opened(tmp_path, peers, "ward-b")
    try:
        assert not b._carrier.listens
        a.want(["ward-b"])
        b.want(["ward-a"])
        a.post("ward-b", PARCEL, 0, 1, [b"to one behind NAT"])
        assert bytes(taken(b, "ward-a", PARCEL, 0, 1)) == b"to one behind NAT"
    finally:
        a.close()
        b.close()


def test_a_peer_that_was_started_again_counts_as_lost_until_the_next_generation(
    tmp_path: Path,
) -> None:
    with pair(tmp_path) as (a, b):
        a.post("ward-b", PARCEL, 0, 0, [b"for the one that dies"])
        b.failure = ParleyError("killed")
        b.close()
        a.post("ward-b", PARCEL, 0, 1, [b"nobody will ever read this"])
        again = opened(tmp_path, a.peers, "ward-b")
        try:
            again.want(["ward-a"])
            with pytest.raises(WorkerLost, match="lost ward-b"):
                taken(a, "ward-b", PARCEL, 0, 0)
            assert a.until(lambda: a.connected("ward-b") and a.links["ward-b"].restarted, SOON)
            a.begin(1)
            a.post("ward-b", PARCEL, 1, 0, [b"welcome back"])
            again.begin(1)
            assert bytes(taken(again, "ward-a", PARCEL, 1, 0)) == b"welcome back"
        finally:
            again.failure = ParleyError("over")
            again.close()


def test_whoever_waits_in_vain_is_told_for_whom_and_why(tmp_path: Path) -> None:
    peers = group(tmp_path, 2)
    a = opened(tmp_path, peers, "ward-a", patience=0.5)
    try:
        a.want(["ward-b"])
        with pytest.raises(WorkerLost, match=r"lost ward-b \(no connection for 0.5 seconds.*"):
            taken(a, "ward-b", PARCEL, 0, 0)
    finally:
        a.close()


def test_a_message_for_everyone_goes_round_corners_and_comes_once(tmp_path: Path) -> None:
    peers = group(tmp_path, 3)
    chain = {"ward-a": ["ward-b"], "ward-b": ["ward-a", "ward-c"], "ward-c": ["ward-b"]}
    nodes = {name: opened(tmp_path, peers, name) for name in chain}
    heard: dict[str, list[Any]] = {name: [] for name in chain}

    def ear(name: str) -> list[Any]:
        heard[name] += nodes[name].events()
        return heard[name]

    try:
        for name, links in nodes.items():
            links.want(chain[name])
        for name, links in nodes.items():
            assert links.until(lambda: all(map(links.connected, chain[name])), SOON)  # noqa: B023
        nodes["ward-a"].flood({"view": 1})
        assert nodes["ward-c"].until(lambda: bool(ear("ward-c")), SOON)
        time.sleep(0.2)
        assert ear("ward-c") == ear("ward-b") == [Said("ward-a", {"view": 1})]
        assert not ear("ward-a")
    finally:
        for links in nodes.values():
            links.close()


def test_a_peer_that_sends_more_than_is_taken_has_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.peers.links.WAITING", 1 << 20)
    monkeypatch.setattr("parley.peers.links.CONTROL", 1 << 18)
    with pair(tmp_path) as (a, b):
        block = bytes(1 << 18)
        for number in range(64):
            a.post("ward-b", PARCEL, 0, number, [block[: 1 << 17]])
        time.sleep(0.5)
        assert b.mailbox.waiting("ward-a") <= (1 << 20) + (1 << 18)
        for number in range(64):
            assert len(taken(b, "ward-a", PARCEL, 0, number)) == 1 << 17


def test_a_message_arrives_where_it_is_awaited(tmp_path: Path) -> None:
    with pair(tmp_path) as (a, b):
        place = memoryview(bytearray(100_000))
        b.reserve("ward-a", PARCEL, 0, 1, place)
        a.post("ward-b", PARCEL, 0, 1, [b"x" * 100_000])
        assert taken(b, "ward-a", PARCEL, 0, 1) is place
        assert place == b"x" * 100_000


def test_what_comes_beside_a_link_does_not_get_where_a_message_is_awaited(tmp_path: Path) -> None:
    with pair(tmp_path) as (a, b):
        place = memoryview(bytearray(5))
        b.reserve("ward-a", PARCEL, 0, 1, place)
        looks = opened(tmp_path, a.peers, "ward-a", checking=True)
        try:
            looks.want(["ward-b"])
            link = b.links["ward-a"]

            def others() -> list[Connection]:
                found = [c for c in list(b._carrier.connections) if c.ready]
                return [c for c in found if c is not link.connection]

            assert b.until(lambda: bool(others()), SOON)
            [beside] = others()
            beside.envelope[:] = ENVELOPE.pack(PARCEL, 0, 1)
            assert b.place(beside, 5) is not place
        finally:
            looks.close()
        a.post("ward-b", PARCEL, 0, 1, [b"known"])
        assert taken(b, "ward-a", PARCEL, 0, 1) is place and place == b"known"


def test_what_all_share_is_what_it_was_though_the_link_breaks(tmp_path: Path) -> None:
    with pair(tmp_path) as (a, b):
        places = [Placement(ring(2), (0, 1), here) for here in (0, 1)]
        groups = [Linked(one, [Member("ward-a"), Member("ward-b")], [(0, 1)], 0) for one in (a, b)]
        first, second = (Spread(place, made) for place, made in zip(places, groups, strict=True))
        with ThreadPoolExecutor() as pool:
            theirs = pool.submit(second.gather, torch.tensor([2]))
            assert a.until(lambda: a.mailbox.waiting("ward-b") > 0, SOON)
            for one in (a, b):
                one.want([])
            cut(a, "ward-b")
            assert a.until(lambda: not a.connected("ward-b"), SOON)
            counted = torch.tensor([1])
            assert first.gather(counted).tolist() == [1, 2]
            counted += 10  # before it is sent
            a.want(["ward-b"])
            assert theirs.result(SOON).tolist() == [1, 2]
