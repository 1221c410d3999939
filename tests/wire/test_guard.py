"""What is suspicious is what no honest agent sends, and its sender is named."""

import logging
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from parley.wire.codec import Dense, TopK
from parley.wire.guard import KNOWN, Arrived, Guard, Suspicious

SIZE = 200
CODEC = Dense(SIZE)


def models(count: int, spread: float = 0.1) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    common = torch.randn(SIZE, generator=torch.Generator().manual_seed(7))
    return common + spread * torch.randn(count, SIZE, generator=generator)


def exchange(
    arrived_RD: Tensor, own_AD: Tensor, step: int = 0, what: str = "models", reply: bool = False
) -> Arrived:
    """Agents 10, 11, … of worker 1 send to agent 0."""
    wire_RB, own_AB = CODEC.encode(arrived_RD), CODEC.encode(own_AD)
    senders = range(10, 10 + len(arrived_RD))
    own_RB = None if reply else own_AB[:1].expand(len(wire_RB), -1)
    workers = [1] * len(wire_RB)
    return Arrived(what, step, CODEC, wire_RB, senders, workers, own_RB, own_AB)


def changed(x_RD: Tensor, row: int, value: Tensor) -> Tensor:
    x_RD = x_RD.clone()
    x_RD[row] = value
    return x_RD


BAD = {
    "nan": (torch.full((SIZE,), torch.nan), "sent a model that is not finite"),
    "1e30": (torch.full((SIZE,), 1e30), "sent a model that is not finite"),
    "1e6": (torch.full((SIZE,), 1e6), "times as long as usual"),
    "negated": (-models(1)[0], "that has nothing to do with its neighbours'"),
    "noise": (torch.randn(SIZE), "that has nothing to do with its neighbours'"),
    "ten times": (12 * models(1)[0], "times as long as usual"),
    "five times": (5 * models(1)[0], "that has nothing to do with its neighbours'"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("steps", [0, 3, KNOWN + 1])
def test_a_bad_model_is_noticed_at_once(bad: str, steps: int) -> None:
    """With a history or without, as long as there is an honest neighbour to compare with."""
    value, words = BAD[bad]
    guard = Guard(torch.float32, "stop")
    for step in range(steps):
        guard.inspect(exchange(models(2), models(2), step))
    with pytest.raises(Suspicious, match=rf"agent 11 \(worker 1\) .*, step {steps + 1}$") as caught:
        guard.inspect(exchange(changed(models(2), 1, value), models(2), steps))
    assert words in str(caught.value)
    assert (caught.value.agent, caught.value.worker, caught.value.drop) == (11, 1, False)


@pytest.mark.parametrize("bad", ["nan", "1e6", "negated", "noise"])
def test_the_only_neighbour(bad: str) -> None:
    """It has its own history against it."""
    guard = Guard(torch.float32, "drop")
    for step in range(KNOWN):
        guard.inspect(exchange(models(1), models(1), step))
    with pytest.raises(Suspicious, match="agent 10") as caught:
        guard.inspect(exchange(BAD[bad][0][None], models(1), KNOWN))
    assert caught.value.drop


def quiet(guard: Guard, steps: Sequence[Arrived]) -> None:
    for arrived in steps:
        guard.inspect(arrived)
    assert not guard.counts


def test_honest_models_and_gradients() -> None:
    guard = Guard(torch.float32, "stop")
    quiet(guard, [exchange(models(3, s / 50), models(2, s / 50), s) for s in range(40)])
    # Gradients and differences point anywhere, and vary much.
    for step in range(60):
        scale = 10 ** torch.rand(3, 1)
        some = torch.randn(3, SIZE) * scale
        quiet(guard, [exchange(some, torch.randn(2, SIZE) * 5, step, "cross_gradients", True)])
    zeros = torch.zeros(2, SIZE)
    quiet(guard, [exchange(zeros, zeros, 60), exchange(torch.randn(2, SIZE), zeros, 61)])


def test_a_gradient_that_is_far_too_long() -> None:
    guard = Guard(torch.float32, "stop")
    for step in range(KNOWN):
        guard.inspect(
            exchange(torch.randn(2, SIZE), torch.randn(2, SIZE), step, "cross_gradients", True)
        )
    bad = changed(torch.randn(2, SIZE), 0, 1e4 * torch.randn(SIZE))
    with pytest.raises(Suspicious, match=r"agent 10 .* sent a gradient that is .* times as long"):
        guard.inspect(exchange(bad, torch.randn(2, SIZE), KNOWN, "cross_gradients", True))


def test_a_warning_is_given_once_and_all_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(torch.float32)
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            guard.inspect(exchange(changed(models(2), 1, -models(1)[0]), models(2), step))
    assert guard.counts == {11: 5}
    [line] = caplog.messages
    assert line.startswith("suspicious: agent 11 (worker 1) sent a model that has nothing to do")
    assert guard.first.endswith("step 1")


def test_bytes_that_are_no_message() -> None:
    """Of several, the one that cannot be decoded is named, whatever the policy."""
    codec = TopK((SIZE,), 0.05)
    wire_RB = codec.encode(models(3))
    wire_RB[1, -10:] = 255
    arrived = Arrived("models", 4, codec, wire_RB, [7, 8, 9], [1, 2, 3], None, wire_RB[:1])
    with pytest.raises(Suspicious, match=r"agent 8 \(worker 2\) sent positions .*, step 5$"):
        Guard(torch.float32).inspect(arrived)
