"""The model that the peers of a live group load: it takes its time until it need not, and at a bad
peer more comes with it than a model."""

import os
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parley.cluster import handshake
from parley.peers.fabric import Linked
from parley.wire.transport import HEADER
from tests.faults import ATTACKS, attack

HURRY, HARM = "PARLEY_TEST_HURRY", "PARLEY_TEST_HARM"
"""A file with which there is no need to wait any longer; what a bad peer does."""
HEADERS = {"step": 99, "codec": 8, "receiver": 1}
"""What it writes into the headers of its messages."""

SLOWER = time.monotonic() + 10.0


class Slow(nn.Sequential):
    """Logistic regression on the digits, slower after a while: so that a run lasts as long as what
    is done to it."""

    def forward(self, inputs: Tensor) -> Tensor:
        if not Path(os.environ.get(HURRY, "/")).exists():
            time.sleep(0.02 if time.monotonic() < SLOWER else 0.5)
        found: Tensor = super().forward(inputs)
        return found


def net() -> nn.Module:
    """What the experiment names as its model."""
    how = os.environ.get(HARM, "")
    _harm(how)
    return Slow(nn.Flatten(), nn.Linear(64, 10, bias=how != "model"))


@cache
def _harm(how: str) -> None:
    """From now on this process is not honest; once is enough."""
    if how in ATTACKS:
        attack(how)
    elif how in HEADERS:
        _change_headers(how)
    elif how == "labels":
        claims = handshake.claims
        handshake.claims = lambda *given: {**claims(*given), "label names": ["cat", "dog"]}


def _change_headers(field: str) -> None:
    exchange: Any = Linked.exchange

    def changed(self: Any, leaving: Any, arriving: Any) -> Any:
        for _, rows_RB in leaving:
            headers = rows_RB[:, : HEADER.itemsize].numpy().copy().view(HEADER)
            if headers["step"].max() >= 3:
                headers[field] = HEADERS[field]
                rows_RB[:, : HEADER.itemsize] = torch.from_numpy(headers.view(np.uint8))
        return exchange(self, leaving, arriving)

    Linked.exchange = changed  # type: ignore[method-assign]
