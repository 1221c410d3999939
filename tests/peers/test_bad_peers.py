"""Peers with the right key that do not keep to the protocol: bounded, named, and no harm done."""

import errno
import json
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parley.errors import BadValue, NotWritten, ParleyError
from parley.graphs import ring
from parley.peers import keys, links
from parley.peers.carrier import Said
from parley.peers.connection import PREAMBLE, SIZE
from parley.peers.consensus import Paxos
from parley.peers.frames import ACKNOWLEDGE, DATA, Frame
from parley.peers.links import Links
from parley.peers.mailbox import ENVELOPE, FLOOD, PARCEL, Mailbox
from parley.peers.meeting import PeerMeeting
from parley.peers.revisions import Revisions
from parley.peers.switchboard import listening_socket
from tests.peers.groups import taken
from tests.peers.test_links import SOON, opened, pair
from tests.peers.test_revisions import next_of, without_last
from tests.peers.test_strangers import (
    careless,
    dialled_tls,
    group,
    port_of,
    preamble,
    several,
    told,
    undisturbed,
)
from tests.ports import free_ports
from tests.processes import until


@pytest.fixture
def honest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[tuple[Links, Links]]:
    caplog.set_level(logging.WARNING, "parley")
    with pair(tmp_path) as both:
        yield both


def put(bad: Links, *frames: tuple[Frame, list[bytes]]) -> None:
    """Sends frames as they are, past the session that keeps to the rules."""
    with bad.changed:
        connection = bad.links["ward-a"].connection
        assert connection is not None
        for frame, parts in frames:
            connection.put(frame, list(parts))
    bad._carrier.wake()


