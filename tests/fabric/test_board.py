"""What members tell each other: however long it is, and whatever a bad one among them says."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.errors import ParleyError
from parley.fabric import messages
from parley.fabric.base import LENGTH, LIMIT
from parley.fabric.board import Board
from parley.fabric.failure import read_failure
from parley.fabric.messages import Count
from parley.store.journal import Written, longest
from tests.memory import InMemory, together


def test_records_of_many_megabytes() -> None:
    """A thousand agents and many epochs."""
    made = [{"epoch": e, "accuracy_agents": [e / 7000] * 1000} for e in range(1, 501)]
    assert len(json.dumps(made)) > 8 << 20

    def work(fabric: InMemory) -> Any:
        return longest(Board(fabric), made if fabric.me else made[:3])  # type: ignore[arg-type]

    assert together(2, work) == [made, made]


def answer_to(said: bytes, kind: Any, what: str, own: Any) -> Any:
    """What an honest member makes of what another gives in place of its words."""

    def work(fabric: InMemory) -> Any:
        if fabric.me:
            return fabric.gather(said)
        return Board(fabric).share(what, own, kind)

    return together(2, work)[0]


@pytest.mark.parametrize(
    "said",
    [
        "", "{", "[" + "[" * 100_000, '{"epoch": 1}', '["records", [{"epoch": "x"}]]',
        '["records", [NaN]]', '["records", [{"epoch": -1}]]', '["records", [{"epoch": 1e400}]]',
        '["records"]', "null", "9" * 5000, "\udcff",
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_a_name(said: str) -> None:
    error = answer_to(said.encode("utf-8", "surrogateescape"), list[Written], "records", [])
    assert str(error) == "workers: the records that worker 1 sent cannot be read"


def test_words_about_something_else_are_refused() -> None:
    error = answer_to(b'["claims", []]', list[Written], "records", [])
    assert str(error) == "workers: worker 1 sent its claims instead of its records"


def test_words_without_end_are_refused_before_there_is_room_for_them() -> None:
    def work(fabric: InMemory) -> Any:
        if fabric.me:
            return fabric.gather(LENGTH.pack(LIMIT + 1), [LENGTH.size] * 2)
        return Board(fabric).share("sizes", [1], list[Count])

    assert str(together(2, work)[0]) == f"workers: worker 1 wants to send {LIMIT + 1} bytes at once"


@given(st.binary(max_size=60))
def test_any_bytes(said: bytes) -> None:
    found = answer_to(said, list[Count], "sizes", [3])
    if isinstance(found, ParleyError):
        assert "worker 1" in str(found)
    else:
        assert all(isinstance(size, int) and size >= 0 for size in found[1])
    assert isinstance(read_failure(said.decode("utf-8", "replace")), ParleyError)


def test_words_cannot_move_the_cursor() -> None:
    note = json.dumps({"words": "loss: \x1b[2J\r\nnan\x07\u202e", "lost": [1]})
    assert str(read_failure(note)) == "loss: [2Jnan"
    assert len(messages.printable("x" * 10**6)) == messages.LINE
