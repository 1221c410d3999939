"""Strangers and bad peers: none gets in, honest peers go on, and one line says who did what."""

import logging
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from parley.cluster import handshake
from parley.errors import ParleyError
from parley.experiment import Experiment
from parley.fabric.base import Member
from parley.graphs import ring
from parley.peers import keys
from parley.peers.connection import PREAMBLE, SIZE
from parley.peers.fabric import Linked
from parley.peers.file import Peers, address_of
from parley.peers.frames import DATA, Frame
from parley.peers.join import greeting, judge
from parley.peers.links import Links
from parley.peers.mailbox import PARCEL
from parley.peers.meeting import PeerMeeting
from parley.peers.revisions import Revisions
from parley.peers.switchboard import MOST_HALF_OPEN
from parley.training.problem import problem, task_of
from parley.wire.codec import Dense, Half
from parley.wire.placement import Placement
from parley.wire.spread import Spread
from tests.peers.groups import group, taken, write_group
from tests.peers.middle import Middle
from tests.peers.test_links import SOON, opened, pair
from tests.ports import free_ports
from tests.processes import until


def port_of(links: Links) -> tuple[str, int]:
    return address_of(links.peers.peer[links.peers.number(links.me)].address or "")


def undisturbed(a: Links, b: Links, generation: int = 0) -> None:
    """Messages still go both ways."""
    for number in range(1000, 1005):
        a.post(b.me, PARCEL, generation, number, [b"there"])
        b.post(a.me, PARCEL, generation, number, [b"back"])
        assert bytes(taken(b, a.me, PARCEL, generation, number)) == b"there"
        assert bytes(taken(a, b.me, PARCEL, generation, number)) == b"back"


