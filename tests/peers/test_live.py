"""Attacks on three live ``parley join`` processes while they train: whoever attacks from outside
changes no number, whoever does from inside ends the run, and one line says who did what."""

import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tomli_w

from parley.experiment import Experiment, read_file
from parley.peers import keys
from parley.peers.connection import PREAMBLE, SIZE
from parley.peers.file import Peers
from parley.peers.frames import HELLO, Frame
from parley.peers.join import greeting
from parley.peers.switchboard import MOST_HALF_OPEN, over_tls
from parley.training.problem import topology_of
from tests.peers import harmful
from tests.peers.groups import NAMES, write_group
from tests.peers.middle import Middle
from tests.peers.test_join import same_as_alone, start
from tests.peers.test_strangers import careless, dialled_tls, preamble
from tests.ports import free_ports
from tests.processes import Command, recorded, until

OPTIONS = {"model": f"{harmful.__name__}:net", "engine": "loop", "algorithm": "dpsgd", "batch": 64}
OPTIONS |= {"gossip_rounds": 1, "epochs": 20, "patience": 120.0, "suspicious": "stop"}
AGENTS = [[0], [1], [2]]
SOON = 30.0
CROWD = 1000


def allowed(folder: Path, harm: str = "") -> dict[str, str]:
    """The environment of a peer's process."""
    hurry = str(folder / "hurry")
    return {"PARLEY_ALLOW_CODE": harmful.__name__, harmful.HURRY: hurry, harmful.HARM: harm}


class Live:
    """Three peers that train: ward-c dials only, and reaches ward-a through somebody else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, other = free_ports(2)
        self.middle = Middle(self.port)
        self.stolen = self._write_group([f"127.0.0.1:{self.middle.port}", f"127.0.0.1:{other}"])
        self.peers = Peers.read(folder / "peers.toml")
        listen = ["--listen", f"127.0.0.1:{self.port}"]
        self.running = {
            name: start(folder, name, *(listen if name == "ward-a" else []), **allowed(folder))
            for name in NAMES[:3]
        }
        self.ports = {"ward-a": ("127.0.0.1", self.port), "ward-b": ("127.0.0.1", other)}

    def _write_group(self, addresses: list[str]) -> dict[str, Path]:
        """A group with an authority, which has also signed what has expired or was revoked."""
        folder = self.folder
        path = write_group(folder, AGENTS, OPTIONS, [*addresses, None])
        authority = keys.authority("consortium", folder).certificate
        made = {}
        for kind, name, days in (("expired", "ward-b", 0), ("revoked", "ward-c", 9)):
            request = keys.request(name, folder / kind)[1]
            made[kind] = keys.sign(request, authority, folder / kind, days)
        for name in NAMES[:3]:
            (folder / f"{name}.crt").unlink()
            (folder / f"{name}.key").unlink()
            keys.sign(keys.request(name, folder)[1], authority, folder)
        table = read_file(path)
        table["peer"] = [{k: v for k, v in one.items() if k != "key"} for one in table["peer"]]
        mark = keys.fingerprint(keys.read_certificate(made["revoked"]))
        top = {"experiment": table["experiment"], "ca": authority.name, "revoked": [mark]}
        path.write_text(tomli_w.dumps({**top, "peer": table["peer"]}))
        return made

    def training(self) -> None:
        """Waits for one more record at every peer."""
        before = recorded(self.folder / "ward-a")
        for name, one in self.running.items():
            assert one.until(lambda: recorded(self.folder / name) > before), one.err  # noqa: B023

    def tls(self, claimed: Path, shown: Path | None = None) -> None:
        """Dials ward-a with a certificate, and shows the same or none in TLS."""
        context = careless()
        if shown is not None:
            context.load_cert_chain(shown, shown.with_suffix(".key"))
        assert dialled_tls(self.ports["ward-a"], keys.read_certificate(claimed), context)[0] == b""

    def call(self, **changes: Any) -> None:
        """ward-c's key says something else to ward-a than ward-c does."""
        experiment = Experiment.of(**read_file(self.folder / "experiment.toml")).replace(workers=3)
        hello = greeting(experiment, topology_of(experiment))
        plan = {**hello["plan"], **changes.pop("plan", {})}
        said = {**hello, "plan": plan}
        links = over_tls(keys.find("ward-c", self.folder), self.peers, hello=said)
        links.me = changes.pop("me", links.me)
        try:
            links.want(["ward-a"])
            assert until(lambda: bool(links.links["ward-a"].failures))
            assert until(lambda: not links._carrier.dials("ward-a"))
        finally:
            links.close()

    def descriptors(self) -> int:
        return len([*Path(f"/proc/{self.running['ward-a'].pid}/fd").iterdir()])

    def stop(self) -> None:
        self.middle.close()
        for one in self.running.values():
            one.process.kill()
            one.process.join()


