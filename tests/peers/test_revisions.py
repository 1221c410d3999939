"""Newer revisions of peers.toml: signed by the right ones, and following the one before."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from parley.cli.main import app
from parley.errors import BadValue, ParleyError
from parley.peers import keys
from parley.peers.file import Peers
from parley.peers.revisions import Revisions, check_next, signed
from tests.peers.groups import group


def table_of(peers: Peers) -> dict[str, Any]:
    return peers.model_dump(mode="json", exclude_none=True)


def next_of(peers: Peers, folder: Path, signers: list[str], **changes: Any) -> Peers:
    """Revision 2, signed by these."""
    draft = Peers.of({**table_of(peers), "revision": 2, **changes})
    own = {name: keys.find(name, folder) for name in signers}
    made = {name: signed(draft, one.certificate, one.key) for name, one in own.items()}
    return draft.model_copy(update={"signatures": made})


def without_last(peers: Peers) -> list[dict[str, Any]]:
    """ward-c is removed."""
    tables: list[dict[str, Any]] = table_of(peers)["peer"]
    tables[-1]["removed"] = True
    return tables


def test_more_than_half_have_to_sign(tmp_path: Path) -> None:
    peers = group(tmp_path, 3)
    changes = {"peer": without_last(peers), "vacant": [2]}
    check_next(peers, next_of(peers, tmp_path, ["ward-a", "ward-b"], **changes))
    with pytest.raises(BadValue, match=r"only ward-a signed .* at least 2 of ward-a"):
        check_next(peers, next_of(peers, tmp_path, ["ward-a"], **changes))
    good = next_of(peers, tmp_path, ["ward-a", "ward-b"], **changes)
    copied = {"ward-a": good.signatures["ward-a"], "ward-b": good.signatures["ward-a"]}
    with pytest.raises(BadValue, match="only ward-a"):
        check_next(peers, good.model_copy(update={"signatures": copied}))
    changed = good.model_copy(update={"revoked": (peers.peer[1].key,)})
    with pytest.raises(BadValue, match="none of them signed what it says"):
        check_next(peers, changed)


def test_a_signature_holds_for_one_experiment(tmp_path: Path) -> None:
    """The same group may train another model at the same time."""
    peers = group(tmp_path, 3)
    changes = {"peer": without_last(peers), "vacant": [2]}
    new = next_of(peers, tmp_path, ["ward-a", "ward-b"], **changes)
    check_next(peers, new)
    path = tmp_path / "another.toml"
    path.write_text("agents = 3\nlr = 0.03\n")
    other = {"experiment": str(path)}
    with pytest.raises(BadValue, match="none of them signed what it says, for this experiment"):
        check_next(peers.model_copy(update=other), new.model_copy(update=other))
    moved = tmp_path / "elsewhere.toml"
    moved.write_text("# the same experiment\n" + Path(peers.experiment).read_text())
    check_next(peers, new.model_copy(update={"experiment": str(moved)}))


def test_a_stranger_signs_in_vain(tmp_path: Path) -> None:
    peers = group(tmp_path, 3)
    keys.new("stranger", tmp_path)
    changes = {"peer": without_last(peers), "vacant": [2]}
    with pytest.raises(BadValue, match="only ward-a"):
        check_next(peers, next_of(peers, tmp_path, ["ward-a", "stranger"], **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"revision": 3}, "revision: 3 is not valid; valid: 2"),
        ({"vacant": [3]}, "agent 3 is in one revision only"),
        ({"peer": "moved"}, "peer ward-a.agents"),
        ({"peer": "gone"}, "whoever leaves stays in the list"),
    ],
)
def test_a_revision_has_to_follow_the_one_before(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    peers = group(tmp_path, 3)
    tables = table_of(peers)["peer"]
    if changes.get("peer") == "moved":
        tables[0]["agents"], tables[1]["agents"] = tables[1]["agents"], tables[0]["agents"]
        changes = {"peer": tables}
    elif changes.get("peer") == "gone":
        changes = {"peer": tables[:2], "vacant": [2]}
    new = next_of(peers, tmp_path, ["ward-a", "ward-b"], **changes)
    with pytest.raises(BadValue) as caught:
        check_next(peers, new)
    assert words in str(caught.value)


def test_the_command_prints_the_line_and_an_authority_signs_for_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = group(tmp_path, 3)
    keys.authority("consortium", tmp_path)
    tables = without_last(peers)
    for table in tables:
        del table["key"]
    said = {"experiment": "experiment.toml", "ca": "consortium.crt", "peer": tables}
    path = tmp_path / "next.toml"
    path.write_text(tomli_w.dumps({**said, "revision": 2, "vacant": [2]}))
    first = Peers.of({**said, "ca": str(tmp_path / "consortium.crt"), "peer": [
        {**table, "removed": False} for table in tables
    ]})  # fmt: skip
    with pytest.raises(BadValue, match=r"signatures\.ca"):
        check_next(first, Peers.read(path))
    words = ["peers", "sign", str(path), "--ca", str(tmp_path / "consortium.crt")]
    app(words, standalone_mode=False, prog_name="parley")
    line = capsys.readouterr().out
    path.write_text(f"{path.read_text()}\n[signatures]\n{line}")
    assert list(tomllib.loads(path.read_text())["signatures"]) == ["ca"]
    check_next(first, Peers.read(path))


def test_what_is_known_outlives_a_restart(tmp_path: Path) -> None:
    peers = group(tmp_path, 3)
    out = tmp_path / "out"
    out.mkdir()
    changes = {"peer": without_last(peers), "vacant": [2]}
    new = next_of(peers, tmp_path, ["ward-a", "ward-c"], **changes)
    known = Revisions(peers, out)
    [told] = known.later([*known.tables(), new.model_dump(mode="json", exclude={"experiment"})])
    known.add(told)
    again = Revisions(peers, out)
    assert [one.revision for one in again.known] == [1, 2]
    assert again.newest.digest() == new.digest() and again.newest.active == (0, 1)
    with pytest.raises(BadValue, match="removes it"):
        again.newest.holder(keys.read_certificate(tmp_path / "ward-c.crt"))
    other = peers.model_copy(update={"revoked": (peers.peer[2].key,)})
    with pytest.raises(BadValue, match="differs from the revision 1"):
        Revisions(other, out)


# A certificate with a key on the curve SM2, which OpenSSL makes and this library cannot read.
UNREADABLE = (
    "MIIBbTCCAROgAwIBAgIUYr0Ij4VDSiQKOKOBeORZPBmKIVgwCgYIKoEcz1UBg3UwDDEKMAgGA1UEAwwBYTAeFw0y"
    "NjExMTcxNjQ0NTRaFw0yNjEyMTcxNjQ0NTRaMAwxCjAIBgNVBAMMAWEwWTATBgcqhkjOPQIBBggqgRzPVQGCLQNC"
    "AASBqE12tfiUtseMTUUhgw9MagCCzX2uBW7cjfdZD8a58oYR8xtIZDsRU3/8Cay5dasWx+kZyjDN/qD0UrdUtQH4"
    "o1MwUTAdBgNVHQ4EFgQUtHyp8SqvNS842ezH3ntW7nUnchgwHwYDVR0jBBgwFoAUtHyp8SqvNS842ezH3ntW7nUn"
    "chgwDwYDVR0TAQH/BAUwAwEB/zAKBggqgRzPVQGDdQNIADBFAiBQRa+1tDxWAvVoOIfzDfKQamCUB/mWDz4TqStJ"
    "ojGQogIhAP0nuDhI7T1DJIRuQNlwGrp8dVv7KQvJ+gm4bKbhIU32"
)


def test_a_signature_of_an_unknown_kind_is_no_signature(tmp_path: Path) -> None:
    peers = group(tmp_path, 3)
    changes = {"peer": without_last(peers), "vacant": [2]}
    new = next_of(peers, tmp_path, ["ward-a"], **changes)
    new.signatures["ward-b"] = f"{UNREADABLE}.{UNREADABLE}"
    with pytest.raises(BadValue, match="only ward-a signed"):
        check_next(peers, new)


@pytest.mark.parametrize("content", ["[]", "{}", "3", "[3]", "[{}]", '[{"revision": 1}]', "x", ""])
def test_damaged_revisions_are_named(tmp_path: Path, content: str) -> None:
    peers = group(tmp_path, 3)
    (tmp_path / "revisions.json").write_text(content)
    with pytest.raises(ParleyError, match=r"revisions\.json is damaged"):
        Revisions(peers, tmp_path)