def told(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    """Waits for a line with these words."""
    return until(lambda: any(words in record.getMessage() for record in caplog.records))


@contextmanager
def several(*links: Links) -> Iterator[None]:
    """Closes them all in the end."""
    try:
        yield
    finally:
        for one in links:
            one.close()


@pytest.fixture
def honest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[tuple[Links, Links]]:
    caplog.set_level(logging.WARNING, "parley")
    with pair(tmp_path) as both:
        yield both


def preamble(certificate: bytes) -> bytes:
    return PREAMBLE + SIZE.pack(len(certificate)) + certificate


def dialled_tls(
    where: tuple[str, int], claimed: bytes, context: ssl.SSLContext
) -> tuple[bytes, Exception | None]:
    """What comes of dialling with a claim and then TLS."""
    try:
        with socket.create_connection(where, timeout=SOON) as raw:
            raw.sendall(preamble(claimed))
            answer = raw.recv(len(PREAMBLE) + SIZE.size, socket.MSG_WAITALL)
            if len(answer) < len(PREAMBLE) + SIZE.size:
                return b"", None
            raw.recv(SIZE.unpack_from(answer, len(PREAMBLE))[0], socket.MSG_WAITALL)
            with context.wrap_socket(raw) as encrypted:
                return encrypted.recv(1), None
    except OSError as error:
        return b"", error


def careless() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def test_plain_text_and_random_bytes_are_turned_away(
    honest: tuple[Links, Links], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = honest
    for said in (b"GET / HTTP/1.1\r\n\r\n", np.random.default_rng(0).bytes(5000)):
        with socket.create_connection(port_of(a), timeout=SOON) as raw:
            raw.sendall(said)
            with suppress(ConnectionResetError):
                assert raw.recv(100) == b""
    assert told(caplog, "127.0.0.1 is not let in: it does not speak Parley's protocol")
    undisturbed(a, b)


def test_a_stranger_with_a_certificate_of_its_own_is_turned_away(
    honest: tuple[Links, Links], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = honest
    own = keys.new("stranger", tmp_path)
    mine = keys.read_certificate(own.certificate)
    assert dialled_tls(port_of(a), mine, careless())[0] == b""
    assert told(caplog, "one whose fingerprint is in peers.toml")
    undisturbed(a, b)


def test_a_peer_s_certificate_without_its_key_opens_nothing(
    honest: tuple[Links, Links], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = honest
    public = keys.read_certificate(tmp_path / "ward-b.crt")
    got, _ = dialled_tls(port_of(a), public, careless())  # shows none in TLS
    assert got == b""
    assert told(caplog, "127.0.0.1 (which claims to be ward-b) is not let in: TLS failed: peer did")
    own, context = keys.new("stranger", tmp_path), careless()
    context.load_cert_chain(own.certificate, own.key)
    got, _ = dialled_tls(port_of(a), public, context)  # shows another in TLS
    assert got == b""
    assert told(caplog, "its certificate does not hold")
    undisturbed(a, b)


def test_an_expired_certificate_is_turned_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "parley")
    peers = group(tmp_path, 2)
    key = serialization.load_pem_private_key((tmp_path / "ward-b.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    old = keys._certificate("ward-b", key.public_key(), keys._subject("ward-b"), key, 0)
    (tmp_path / "ward-b.crt").write_bytes(old.public_bytes(serialization.Encoding.PEM))
    mark = keys.find("ward-b", tmp_path).fingerprint
    changed = (peers.peer[0], peers.peer[1].model_copy(update={"key": mark}))
    peers = peers.model_copy(update={"peer": changed})
    time.sleep(1.1)
    a, b = opened(tmp_path, peers, "ward-a"), opened(tmp_path, peers, "ward-b")
    with several(a, b):
        a.want(["ward-b"])
        b.want(["ward-a"])
        assert told(caplog, "certificate has expired, by the clock of this host")
        assert told(caplog, "it has turned this peer away: certificate expired")
        assert not a.connected("ward-b") and not b.connected("ward-a")


def test_a_peer_under_another_s_name_and_a_revoked_one_are_turned_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "parley")
    peers = group(tmp_path, 3)
    a = opened(tmp_path, peers, "ward-a")
    b = opened(tmp_path, peers, "ward-b")
    liar = opened(tmp_path, peers, "ward-c")
    liar.me = "ward-b"
    with several(a, b, liar):
        liar.links["ward-a"].wanted = True
        assert told(caplog, "it has the certificate of ward-c and says that it is ward-b")
        assert not a.connected("ward-c")
        a.want(["ward-b"])
        assert a.until(lambda: a.connected("ward-b"), SOON)
        undisturbed(a, b)
    revoked = peers.model_copy(update={"revoked": (peers.peer[1].key,)})
    a, b = opened(tmp_path, revoked, "ward-a"), opened(tmp_path, peers, "ward-b")
    with several(a, b):
        b.want(["ward-a"])
        assert told(caplog, "one that is not listed as revoked")
        assert not a.connected("ward-b")


def test_whoever_answers_at_a_peer_s_address_with_another_key_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "parley")
    peers = group(tmp_path, 3)
    a = opened(tmp_path, peers, "ward-a")
    b = opened(tmp_path, peers, "ward-b", listen=peers.peer[2].address)
    with several(a, b):
        a.want(["ward-c"])
        assert told(caplog, "it has the certificate of ward-b, not of ward-c")
        assert not a.connected("ward-c")


def test_a_thousand_half_open_connections_do_not_keep_peers_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    caplog.set_level(logging.WARNING, "parley")
    peers = group(tmp_path, 2)
    a = opened(tmp_path, peers, "ward-a")
    crowd = []
    try:
        for _ in range(1000):
            crowd.append(socket.create_connection(port_of(a), timeout=SOON))
        assert until(lambda: 0 < len(a._carrier.connections) <= MOST_HALF_OPEN)
        b = opened(tmp_path, peers, "ward-b")
        try:
            b.want(["ward-a"])
            undisturbed(a, b)
        finally:
            b.close()
        assert told(caplog, "it opens connections and says nothing")
    finally:
        for one in crowd:
            one.close()
        a.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_frame_of_impossible_length_costs_nothing(
    honest: tuple[Links, Links], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = honest
    connection = b.links["ward-a"].connection
    assert connection is not None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    connection.put(Frame(DATA, 1 << 60, 1, 0))
    b._carrier.wake()
    assert told(caplog, "connection with ward-b was cut: a frame of 1152921504606846976 bytes")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes
    undisturbed(a, b)


@contextmanager
def through_the_middle(tmp_path: Path) -> Iterator[tuple[Links, Links, Middle]]:
    """ward-b dials ward-a through somebody else; ward-a cannot dial."""
    [port] = free_ports(1)
    middle = Middle(port)
    addresses = [f"127.0.0.1:{middle.port}", None]
    peers = Peers.read(write_group(tmp_path, [[0], [1]], addresses=addresses))
    a = opened(tmp_path, peers, "ward-a", listen=f"127.0.0.1:{port}")
    b = opened(tmp_path, peers, "ward-b")
    try:
        a.want(["ward-b"])
        b.want(["ward-a"])
        yield a, b, middle
    finally:
        for one in (a, b):
            one.failure = ParleyError("over")
            one.close()
        middle.close()


def test_whoever_listens_in_sees_no_parameter_and_no_label(tmp_path: Path) -> None:
    numbers = torch.linspace(-1, 1, 20_000).numpy().tobytes()
    with through_the_middle(tmp_path) as (a, b, middle):
        b.post("ward-a", PARCEL, 0, 0, [numbers])
        a.post("ward-b", PARCEL, 0, 0, [b"label: tumour" * 100, numbers])
        assert bytes(taken(a, "ward-b", PARCEL, 0, 0)) == numbers
        assert bytes(taken(b, "ward-a", PARCEL, 0, 0)).endswith(numbers)
        assert len(middle.seen) > 2 * len(numbers)
        for start in range(0, len(numbers) - 16, 4000):
            assert numbers[start : start + 16] not in middle.seen
        assert b"tumour" not in middle.seen
        assert b"ward-b" in middle.seen  # certificates are not secret


def test_streams_that_are_cut_changed_or_replayed_lose_and_add_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "parley")
    with through_the_middle(tmp_path) as (a, b, middle):
        for first, harm in ((0, "cut_after"), (10, "spoil_after")):
            for number in range(first, first + 10):
                if number == first + 2:
                    setattr(middle, harm, 50_000)
                b.post("ward-a", PARCEL, 0, number, [bytes([number]) * 20_000])
            for number in range(first, first + 10):
                assert bytes(taken(a, "ward-b", PARCEL, 0, number)) == bytes([number]) * 20_000
        assert len(middle.streams) >= 3  # both times it dialled again
        assert told(caplog, "the connection with ward-b was cut: TLS failed")
        before = a.links["ward-b"].session.received
        with socket.create_connection(("127.0.0.1", middle.target), timeout=SOON) as raw:
            raw.sendall(bytes(middle.streams[0]))
            with suppress(OSError):
                while raw.recv(4096):
                    pass
        assert told(caplog, "which claims to be ward-b) is not let in: TLS failed")
        assert a.links["ward-b"].session.received == before
        undisturbed(a, b)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": 0.2}, "its experiment differs: lr is 0.2 there and 0.1 here"),
        ({"topology": "full"}, "its experiment differs: topology is 'full' there"),
        ({"algorithm": "dpsgd"}, "its experiment differs: algorithm.name is 'dpsgd' there"),
        ("0.0.1", "it runs another version: version is '0.0.1' there"),
        (7, "it speaks version 7 of the protocol, not 2"),
    ],
)
def test_another_version_or_experiment_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: Any, words: str
) -> None:
    caplog.set_level(logging.WARNING, "parley")
    peers = group(tmp_path, 2)
    experiment = Experiment.of(agents=2, algorithm="ngc")
    ours = greeting(experiment, ring(2))
    theirs = greeting(experiment, ring(2))
    if isinstance(change, dict):
        theirs = greeting(experiment.replace(**change), ring(2))
    elif isinstance(change, str):
        theirs["plan"]["version"] = change
    else:
        theirs["protocol"] = change
    a = opened(tmp_path, peers, "ward-a", hello=ours, judge=judge(ours))
    b = opened(tmp_path, peers, "ward-b", hello=theirs)
    with several(a, b):
        a.want(["ward-b"])
        b.want(["ward-a"])
        assert told(caplog, words)
        assert not a.connected("ward-b")