def say(live: Live, name: str, words: bytes) -> None:
    with socket.create_connection(live.ports[name], timeout=SOON) as raw, suppress(OSError):
        raw.sendall(words)
        assert raw.recv(100) == b""


def certificate_of_its_own(live: Live) -> None:
    own = keys.new("stranger", live.folder).certificate
    live.tls(own, own)


def own_certificate_with_a_peer_s_name(live: Live) -> None:
    own = keys.new("ward-b", live.folder / "own").certificate
    live.tls(own, own)


def endless_frame(live: Live) -> None:
    own = live.folder / "ward-c.crt"
    context = careless()
    context.load_cert_chain(own, own.with_suffix(".key"))
    with socket.create_connection(live.ports["ward-a"], timeout=SOON) as raw:
        raw.sendall(preamble(keys.read_certificate(own)))
        head = raw.recv(len(PREAMBLE) + SIZE.size, socket.MSG_WAITALL)
        raw.recv(SIZE.unpack_from(head, len(PREAMBLE))[0], socket.MSG_WAITALL)
        with context.wrap_socket(raw) as encrypted, suppress(ssl.SSLError, OSError):
            encrypted.sendall(Frame(HELLO, 1 << 60, 0, 0).packed())
            while encrypted.recv(4096):
                pass


def truncated(live: Live) -> None:
    before = len(live.middle.streams)
    live.middle.cut_after = 3_000
    assert until(lambda: len(live.middle.streams) > before)  # it was dialled again


def spoiled(live: Live) -> None:
    live.middle.spoil_after = 10_000  # more than a handshake takes
    assert until(lambda: live.middle.spoil_after is None)


def replayed(live: Live) -> None:
    [stream, *_] = [said for said in live.middle.streams if b"ward-c" in said]
    with socket.create_connection(live.ports["ward-a"], timeout=SOON) as raw, suppress(OSError):
        raw.sendall(bytes(stream))
        while raw.recv(4096):
            pass


class Attack(NamedTuple):
    """What is done, and the line at the peer that notices."""

    what: str
    do: Callable[[Live], None]
    words: str
    at: str = "ward-a"


ATTACKS = (
    Attack("plain text", lambda live: say(live, "ward-a", b"GET / HTTP/1.1\r\n\r\n"),
        "127.0.0.1 is not let in: it does not speak Parley's protocol"),
    Attack("random bytes", lambda live: say(live, "ward-b", np.random.default_rng(0).bytes(5000)),
        "127.0.0.1 is not let in: it does not speak Parley's protocol", "ward-b"),
    Attack("no certificate", lambda live: live.tls(live.folder / "ward-b.crt"),
        "127.0.0.1 (which claims to be ward-b) is not let in: TLS failed: peer did not return"),
    Attack("a certificate of its own", certificate_of_its_own,
        "127.0.0.1 is not let in: certificate: 'stranger' is not valid"),
    Attack("the same with a peer's name", own_certificate_with_a_peer_s_name,
        "(which claims to be ward-b) is not let in: its certificate does not hold: self"),
    Attack("expired", lambda live: live.tls(live.stolen["expired"], live.stolen["expired"]),
        "is not let in: its certificate does not hold: certificate has expired, by the"),
    Attack("revoked", lambda live: live.tls(live.stolen["revoked"], live.stolen["revoked"]),
        "is not valid; valid: one that is not listed as revoked"),
    Attack("another's name", lambda live: live.call(me="ward-b"),
        "(ward-c) is not let in: it has the certificate of ward-c and says that it is ward-b"),
    Attack("another version", lambda live: live.call(plan={"version": "0.0.1"}),
        "127.0.0.1 (ward-c) is not let in: it runs another version: version is '0.0.1' there"),
    Attack("another experiment", lambda live: live.call(plan={"lr": 0.7}),
        "127.0.0.1 (ward-c) is not let in: its experiment differs: lr is 0.7 there and 0.1 here"),
    Attack("a frame of 2^60 bytes", endless_frame,
        "127.0.0.1 (ward-c) is not let in: a frame of 1152921504606846976 bytes"),
    Attack("a truncated stream", truncated, ""),
    Attack("a changed stream", spoiled, "was cut: TLS failed"),
    Attack("a replayed stream", replayed,
        "127.0.0.1 (which claims to be ward-c) is not let in: TLS failed"),
)  # fmt: skip


