"""Learning rates and averaging rates over time, step by step, against their closed forms."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import parley
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.schedule import depends_on_length, parse_schedule
from parley.training.pace import Pace

PER_EPOCH, EPOCHS = 7, 12
TINY: dict[str, Any] = {
    "agents": 3, "model": "logistic", "fraction": 0.1, "test_fraction": 0.1, "gossip_rounds": 1,
    "engine": "loop", "progress": False, "algorithm": "dpsgd",
}  # fmt: skip


def factors(spec: str) -> list[float]:
    schedule = parse_schedule(spec)
    return [schedule.factor(step, PER_EPOCH, EPOCHS) for step in range(PER_EPOCH * EPOCHS)]


@pytest.mark.parametrize("warmup", [0, 3, 2.5])
@pytest.mark.parametrize("to", [0.0, 0.1])
def test_cosine_and_linear_are_their_closed_forms(warmup: float, to: float) -> None:
    """With W whole steps of warm-up out of S, as docs/pace.md has it."""
    rising, steps = round(warmup * PER_EPOCH), PER_EPOCH * EPOCHS
    cosine, linear = (factors(f"{name}:warmup={warmup},to={to}") for name in ("cosine", "linear"))
    for step in range(steps):
        share = (step - rising) / (steps - rising)
        rise = (step + 1) / rising if rising else 1.0
        bow = to + (1 - to) * 0.5 * (1 + math.cos(math.pi * max(share, 0.0)))
        line = 1 - (1 - to) * max(share, 0.0)
        assert cosine[step] == pytest.approx(rise if step < rising else bow, abs=1e-12)
        assert linear[step] == pytest.approx(rise if step < rising else line, abs=1e-12)
    assert min(*cosine, *linear) > 0  # some methods divide by the rate


def test_the_others_with_a_rise() -> None:
    rise = [(step + 1) / 14 for step in range(14)]
    assert factors("constant:warmup=2") == pytest.approx(rise + [1.0] * 70)
    assert factors("exponential:0.5,warmup=2") == pytest.approx(
        rise + [0.5 ** (step // 7 - 2) for step in range(14, 84)]
    )
    assert factors("step:0.1,0.5,warmup=2") == pytest.approx(rise + [1.0] * 28 + [0.1] * 42)
    smooth = factors("exponential:0.5,per=step")
    assert smooth == pytest.approx([0.5 ** (step / 7) for step in range(84)])


@pytest.mark.parametrize(
    "spec",
    ["cosine:0.5", "cosine:warmup=-1", "cosine:warmup=x", "linear:to=2", "step:to=0.5", "cosin",
     "constant:per=batch", "cosine:start=3", "exponential:warmup=2", "own", "constant:to=0",
     "cosine:warmup=1,warmup=2", "linear:to=-0.1"],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(spec: str) -> None:
    with pytest.raises(BadValue, match=r"lr_decay: '.*' is not valid.*; valid: constant, step"):
        parse_schedule(spec)
    with pytest.raises(BadValue, match="gamma_decay"):
        Experiment.of(algorithm="dpsgd", gamma_decay=spec)


@pytest.mark.parametrize("field", ["lr_decay", "gamma_decay"])
def test_a_warm_up_longer_than_the_run_is_refused(field: str) -> None:
    why = rf"{field}: 'cosine:warmup=5' .*longer than the run of 4 epochs\); valid: warmup up to 4"
    with pytest.raises(BadValue, match=why):
        Experiment.of(algorithm="dpsgd", epochs=4, **{field: "cosine:warmup=5"})
    Experiment.of(algorithm="dpsgd", epochs=5, **{field: "cosine:warmup=5"})


def test_rates_that_grow() -> None:
    """The learning rate may; an averaging rate has been chosen as the most that is wanted."""
    Experiment.of(algorithm="dpsgd", lr_decay="exponential:1.1")
    for spec in ("exponential:1.1", "step:2,0.5"):
        with pytest.raises(BadValue, match=r"gamma_decay: .*γ would grow.*a factor of 1 or less"):
            Experiment.of(algorithm="dpsgd", gamma_decay=spec)


@pytest.mark.parametrize("spec", ["exponential:1e308", "step:1e308,1", "exponential:1e7,warmup=1"])
def test_a_factor_is_bounded_even_if_it_is_never_used(spec: str) -> None:
    with pytest.raises(BadValue, match=r"lr_decay: .*; valid: a factor of up to 1000000"):
        Experiment.of(algorithm="dpsgd", epochs=1, lr_decay=spec)


def test_the_last_step_of_the_last_epoch_counts() -> None:
    """Per step, a rate grows beyond its limit within an epoch."""
    Experiment.of(algorithm="dpsgd", epochs=1, lr=10, lr_decay="exponential:1e6")
    with pytest.raises(BadValue, match=r"lr_decay: .*the learning rate would grow beyond"):
        Experiment.of(algorithm="dpsgd", epochs=1, lr=10, lr_decay="exponential:1e6,per=step")


@pytest.mark.parametrize("field", ["lr_decay", "gamma_decay"])
@pytest.mark.parametrize(
    "spec", ["exponential:1e-308", "exponential:1e-200,per=step", "step:1e-13,0.5"]
)
def test_a_rate_that_falls_to_nothing_is_refused_before_the_run(field: str, spec: str) -> None:
    with pytest.raises(BadValue, match=rf"{field}: .*within 3 epochs the rate would fall to 0"):
        Experiment.of(algorithm="dpsgd", epochs=3, **{field: spec})
    Experiment.of(algorithm="dpsgd", epochs=400, **{field: "cosine"})
    Experiment.of(algorithm="dpsgd", epochs=400, **{field: "linear"})


def test_which_depend_on_the_length() -> None:
    free = ["constant", "exponential:0.9", "constant:warmup=2"]
    bound = ["step", "cosine", "linear:warmup=3", "own"]
    assert not any(map(depends_on_length, free)) and all(map(depends_on_length, bound))


def test_records_have_the_rate_of_their_last_step() -> None:
    result = parley.train(**TINY, epochs=3, lr=0.5, lr_decay="linear", batch=8)
    last = [record["step"] for record in result.records]
    expected = [0.5 * (1 - (step - 1) / last[-1]) for step in last]
    assert [record["lr"] for record in result.records] == pytest.approx(expected)


def halves(epoch: float, epochs: int) -> float:
    return 0.5 ** math.floor(epoch)


def test_a_function_of_python() -> None:
    own = parley.train(**TINY, epochs=3, lr=0.5, lr_decay=halves)
    named = parley.train(**TINY, epochs=3, lr=0.5, lr_decay="exponential:0.5")
    assert [r["loss"] for r in own.records] == [r["loss"] for r in named.records]
    assert own.experiment.lr_decay == "own" and "lr_decay" in own.experiment.from_python
    with pytest.raises(BadValue, match=r"lr_decay: -1.0 .*in step 1\); valid: a number above 0"):
        parley.train(**TINY, epochs=1, lr_decay=lambda epoch, epochs: -1.0)


@pytest.mark.parametrize("answer", [None, "0.5", [0.5, 0.5], torch.ones(2)])
def test_a_function_that_returns_no_number(answer: Any) -> None:
    with pytest.raises(BadValue, match=r"lr_decay: .*in step 1\); valid: a number above 0"):
        parley.train(**TINY, epochs=1, lr_decay=lambda epoch, epochs: answer)


@pytest.mark.parametrize("answer", [1, np.float32(1), torch.tensor(1.0)])
def test_numbers_of_numpy_and_torch_are_numbers(answer: Any) -> None:
    result = parley.train(**TINY, epochs=1, lr=0.25, lr_decay=lambda epoch, epochs: answer)
    assert result.records[0]["lr"] == 0.25


@pytest.mark.parametrize("field", ["lr_decay", "gamma_decay"])
def test_a_warm_up_longer_than_the_steps_is_refused(field: str) -> None:
    """How many epochs they are is known only with the data."""
    options = {"epochs": 9, "max_steps": 8, field: "constant:warmup=3", "algorithm": "dpsgd"}
    Pace(Experiment.of(**options), 2)
    with pytest.raises(BadValue, match=rf"{field}: .*8 steps, which are 2.667 epochs\); valid: "):
        Pace(Experiment.of(**options), 3)


def test_the_averaging_rate_has_one_too(tmp_path: Path) -> None:
    fading = parley.train(**TINY, epochs=3, gamma_decay="exponential:0.5", partition="skew:1")
    steady = parley.train(**TINY, epochs=3, partition="skew:1")
    first, *later = (
        a["consensus_distance"] / b["consensus_distance"]
        for a, b in zip(fading.records, steady.records, strict=True)
    )
    assert first == 1.0 and all(ratio > 1.1 for ratio in later)
    with pytest.raises(BadValue, match=r"gamma_decay: 'cosine' .*swarmsgd has no gamma"):
        Experiment.of(algorithm="swarmsgd", gamma_decay="cosine")
    with pytest.raises(BadValue, match=r"d2 needs the same weights in all steps"):
        Experiment.of(algorithm="d2", gamma_decay="cosine")


@pytest.mark.parametrize("spec", ["cosine", "linear", "cosine:per=epoch", "linear:warmup=1", "own"])
def test_the_last_round_of_local_steps_may_end_after_the_last_epoch(spec: str) -> None:
    """Three epochs of five steps in rounds of four are sixteen steps: the last rate is held."""
    experiment = Experiment.of(
        epochs=3,
        algorithm="dpsgd",
        local_steps=4,
        lr_decay=spec,
        from_python=("lr_decay",) if spec == "own" else (),
    )
    own = (lambda epoch, epochs: 1 - epoch / epochs) if spec == "own" else None
    pace = Pace(experiment, 5, own)
    assert pace.end_of(3) == 16
    rates = [pace.lr(step) for step in range(16)]
    assert 0 < rates[15] == rates[14] <= rates[13]
