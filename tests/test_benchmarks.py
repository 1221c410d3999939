"""The benchmark's contestants compute the same, and its FLOPs are those of paper and pencil."""

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `benchmarks`, also in child processes

from benchmarks import steps
from benchmarks.cases import (
    NETWORKS,
    QUICK,
    RULES,
    Case,
    Rule,
    every_case,
    forward_flops,
    gradient_flops,
)
from benchmarks.contestants import Contestant, Parley
from benchmarks.networks import narrow
from benchmarks.own import WIDTHS, own
from benchmarks.table import render, side_by_side
from benchmarks.textbook import Textbook, project
from parley.compute import kernels
from parley.compute.compiled import FusedEngine
from parley.compute.operations import OPERATIONS
from parley.compute.reader import Traced
from parley.compute.task import Task


def small(rule: Rule, agents: int, model: str = "mlp") -> Case:
    """Passes end with a short batch."""
    return Case(rule, model, agents, batch=8, samples=20, lr=0.05, hidden=7, dtype="float64")


@pytest.mark.parametrize("rule", RULES)
def test_the_textbook_is_parley(rule: Rule) -> None:
    case = small(rule, agents=4)
    textbook, parley = Textbook(case), Parley(case)
    start = parley.models().clone()
    assert torch.equal(textbook.models(), start)
    for _ in range(6):
        textbook.step()
        parley.step()
        torch.testing.assert_close(textbook.models(), parley.models(), rtol=1e-9, atol=1e-12)
    assert float((parley.models() - start).abs().max()) > 1e-3


def test_one_process_each_is_the_textbook() -> None:
    # Forked from a server that has imported everything: quicker than three new interpreters.
    multiprocessing.set_forkserver_preload(["parley.cli.train", "benchmarks.contestants"])
    with Contestant("one process each", processes=3, start="forkserver") as contestant:
        for rule in RULES:
            case = small(rule, agents=3)
            textbook = Textbook(case)
            contestant.ask("load", case)
            assert contestant.seconds("steps", 4) > 0
            for _ in range(4):
                textbook.step()
            np.testing.assert_allclose(contestant.models(), textbook.models(), 1e-9, 1e-12)
        with pytest.raises(RuntimeError, match="no attribute 'dance'"):
            contestant.ask("dance")


def test_projection_opposes_no_neighbour() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        g, *others = torch.randn(4, 6, dtype=torch.float64, generator=generator)
        (shortest,) = project([g], [[other] for other in others])
        assert all(float(shortest @ other) > -1e-9 for other in others)


def test_flops_of_lenet5() -> None:
    case = Case("ngc1", "lenet5", 10)
    conv1, conv2 = 2 * 28 * 28 * 6 * 25, 2 * 10 * 10 * 16 * 6 * 25
    dense = [2 * 400 * 120, 2 * 120 * 84, 2 * 84 * 10]
    assert (conv1, conv2, sum(dense)) == (235_200, 480_000, 117_840)
    assert forward_flops(case.start(), case.shape) == [conv1, conv2, *dense]
    # The first layer needs no gradient by its input.
    assert gradient_flops(case.start(), case.shape) == 3 * 833_040 - conv1
    # Ten agents on a ring: ten gradients and twenty cross-gradients of 32 samples.
    assert case.flops() == 30 * 32 * (3 * 833_040 - conv1)


def test_every_case_has_a_name_of_its_own() -> None:
    keys = [case.key for case in every_case()]
    assert len(set(keys)) == len(keys) == 5 * 3 * 3 + 6 + 4
    assert set(QUICK) <= set(keys)
    assert len({case.key for case in NETWORKS}) == len(NETWORKS) == 12
    # Parley's share of the data is skewed: neighbours have no class in common.
    case = Case("ngc1", "logistic", 5)
    held = [set(case.samples_of(agent).targets.tolist()) for agent in range(5)]
    assert not held[0] & held[1] and set.union(*held) == set(range(10))


class Still:
    """A contestant that takes as long as it is told and ends where it is told."""

    start_up = 0.5

    def __init__(self, seconds: float, end: float) -> None:
        self._seconds, self._end, self._made = seconds, end, 0
        self._spent = 0.0

    def seconds(self, command: str, *arguments: object) -> float:
        if command == "load":
            self._made = 0
            return self._seconds
        self._made += 1
        (n,) = arguments
        assert isinstance(n, int)
        self._spent += self._seconds * n / 2
        return self._seconds * n

    def ask(self, command: str, *arguments: object) -> list[object]:
        if command == "processor":
            return [self._spent]
        return [{"codec": 0.1, "projection": 0.0, "qp": 0.0} if command == "shares" else ""]

    def models(self) -> np.ndarray:
        return np.full((2, 3), self._end if self._made else 0.0)