def test_endless_small_messages_fill_no_memory(
    honest: tuple[Links, Links], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty ones count as well; they are read again once somebody takes them."""
    box = Mailbox()
    for number in range(1000):
        box.put(PARCEL, 0, "ward-b", number, memoryview(b""))
    assert box.waiting("ward-b") >= 1000 * 500
    a, b = honest
    monkeypatch.setattr(links, "WAITING", 1 << 16)
    a.limit = 1 << 12
    for number in range(2000):
        b.post("ward-a", PARCEL, 0, number, [])
    connection = a.links["ward-b"].connection
    assert connection is not None
    assert until(lambda: connection.paused)
    assert a.mailbox.waiting("ward-b") < 3 << 16
    for number in range(2000):
        assert bytes(taken(a, "ward-b", PARCEL, 0, number)) == b""


def test_messages_for_everyone_are_slowed_down_and_none_is_lost(
    honest: tuple[Links, Links], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = honest
    monkeypatch.setattr(links, "FLOODING", 100 << 10)
    heard: list[Any] = []

    def ear() -> list[Any]:
        heard.extend(said.message for said in a.events())
        return heard

    for number in range(250):
        b.flood(number)
    connection = a.links["ward-b"].connection
    assert connection is not None
    assert until(lambda: connection.paused)
    assert len(ear()) < 250
    assert until(lambda: ear() == list(range(250)))
    undisturbed(a, b)


def test_what_was_never_sent_cannot_be_acknowledged(
    honest: tuple[Links, Links], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = honest
    put(b, (Frame(ACKNOWLEDGE, 0, 0, 1 << 60), []))
    words = "the connection with ward-b was cut: frame 1152921504606846976 was acknowledged"
    assert told(caplog, words)
    undisturbed(a, b)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"origin": "ward-b", "life": "x", "number": 1e400, "said": {}}',
        b'{"origin": "' + b"w" * 100_000 + b'", "life": "x", "number": 1, "said": {}}',
        b'{"origin": "ward-b", "life": "' + b"x" * 100_000 + b'", "number": 1, "said": {}}',
        b'{"origin": "ward\\u001b[2J", "life": "x", "number": 1, "said": {}}',
    ],
    ids=["deep", "infinite", "long name", "long life", "control characters"],
)
def test_nonsense_for_everyone_cuts_the_link_with_whoever_said_it(
    honest: tuple[Links, Links], caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    a, b = honest
    with b.changed:
        b._post(b.links["ward-a"], FLOOD, 0, 0, [body])
    b._carrier.wake()
    assert told(caplog, "the connection with ward-b was cut: ")
    assert "\x1b" not in caplog.text
    undisturbed(a, b)


ENTER = {"kind": "enter", "next": 1, "lost": [], "left": True, "memory": "a"}
DECIDED = {"kind": "decided", "next": 1}
FIRST = [[0, 1], 1, ["a", "b"]]
NONSENSE: list[Any] = [
    {"kind": "view", "said": {"kind": "prepare", "next": 1, "ballot": [float("inf"), 0]}},
    {
        "kind": "view",
        "said": {"kind": "accept", "next": 1, "ballot": [1, 1], "view": [["x"], 1, ["a"]]},
    },
    {"kind": "view", "said": {"kind": "prepare", "next": 1, "ballot": [10**4299, 1]}},
    {"kind": "view", "said": {"kind": ["prepare"], "next": 1}},
    {"kind": "words", "to": "ward-a", "words": [["peers", 3]]},
    {"kind": "words", "to": "ward-a", "words": [["peers", [3]]]},
    {"kind": "view", "said": {**ENTER, "lost": [[]]}},
    {"kind": "view", "said": {**ENTER, "memory": "\x1b[2J"}},
    {"kind": "view", "said": {**ENTER, "memory": "a" * 33}},
    {"kind": "view", "said": {**DECIDED, "views": [FIRST, [[99], 1, ["a"]]]}},
    {"kind": "view", "said": {**DECIDED, "views": [FIRST, [[0, 1], 1, ["a"]]]}},
    {"kind": "view", "said": None},
    {"kind": "revisions", "tables": [{"revision": float("inf")}]},
    {"kind": "failure"},
    {"kind": ["view"]},
    ["not", "an", "object"],
]
IGNORED: list[Any] = [
    {"kind": "view", "said": {"kind": "prepare", "next": 1 << 60, "ballot": [1 << 60, 1]}},
    {"kind": "view", "said": {**DECIDED, "next": 1 << 60, "views": [[[1], 1, ["b"]]] * 2}},
    {"kind": "view", "said": {**DECIDED, "views": [FIRST, [[1], 1 << 60, ["b"]]]}},
    {"kind": "view", "said": {**DECIDED, "views": [FIRST, [[], 1, []]]}},
]


def test_nonsense_about_membership_changes_nothing(
    honest: tuple[Links, Links], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    a, b = honest
    meeting = PeerMeeting(
        rank=0, world=2, patience=SOON, heals=True, links=a, revisions=Revisions(a.peers),
        topology=ring(2),
    )  # fmt: skip
    membership: Any = meeting.consensus()
    membership.views.meet(["a", "b"])
    assert membership.next_roster(None).workers == (0, 1)
    before = membership.views.state()
    for said in [*NONSENSE, *IGNORED]:
        b.flood(said)
    assert until(lambda: len(a._events) == len(NONSENSE) + len(IGNORED))
    meeting.attend()
    state = membership.views.state()
    assert state["views"] == before["views"] and state["accepted"] is None
    assert state["promised"] == before["promised"] and not membership.words
    assert "ward-b sent a message that cannot be read" in caplog.text
    assert a.failure is None
    undisturbed(a, b)


def test_whoever_cannot_write_down_its_vote_does_not_vote_and_ends(
    honest: tuple[Links, Links], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A full disk: nothing of it may look like a link that has broken."""
    a, b = honest
    meeting = PeerMeeting(
        rank=0, world=2, patience=SOON, heals=True, links=a, revisions=Revisions(a.peers, tmp_path),
        topology=ring(2), out=tmp_path,
    )  # fmt: skip
    membership: Any = meeting.consensus()
    membership.views.meet(["a", "b"])
    membership.views.memory = "a"
    assert membership.next_roster(None).workers == (0, 1)
    before = a.links["ward-b"].connection
    heard: list[Any] = []

    def ear() -> list[Any]:
        meeting.attend()
        heard.extend(said.message for said in b.events())
        return heard

    ask = {"kind": "prepare", "next": 1, "ballot": [1, 1]}
    b.flood({"kind": "view", "said": ask})
    assert until(lambda: len(ear()) == 1) and heard[0]["said"]["kind"] == "promise"

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("parley.peers.consensus.write_atomically", full)
    b.flood({"kind": "view", "said": {**ask, "ballot": [2, 1]}})
    assert until(lambda: bool(a._events))
    with pytest.raises(
        NotWritten, match=r"membership.json cannot be written \(\[Errno 28\] No space"
    ):
        meeting.attend()
    assert len(heard) == 1 and not b.events() and a.links["ward-b"].connection is before
    monkeypatch.setattr("parley.peers.revisions.write_atomically", full)
    newer = next_of(a.peers, tmp_path, ["ward-a", "ward-b"])
    with pytest.raises(ParleyError, match="cannot be written"):
        meeting.revise(newer)
    assert meeting.peers.revision == 1


def test_revisions_that_are_unsigned_older_forged_or_far_ahead_do_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "parley")
    peers = group(tmp_path, 3)
    changes = {"peer": without_last(peers), "vacant": [2]}
    good = next_of(peers, tmp_path, ["ward-a", "ward-b"], **changes)
    (tmp_path / "other").mkdir()
    keys.new("ward-b", tmp_path / "other")  # another key for the same name
    wrong = next_of(peers, tmp_path, ["ward-a"], **changes)
    forged = next_of(peers, tmp_path / "other", ["ward-b"], **changes)
    wrong.signatures["ward-b"] = forged.signatures["ward-b"]
    a = opened(tmp_path, peers, "ward-a")
    with several(a):
        meeting = PeerMeeting(
            rank=0, world=3, patience=SOON, heals=True, links=a, revisions=Revisions(peers),
            topology=ring(3),
        )  # fmt: skip
        assert meeting.consensus() is not None

        def hear(*tables: Any) -> None:
            shown = [one.model_dump(mode="json", exclude={"experiment", "ca"}) for one in tables]
            a._events.append(Said("ward-c", {"kind": "revisions", "tables": shown}))
            meeting.attend()

        for bad, words in (
            (good.model_copy(update={"signatures": {}}), "none of them signed"),
            (wrong, "only ward-a signed"),
            (good.model_copy(update={"revision": 1 << 60}), "valid: 2, the next one"),
        ):
            caplog.clear()
            hear(bad)
            assert meeting.peers.revision == 1
            assert "ignoring a revision of peers.toml from ward-c" in caplog.text
            assert words in caplog.text
        hear(good)
        assert meeting.peers.revision == 2 and a.links["ward-c"].removed
        caplog.clear()
        hear(peers, good)  # an old one again, and the same again
        assert meeting.peers.revision == 2 and not caplog.records