@contextmanager
def crowd(live: Live) -> Iterator[None]:
    """A thousand connections that say nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    opened: list[socket.socket] = []
    try:
        for _ in range(CROWD):
            opened.append(socket.create_connection(live.ports["ward-a"], timeout=SOON))
        yield
    finally:
        for one in opened:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_stranger_changes_a_number_of_a_live_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(tmp_path)
    try:
        live.training()
        usual = live.descriptors()
        with crowd(live):
            assert until(lambda: live.descriptors() < usual + MOST_HALF_OPEN + 10)
            truncated(live)  # and whoever is listed still gets in
            for attack in ATTACKS:
                attack.do(live)
                err = live.running[attack.at]
                assert err.until(lambda: attack.words in err.err), (attack.what, err.err)  # noqa: B023
            assert until(lambda: live.descriptors() < usual + 20)  # nobody waits for them for ever
        (tmp_path / "hurry").touch()
        for one in live.running.values():
            assert one.wait() == 0, one.err
        lines = live.running["ward-a"].err.splitlines()
        for words in {a.words for a in ATTACKS if a.words and a.at == "ward-a"}:
            assert sum(words in line for line in lines) == 1, words
        assert sum("opens connections and says nothing" in line for line in lines) == 1
    finally:
        live.stop()
    monkeypatch.setenv("PARLEY_ALLOW_CODE", harmful.__name__)
    outcome = same_as_alone(tmp_path, AGENTS)
    sent = outcome.x_ND.numpy().tobytes()
    assert not any(sent[n : n + 16] in live.middle.seen for n in range(0, len(sent) - 16, 400))
    assert b"label" not in live.middle.seen and b"ward-c" in live.middle.seen


INSIDE = {
    "model": "1.bias is missing at worker 2 (ward-c, agent 2)",
    "labels": "label names is ['cat', 'dog'] at worker 2 (ward-c, agent 2)",
    "receiver": "unexpected message from ward-c: ",
    "step": "unexpected message from ward-c: ",
    "codec": "unexpected message from ward-c: ",
    "sends nan": "suspicious: agent 2 (ward-c) sent a model that is not finite, step 4",
    "sends inf": "suspicious: agent 2 (ward-c) sent a model that is not finite, step 4",
    "sends 1e30": "suspicious: agent 2 (ward-c) sent a model that is ",
}
"""What ward-c does, and what all say when they stop."""


@pytest.mark.parametrize("harm", INSIDE)
def test_a_bad_peer_ends_the_run_and_is_named_by_all(tmp_path: Path, harm: str) -> None:
    write_group(tmp_path, AGENTS, OPTIONS)
    (tmp_path / "hurry").touch()
    bad = {"ward-c": harm}
    running: list[Command] = [
        start(tmp_path, name, **allowed(tmp_path, bad.get(name, ""))) for name in NAMES[:3]
    ]
    for one in running:
        assert one.wait() == 2, one.err
    for one in running[:2]:
        assert INSIDE[harm] in one.error(), one.err