def test_ratios_tables_and_disagreement(tmp_path: Path) -> None:
    case = Case("compngc", "logistic", 10)
    contestants = {
        "textbook, 1 thread": Still(0.6, 1.0),
        "textbook, 2 threads": Still(0.4, 1.0),
        "one process each": Still(0.8, 1.0),
        "parley, 1 worker": Still(0.2, 1.01),
        "parley, 2 workers": Still(0.1, 1.0),
    }
    entry = steps.measure(case, contestants, repeats=3, turn_seconds=1.0)  # type: ignore[arg-type]
    ratios = {name: ratio["median"] for name, ratio in entry["ratios"].items()}
    assert ratios == pytest.approx(
        {"textbook / parley": 4.0, "one process each / parley": 8.0, "processor time": 3.0}
    )
    assert entry["contestants"]["parley, 1 worker"]["processor"] == pytest.approx([0.1] * 3)
    assert entry["ratios"]["textbook / parley"]["of"] == [
        "textbook, 2 threads",
        "parley, 2 workers",
    ]
    # Turns are about a second long, in whole passes of eight steps where there is time for one.
    assert [c["steps"] for c in entry["contestants"].values()] == [2, 2, 1, 5, 8]

    path = tmp_path / "results.json"
    steps._write(path, {"cases": {case.key: entry}, "memory": {}})
    assert json.loads(path.read_text()) == steps.read(path)
    table = render(steps.read(path))
    assert "**4** (4 to 4)" in table and "10.0%" in table and "5e+03" in table

    # The record of each kind of processor is a column; what one of them lacks is left empty.
    other = entry | {"case": entry["case"] | {"agents": 20}}
    columns = side_by_side({"AVX2": {"a": entry}, "AVX-512": {"a": entry, "b": other}})
    assert (
        "| AVX2, textbook / Parley | AVX2, Parley / limit | AVX-512, textbook / Parley |" in columns
    )
    assert "| logistic regression, 20 agents |  |  | **4** (4 to 4) |" in columns

    # A processor that was measured without AVX-512 is not taken for one that has none.
    less = entry["machine"] | {"vectors": "AVX2", "switched_off": True}
    assert "(AVX2, with AVX-512 switched off)" in side_by_side(
        {"AVX2": {"a": entry | {"machine": less}}}
    )

    # With little time there are fewer turns, but never less than two.
    for budget, turns in ((1000, 7), (25, 5), (0.1, 2)):
        found = steps.measure(case, contestants, 7, 1.0, budget)  # type: ignore[arg-type]
        assert {len(c["seconds"]) for c in found["contestants"].values()} == {turns}

    contestants["parley, 2 workers"] = Still(0.1, 1.1)
    with pytest.raises(AssertionError, match=r"parley, 2 workers is 0\.1 of the way"):
        steps.measure(case, contestants, repeats=1, turn_seconds=1.0)  # type: ignore[arg-type]


def test_a_network_of_ones_own_has_as_many_parameters_as_it_says() -> None:
    counts = {
        name: sum(p.numel() for p in own(name, (3, 32, 32), 10).parameters()) for name in WIDTHS
    }
    assert counts == {"own": 170_474, "own-16-32-72": 202_562, "own-24-40-64": 201_714}


@pytest.mark.skipif(
    "avx512f" not in kernels.processor() or not kernels.available(), reason="needs AVX-512"
)
def test_without_avx512_both_sides_have_narrower_vectors() -> None:
    code = "import torch; from parley.compute import kernels as k; print(k.vectors(), k.lanes(), "
    code += "torch.backends.cpu.get_cpu_capability())"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env=narrow(), capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["AVX2", "8", "AVX2"]


def test_a_profile_accounts_for_the_whole_step() -> None:
    from benchmarks import profile

    before = {
        (owner, name): owner.__dict__.get(name) for f in profile.PARTS.values() for owner, name in f
    }
    found = profile.profile(Case("compngc", "mlp", 3, samples=64), rounds=1, seconds=0.01)
    parts = dict(found["milliseconds"])
    # What is left for the rest would be negative if a part were counted within another, too.
    assert parts[profile.REST] >= 0
    for name in ("batches", "codec", "momentum"):
        assert 0 < parts[name] < parts["step"]
    assert {key: key[0].__dict__.get(key[1]) for key in before} == before, "all is as it was"
    assert "| codec |" in profile.table({"profiles": [found]})


@pytest.mark.parametrize("model", ["lenet5", "cnn5", "mlp", "logistic", "resnet20", *WIDTHS])
def test_the_kernels_count_the_same_operations(model: str) -> None:
    if reason := kernels.reason():
        pytest.skip(reason)
    case = Case("dpsgd", model, 2)
    steps = Traced(case.start()).read(case.shape).steps
    counted = [OPERATIONS[s.operation].flops(s) for s in steps if s.operation == "convolution"]
    assert counted == forward_flops(case.start(), case.shape)
    plan = FusedEngine(Task(case.start()))._plan(case.shape, case.batch)
    assert sum(counted) <= plan.flops <= 1.25 * sum(counted)