def test_whoever_says_nothing_inside_tls_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a key that is listed, and one byte of a hello now and then."""
    monkeypatch.setattr(links, "SHAKING_HANDS", 1.0)
    peers = group(tmp_path, 3)
    a, b = opened(tmp_path, peers, "ward-a"), opened(tmp_path, peers, "ward-b")
    own = keys.find("ward-c", tmp_path)
    context = careless()
    context.load_cert_chain(own.certificate, own.key)
    with several(a, b):
        b.want(["ward-a"])
        with socket.create_connection(port_of(a), timeout=SOON) as raw:
            raw.sendall(preamble(keys.read_certificate(own.certificate)))
            head = raw.recv(len(PREAMBLE) + SIZE.size, socket.MSG_WAITALL)
            raw.recv(SIZE.unpack_from(head, len(PREAMBLE))[0], socket.MSG_WAITALL)
            with context.wrap_socket(raw) as encrypted:
                encrypted.settimeout(0.1)
                assert until(lambda: _is_closed(encrypted))
        assert not a.connected("ward-c")
        assert a.until(lambda: a.connected("ward-b"), SOON)
        undisturbed(a, b)


def _is_closed(encrypted: ssl.SSLSocket) -> bool:
    """Sends a byte and reads what there is."""
    try:
        encrypted.send(b"P")
        return encrypted.recv(4096) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_another_key_for_the_same_name_opens_nothing(
    honest: tuple[Links, Links], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = honest
    (tmp_path / "other").mkdir()
    own, context = keys.new("ward-b", tmp_path / "other"), careless()
    context.load_cert_chain(own.certificate, own.key)
    mine = keys.read_certificate(own.certificate)
    assert dialled_tls(port_of(a), mine, context)[0] == b""
    assert told(caplog, "one whose fingerprint is in peers.toml")
    undisturbed(a, b)


def test_a_frame_out_of_turn_or_on_no_lane_is_refused(
    honest: tuple[Links, Links], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = honest
    letter = ENVELOPE.pack(PARCEL, 0, 5)
    put(b, (Frame(DATA, len(letter), 1 << 60, 0), [letter]))
    assert told(caplog, "was cut: frame 1152921504606846976 came after frame ")
    assert b.until(lambda: b.connected("ward-a") and a.connected("ward-b"), SOON)
    undisturbed(a, b)


def test_addresses_of_both_kinds_are_listened_at() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this host has no IPv6")
    [port] = free_ports(1)
    with listening_socket(("", port)) as listener:
        for host in ("127.0.0.1", "::1"):
            try:
                made = socket.create_connection((host, port), timeout=SOON)
            except OSError as error:
                pytest.skip(f"{host}: {error}")
            made.close()
        with pytest.raises(BadValue, match="an address of this host with a free port"):
            listening_socket(("", port))
        assert listener.getsockname()[1] == port


WORDS = [["peers", ["ward-a", "ward-b"]]]
KEPT = {"memory": "a", "views": [FIRST], "promised": [0, -1], "accepted": None, "dropped": {}}


@pytest.mark.parametrize(
    "kept",
    [
        KEPT,
        {**KEPT, "words": 3},
        {**KEPT, "words": [["peers", 3]]},
        {**KEPT, "words": WORDS, "views": []},
        {**KEPT, "words": WORDS, "views": [[[0, 9], 1, ["a", "b"]]]},
        {**KEPT, "words": WORDS, "promised": [float("inf"), 0]},
        [],
    ],
    ids=["no words", "a number", "no names", "no views", "others", "infinity", "a list"],
)
def test_a_damaged_memory_is_named(tmp_path: Path, kept: Any) -> None:
    peers = group(tmp_path, 2)
    path = tmp_path / "membership.json"
    a = opened(tmp_path, peers, "ward-a")
    with several(a):
        path.write_text(json.dumps({**KEPT, "words": WORDS}))
        assert Paxos(a, 0, lambda: None, tmp_path).words == [("peers", WORDS[0][1])]
        path.write_text(json.dumps(kept))
        with pytest.raises(ParleyError, match=r"membership\.json is damaged; remove it if"):
            Paxos(a, 0, lambda: None, tmp_path)


def test_an_error_that_only_a_stranger_can_cause_ends_no_run(
    honest: tuple[Links, Links], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = honest

    def fail(self: Any) -> None:
        raise RecursionError("of a kind that nobody has thought of")

    with monkeypatch.context() as broken:
        broken.setattr("parley.peers.connection.Connection._read_preamble", fail)
        with socket.create_connection(port_of(a), timeout=SOON) as stranger:
            stranger.sendall(PREAMBLE)
            assert told(caplog, "is not let in: what it sent cannot be read (RecursionError)")
    assert a.failure is None
    undisturbed(a, b)
