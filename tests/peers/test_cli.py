"""The commands and the Python call: what a user sees before, while and after peers train."""

import datetime
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from torch import nn

import parley
from parley.cli.main import app
from parley.errors import BadValue
from parley.experiment import Experiment, read_file
from parley.peers import keys
from parley.peers.check import check
from parley.peers.file import Peers
from tests.peers.groups import write_group


def run(*words: object) -> int:
    code = app([str(word) for word in words], standalone_mode=False, prog_name="parley")
    return code if isinstance(code, int) else 0


def test_keys_are_made_and_their_line_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("keys", "new", "ward-a", "--dir", tmp_path)
    line = capsys.readouterr().out
    assert line.startswith('key = "sha256:') and len(line) == len('key = "sha256:"\n') + 64
    run("keys", "ca", "consortium", "--dir", tmp_path)
    assert capsys.readouterr().out == 'ca = "consortium.crt"\n'
    run("keys", "request", "ward-b", "--dir", tmp_path)
    ca = tmp_path / "consortium.crt"
    run("keys", "sign", tmp_path / "ward-b.csr", "--ca", ca, "--dir", tmp_path)
    assert (tmp_path / "ward-b.crt").is_file()
    with pytest.raises(BadValue, match="days: 0"):
        run("keys", "new", "ward-c", "--dir", tmp_path, "--days", 0)


def looked(path: Path, name: str, found: dict[str, Any], **options: Any) -> threading.Thread:
    """`check` in a thread of its own."""
    peers = Peers.read(path)
    experiment = Experiment.of(**{**read_file(Path(peers.experiment)), **options})

    def look() -> None:
        rows = check(peers, experiment, name, path.parent, 20.0)
        found[name] = {row.name: row for row in rows}

    thread = threading.Thread(target=look)
    thread.start()
    return thread


def test_check_shows_who_is_ready_and_whose_experiment_differs(tmp_path: Path) -> None:
    path = write_group(tmp_path, experiment={"lr": 0.1})
    found: dict[str, Any] = {}
    odd = {"ward-c": {"lr": 0.2}}
    threads = [looked(path, n, found, **odd.get(n, {})) for n in ("ward-a", "ward-b", "ward-c")]
    for thread in threads:
        thread.join(60)
    seen = found["ward-a"]
    assert seen["ward-a"].state == "this peer"
    assert seen["ward-b"].fits and seen["ward-b"].state.startswith("ready")
    assert not seen["ward-c"].fits
    assert seen["ward-c"].state == "its experiment differs: lr is 0.2 there and 0.1 here"


def test_check_says_who_cannot_be_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_group(tmp_path)
    words = ("peers", "check", path, "--me", "ward-a", "--keys", tmp_path, "--seconds", 1)
    with pytest.raises(BadValue, match="me: 'ward-x' is not valid; valid: one of ward-a, "):
        run(*words, "--me", "ward-x")
    with pytest.raises(BadValue, match=r"peers: .*experiment\.crt' is not valid .*a TOML file"):
        run(*words[:2], tmp_path / "experiment.crt", *words[3:])
    assert run(*words, "--json") == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["ward-a"]["fits"] and not rows["ward-b"]["fits"]
    assert "refused" in rows["ward-b"]["state"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--me", "ward-x"], "me: 'ward-x' is not valid; valid: one of ward-a, ward-b, ward-c"),
        (["--me", "ward-a", "--keys", "nowhere"], "keys: 'nowhere/ward-a.key'"),
        (["--me", "ward-a", "--listen", "7400"], "listen: 7400"),
    ],
)
def test_what_join_is_told_wrong_is_named(tmp_path: Path, words: list[str], complaint: str) -> None:
    path = write_group(tmp_path)
    with pytest.raises(BadValue) as caught:
        run("join", path, "--keys", tmp_path, "--out", tmp_path / "out", *words)
    assert complaint in str(caught.value)


def test_a_peer_does_not_start_with_a_certificate_that_others_would_refuse(tmp_path: Path) -> None:
    path = write_group(tmp_path)
    key = keys.read_key(tmp_path / "ward-a.key")
    old = keys._certificate("ward-a", key.public_key(), keys._subject("ward-a"), key, 0)
    (tmp_path / "ward-a.crt").write_bytes(old.public_bytes(serialization.Encoding.PEM))
    for command in (["peers", "check"], ["join"]):
        with pytest.raises(BadValue, match=r"ward-a\.crt' is not valid \(valid from .*clock set"):
            run(*command, path, "--me", "ward-a", "--keys", tmp_path)


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "0"])
def test_a_look_comes_to_an_end(tmp_path: Path, seconds: str) -> None:
    path = write_group(tmp_path)
    with pytest.raises(BadValue, match=r"seconds: .* above 0, at most 86400"):
        words = ("peers", "check", path, "--me", "ward-a", "--keys", tmp_path)
        run(*words, "--seconds", seconds)


@pytest.mark.parametrize(
    ("curve", "usage", "because"),
    [
        (ec.SECP256K1(), None, "unsupported protocol"),  # not one of TLS 1.3
        (ec.SECP256R1(), ExtendedKeyUsageOID.SERVER_AUTH, "unsuitable certificate purpose"),
        (ec.SECP256R1(), ExtendedKeyUsageOID.CODE_SIGNING, "unsuitable certificate purpose"),
    ],
    ids=["curve", "server only", "code"],
)
def test_a_certificate_that_tls_would_not_take_is_refused_before_anybody_is_called(
    tmp_path: Path, curve: ec.EllipticCurve, usage: x509.ObjectIdentifier | None, because: str
) -> None:
    path = write_group(tmp_path)
    before = keys.find("ward-a", tmp_path).fingerprint
    key = ec.generate_private_key(curve)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(keys._subject("ward-a"), keys._subject("ward-a"), key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
    if usage is not None:
        made = made.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    (tmp_path / "ward-a.crt").write_bytes(
        made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    (tmp_path / "ward-a.key").unlink()
    keys._write_key(tmp_path / "ward-a.key", key)
    path.write_text(path.read_text().replace(before, keys.find("ward-a", tmp_path).fingerprint))
    with pytest.raises(BadValue, match=rf"ward-a\.crt' is not valid \(.*{because}.*TLS 1\.3"):
        run("peers", "check", path, "--me", "ward-a", "--keys", tmp_path)


def test_join_from_python_refuses_what_does_not_fit(tmp_path: Path) -> None:
    path = write_group(tmp_path)
    mine = (torch.randn(8, 3), torch.randint(2, (8,)))
    with pytest.raises(BadValue, match="ward-a has these agents"):
        parley.join(path, "ward-a", data={1: mine}, classes=2, keys=tmp_path)
    with pytest.raises(BadValue, match="classes: missing"):
        parley.join(path, "ward-a", data={0: mine}, keys=tmp_path)
    with pytest.raises(BadValue, match="test or classes was given"):
        parley.join(path, "ward-a", model=nn.Linear(3, 2), classes=2, keys=tmp_path)
