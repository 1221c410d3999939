"""Keys are private and belong to their certificates; peers.toml is refused where it is wrong."""

import errno
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from parley.errors import BadValue
from parley.peers import keys
from parley.peers.file import Peers, listening
from tests.peers.groups import group, write_group


def test_a_new_key_is_private_and_its_fingerprint_is_the_certificate_s(tmp_path: Path) -> None:
    made = keys.new("ward-a", tmp_path)
    assert made.key.stat().st_mode & 0o777 == 0o600
    assert keys.find("ward-a", tmp_path) == made
    if openssl := shutil.which("openssl"):
        words = [openssl, "x509", "-noout", "-fingerprint", "-sha256", "-in", made.certificate]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert made.fingerprint == f"sha256:{said.strip().split('=')[1].replace(':', '').lower()}"


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    before = keys.new("ward-a", tmp_path).key.read_bytes()
    with pytest.raises(BadValue, match="overwritten"):
        keys.new("ward-a", tmp_path)
    with pytest.raises(BadValue, match="overwritten"):
        keys.request("ward-a", tmp_path)
    assert (tmp_path / "ward-a.key").read_bytes() == before


def test_a_key_that_others_may_read_or_that_is_another_s_is_refused(tmp_path: Path) -> None:
    made = keys.new("ward-a", tmp_path)
    made.key.chmod(0o640)
    with pytest.raises(BadValue, match=r"others on this machine may read it.*chmod 600"):
        keys.find("ward-a", tmp_path)
    keys.new("ward-b", tmp_path)
    (tmp_path / "ward-b.crt").write_bytes(made.certificate.read_bytes())
    with pytest.raises(BadValue, match=r"ward-b\.key is not the key of this certificate"):
        keys.find("ward-b", tmp_path)
    with pytest.raises(BadValue, match="parley keys new makes one"):
        keys.find("ward-c", tmp_path)


def test_an_authority_signs_requests_and_nobody_else_does(tmp_path: Path) -> None:
    keys.authority("consortium", tmp_path)
    _, asked = keys.request("ward-a", tmp_path)
    signed = keys.sign(asked, tmp_path / "consortium.crt", tmp_path)
    assert keys.find("ward-a", tmp_path).certificate == signed
    if openssl := shutil.which("openssl"):
        words = [openssl, "verify", "-CAfile", tmp_path / "consortium.crt", signed]
        assert subprocess.run(words, capture_output=True).returncode == 0
    keys.new("ward-b", tmp_path)
    with pytest.raises(BadValue, match="it may not sign"):
        keys.sign(asked, tmp_path / "ward-b.crt", tmp_path / "elsewhere")


def test_the_digest_is_the_same_wherever_the_file_lies(tmp_path: Path) -> None:
    path = write_group(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    ours, theirs = Peers.read(path), Peers.read(tmp_path / "two" / "peers.toml")
    assert ours.digest() == theirs.digest()
    assert group(tmp_path / "three").digest() != ours.digest()
    assert ours.worker_of() == (0, 1, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "ward a"}, r"peer\.name: 'ward a' is not valid"),
        ({"name": "ward-b"}, "not the name ward-b, which ward-b has"),
        ({"address": "nowhere"}, r"peer\.address: 'nowhere'.*HOST:PORT"),
        ({"address": "a:99999"}, "HOST:PORT"),
        ({"agents": [1]}, "not agent 1, which ward-b has"),
        ({"agents": []}, r"peer ward-c\.agents"),
        ({"agents": "x"}, r"peer ward-c\.agents: 'x'.*a list of numbers"),
        ({"key": "sha256:12"}, r"peer ward-c\.key: 'sha256:12'.*64 hexadecimal"),
        ({"key": None}, r"peer ward-c\.key: missing.*parley keys new printed"),
        ({"colour": "red"}, r"peer ward-c\.colour"),
    ],
)
def test_what_is_wrong_in_peers_toml_is_named(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    good = group(tmp_path).model_dump(exclude_none=True)
    tables = [dict(table) for table in good["peer"]]
    tables[2] = {k: v for k, v in {**tables[2], **change}.items() if v is not None}
    with pytest.raises(BadValue, match=words):
        Peers.of({**good, "peer": tables})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"experiment": None}, r"experiment: missing; valid: a path"),
        ({"peer": {"name": "ward-a"}}, r"peer: .*; valid: two or more tables \[\[peer\]\]$"),
        ({"peer": None}, "peer: missing; valid: two or more tables"),
        ({"revoked": "sha256:1"}, "revoked: 'sha256:1' is not valid; valid: a list of fing"),
        ({"experimnt": "x"}, "experimnt: 'x' is not valid; valid: experiment, revision, .*else"),
    ],
)
def test_what_is_wrong_at_its_top_is_named(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    good = {**group(tmp_path).model_dump(exclude_none=True), **change}
    with pytest.raises(BadValue, match=words):
        Peers.of({field: value for field, value in good.items() if value is not None})


def test_agents_of_the_experiment_all_have_a_peer(tmp_path: Path) -> None:
    peers = group(tmp_path)
    peers.check_agents(3)
    with pytest.raises(BadValue, match="a peer with agent 3"):
        peers.check_agents(4)
    with pytest.raises(BadValue, match="the experiment has 2 agents"):
        peers.check_agents(2)


def test_certificates_are_known_by_fingerprint_unless_revoked(tmp_path: Path) -> None:
    peers = group(tmp_path)
    mine = keys.read_certificate(tmp_path / "ward-b.crt")
    assert peers.holder(mine) == "ward-b"
    with pytest.raises(BadValue, match=r"fingerprint is in peers\.toml"):
        peers.holder(keys.read_certificate(keys.new("stranger", tmp_path).certificate))
    revoked = peers.model_copy(update={"revoked": (keys.fingerprint(mine),)})
    with pytest.raises(BadValue, match="revoked"):
        revoked.holder(mine)


def test_a_peer_listens_where_others_dial_it_and_on_loopback_only_there(tmp_path: Path) -> None:
    peer = group(tmp_path).peer[0]
    host, port = listening(peer, None) or ("", 0)
    assert host == "127.0.0.1"
    public = peer.model_copy(update={"address": f"a.example:{port}"})
    assert listening(public, None) == ("", port)
    assert listening(public, "10.0.0.1:80") == ("10.0.0.1", 80)
    assert listening(peer.model_copy(update={"address": None}), None) is None
    with pytest.raises(BadValue, match="HOST:PORT"):
        listening(peer, "80")


@pytest.mark.parametrize(
    "address", ["a..b:7400", f"{'a' * 64}.example:7400", "a\x00b:7400", "a\x1b[2Jb:7400"]
)
def test_an_address_that_no_host_can_have_is_refused(tmp_path: Path, address: str) -> None:
    path = write_group(tmp_path, addresses=["127.0.0.1:7400", address, None])
    with pytest.raises(BadValue, match="valid: HOST:PORT"):
        Peers.read(path)


@pytest.mark.parametrize("written", [0, 1])
def test_a_full_disk_leaves_no_half_of_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Else the same command would refuse for ever to overwrite it."""
    syncs: list[int] = []

    def full(descriptor: int) -> None:
        syncs.append(descriptor)
        if len(syncs) > 2 * written:  # each file is synced, and then its folder
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("os.fsync", full)
        with pytest.raises(BadValue, match="No space left on device"):
            keys.new("ward-a", tmp_path)
    assert not list(tmp_path.iterdir())
    assert keys.new("ward-a", tmp_path) == keys.find("ward-a", tmp_path)