def meeting(links: Links) -> PeerMeeting:
    number = links.peers.number(links.me)
    revisions = Revisions(links.peers)
    return PeerMeeting(
        rank=number, world=2, patience=SOON, links=links, revisions=revisions, topology=ring(2)
    )


@pytest.mark.parametrize(
    ("what", "words"),
    [("labels", "label names is"), ("model", "parameters 1.weight is")],
)
def test_other_labels_or_another_model_end_the_start_at_both(
    honest: tuple[Links, Links], what: str, words: str
) -> None:
    experiment = Experiment.of(agents=2, model="mlp")
    said: dict[str, str] = {}

    def begin(links: Links, odd: bool) -> None:
        other = odd and what == "model"
        made = experiment.replace(model_options={"hidden": 7}) if other else experiment
        found = problem(made, [links.peers.number(links.me)])
        claims = handshake.claims(experiment, found, task_of(made, found), "1")
        if odd and what == "labels":
            claims["label names"] = ["cat", "dog"]
        board = meeting(links).lobby()
        try:
            handshake.agree(board, [board.rank], claims)
        except ParleyError as error:
            said[links.me] = str(error)

    threads = [
        threading.Thread(target=begin, args=(links, odd))
        for links, odd in zip(honest, (False, True), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SOON)
    assert said["ward-a"] == said["ward-b"]
    assert words in said["ward-a"] and "(ward-b, agent 1)" in said["ward-a"]


@pytest.mark.parametrize("what", ["step", "codec", "agent", "length"])
def test_a_message_of_another_step_codec_agent_or_length_is_refused(
    honest: tuple[Links, Links], what: str
) -> None:
    a, b = honest
    wire = torch.arange(80, dtype=torch.uint8).reshape(1, 80)

    def transport(links: Links, here: int, worker_of: tuple[int, ...]) -> Spread:
        made = Linked(links, [Member("ward-a"), Member("ward-b")], [(0, 1)], 0)
        return Spread(Placement(ring(len(worker_of)), worker_of, here), made)

    good = transport(a, 0, (0, 1))
    bad = transport(b, 1, (0, 1, 1) if what == "agent" else (0, 1))
    step, codec = (3 if what == "step" else 2), (Half(20) if what == "codec" else Dense(20))
    sent = wire[:, :40] if what == "length" else wire
    bad.forward(sent.expand(len(bad.placement.agents), -1), "models", codec, step)
    arrivals = good.forward(wire, "models", Dense(20), 2)
    words = {
        "step": "message from ward-b: .* step 2, agent 1 to 0, 80 bytes; got .* step 3",
        "codec": "codec 1, .*; got .* codec 8",
        "agent": "ward-b sent 224 bytes of messages, 112 were expected",
        "length": "ward-b sent 72 bytes of messages, 112 were expected",
    }
    with pytest.raises(ParleyError, match=words[what]):
        arrivals.others()


def test_nothing_that_comes_from_a_peer_is_unpickled_or_evaluated() -> None:
    source = Path(keys.__file__).parent
    texts = "".join(path.read_text() for path in sorted(source.glob("*.py")))
    for word in ("pickle", "eval(", "exec(", "import_module", "torch.load", "marshal", "shelve"):
        assert word not in texts
    assert "ssl" in texts
