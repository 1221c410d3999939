"""What processes tell each other: however long it is, and whatever a bad one among them writes."""

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import Store, TCPStore

from parley.cluster import messages
from parley.cluster.noticeboard import FAILURE, Noticeboard, read_failure
from parley.errors import ParleyError
from parley.store.journal import Count, Written, longest

SOON = timedelta(seconds=60)


def together(stores: list[Store], work: Callable[[Noticeboard], Any]) -> list[Any]:
    """What each of so many processes comes to."""
    found: list[Any] = [None] * len(stores)

    def one(rank: int) -> None:
        try:
            found[rank] = work(Noticeboard(stores[rank], rank, len(stores), SOON))
        except ParleyError as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_records_longer_than_the_store_takes() -> None:
    """A thousand agents and more epochs than fit into one value of 8 MB."""
    keeper = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=SOON)
    other = TCPStore("127.0.0.1", keeper.port, is_master=False, timeout=SOON)
    made = [{"epoch": e, "accuracy_agents": [e / 7000] * 1000} for e in range(1, 501)]
    assert len(json.dumps(made)) > 8 << 20

    def work(board: Noticeboard) -> Any:
        return longest(board, made if board.rank else made[:3])  # type: ignore[arg-type]

    assert together([keeper, other], work) == [made, made]


@pytest.mark.parametrize(
    "said",
    [
        "", "=", "={", "=[" + "[" * 100_000, '={"epoch": 1}', '=[{"epoch": "x"}]', "=[NaN]",
        '=[{"epoch": -1}]', '=[{"epoch": 1e400}]', "#3", "#999999999", "#-1", "#x", "=null",
        "=" + "9" * 5000, "\udcff",
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_a_name(said: str) -> None:
    store = dist.HashStore()
    board = Noticeboard(store, 0, 2, SOON)
    store.set("parley/1/records/1", said.encode("utf-8", "surrogateescape"))
    with pytest.raises(ParleyError, match="workers: the records that worker 1 sent cannot be read"):
        board.share("records", [], list[Written])


@given(st.binary(max_size=60))
def test_any_bytes(said: bytes) -> None:
    store = dist.HashStore()
    store.set("parley/1/sizes/1", said)
    store.set(FAILURE, said)
    board = Noticeboard(store, 0, 2, SOON)
    try:
        found = board.share("sizes", [3], list[Count])
    except ParleyError as error:
        assert "worker 1" in str(error)
    else:
        assert all(isinstance(size, int) and size >= 0 for size in found[1])
    assert isinstance(board.told(), ParleyError)


def test_words_cannot_move_the_cursor() -> None:
    note = json.dumps({"words": "loss: \x1b[2J\r\nnan\x07\u202e", "lost": [1]})
    assert str(read_failure(note)) == "loss: [2Jnan"
    assert len(messages.printable("x" * 10**6)) == messages.LINE
