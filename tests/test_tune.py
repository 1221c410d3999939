"""The search: the same budget for all, no look at the test set, and files that can be used."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parley import data, field, run, tune
from parley.algorithms import CGA, DPSGD, build
from parley.compare import Job, compare
from parley.errors import BadValue
from parley.experiment import Experiment

COMMON: dict[str, Any] = {
    "model": "mlp", "agents": 4, "epochs": 2, "fraction": 0.3, "partition": "iid",
}  # fmt: skip


def experiments(*names: str, **more: Any) -> list[Experiment]:
    return [Experiment.of(**COMMON | more, algorithm=name) for name in names]


class TestHeldOut:
    @given(st.lists(st.integers(2, 12), min_size=1, max_size=5), st.integers(0, 9))
    def test_a_share_of_every_class_and_nothing_twice(self, counts: list[int], seed: int) -> None:
        targets = np.repeat(np.arange(len(counts)), counts)
        left, held = data.hold_out(torch.from_numpy(targets), 0.25, seed)
        assert sorted([*left.tolist(), *held.tolist()]) == list(range(len(targets)))
        assert np.bincount(targets[held]).tolist() == [max(1, round(0.25 * c)) for c in counts]

    def test_the_test_set_plays_no_part(self) -> None:
        [experiment] = experiments("dpsgd")
        plain, split = run.problem(experiment), run.problem(experiment.replace(validation=0.2))
        test = {tuple(row.flatten().tolist()) for row in plain.test.inputs}
        held = [tuple(row.flatten().tolist()) for row in split.test.inputs]
        trained = {tuple(r.flatten().tolist()) for s in split.samples for r in s.inputs}
        everything = sum(map(len, plain.samples))
        assert len(held) + sum(map(len, split.samples)) == everything
        assert len(held) == pytest.approx(0.2 * everything, rel=0.1)
        assert not trained & set(held)
        assert len(test & set(held)) <= 1  # two digits may look the same

    def test_a_class_that_would_have_nothing_left(self) -> None:
        with pytest.raises(BadValue, match=r"validation: 0.9 .*a class has nothing left"):
            data.hold_out(torch.tensor([0, 0]), 0.9, seed=0)


class TestSearch:
    @given(st.integers(1, 30), st.integers(0, 99))
    def test_points_cover_the_range(self, trials: int, seed: int) -> None:
        drawn = tune.points(trials, seed)
        for axis in (0, 1):
            assert sorted(int(p[axis] * trials) for p in drawn) == list(range(trials))
        assert drawn == tune.points(trials, seed)

    def test_everyone_tries_the_same_rates_equally_often(self, tmp_path: Path) -> None:
        todo = tune.plan(experiments("dpsgd", "choco", "d2"), 5, tmp_path)
        rates = {
            label: [t.settings["lr"] for t in todo if t.label == label]
            for label in ("D-PSGD", "CHOCO-SGD", "D²")
        }
        assert rates["D-PSGD"] == rates["CHOCO-SGD"] == rates["D²"]
        assert len(set(rates["D-PSGD"])) == 5
        assert all(tune.RATES[0] <= lr <= tune.RATES[1] for lr in rates["D-PSGD"])
        assert {t.job.experiment.epochs for t in todo} == {2}
        assert {t.job.experiment.validation for t in todo} == {tune.VALIDATION}
        assert len({t.job.out for t in todo}) == 15

    def test_gamma_is_drawn_where_it_is_the_methods_own(self) -> None:
        assert tune.settings_of(DPSGD(), (0.5, 0.1)) == {"lr": 0.1}
        assert tune.settings_of(CGA(), (0.0, 0.1)) == {"lr": 0.01}
        choco = build("choco", {})
        low, high = (tune.settings_of(choco, (1.0, at))["gamma"] for at in (0.0, 1.0))
        assert (low, high) == (0.04, 1.0)  # 0.2 over 5, and times 5
        assert tune.settings_of(build("d2", {}), (0.5, 1.0))["gamma"] == 1.0  # not above its limit

    def test_rates_the_wrong_way_round(self, tmp_path: Path) -> None:
        with pytest.raises(BadValue, match="rates"):
            tune.plan(experiments("dpsgd"), 2, tmp_path, (1.0, 0.1))


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tune.Trial]]:
    """Two methods, three trials, and for each one more with a rate that cannot work."""
    out = tmp_path_factory.mktemp("tune") / "search"
    todo = tune.plan(experiments("dpsgd", "ngc"), 3, out, (0.05, 0.5))
    for first in (todo[0], todo[3]):
        wild = first.job.experiment.replace(lr=1e30)
        job = Job(first.label, wild, first.job.out.with_name("trial-3"), may_diverge=True)
        todo.append(tune.Trial(first.label, 3, {"lr": 1e30}, wild, job))
    tune.tune(todo, 1, out, resume=False)
    tune.write(todo, out)
    return out, todo


class TestResults:
    def test_the_winner_is_the_most_accurate_on_what_was_held_out(
        self, searched: tuple[Path, list[tune.Trial]]
    ) -> None:
        out, todo = searched
        found = tune.read(out / tune.TUNED)
        for name in ("dpsgd", "ngc"):
            of = [t for t in todo if t.job.experiment.algorithm.name == name]
            scores = [t.score for t in of]
            best = of[scores.index(max(scores))]
            assert found["iid"][name] == best.settings
            assert max(scores)[0] > 0.3

    def test_diverged_trials_are_results(self, searched: tuple[Path, list[tune.Trial]]) -> None:
        out, todo = searched
        lost = [t for t in todo if t.job.failure is not None]
        assert [t.settings["lr"] for t in lost] == [1e30, 1e30]
        assert all("training has diverged" in (t.job.failure or "") for t in lost)
        assert all(t.score[0] == -1 for t in lost)
        cells = [line.split("|") for line in (out / "table.md").read_text().splitlines()[2:]]
        assert [int(row[-2]) for row in cells] == [1, 1]

    def test_goes_on_where_it_stopped(self, searched: tuple[Path, list[tune.Trial]]) -> None:
        out, todo = searched
        before = {t.job.out: (t.job.out / "experiment.toml").stat().st_mtime_ns for t in todo}
        with pytest.raises(BadValue, match="it is not empty; --resume goes on"):
            tune.tune(todo, 1, out, resume=False)
        tune.tune(todo, 1, out, resume=True)
        after = {t.job.out: (t.job.out / "experiment.toml").stat().st_mtime_ns for t in todo}
        assert before == after

    def test_training_and_comparisons_take_it(
        self, searched: tuple[Path, list[tune.Trial]]
    ) -> None:
        out, _ = searched
        found = tune.read(out / tune.TUNED)
        written = Experiment.from_toml((out / "iid" / "ngc.toml").read_text())
        [plain] = experiments("ngc")
        assert written == tune.tuned(plain, found)
        assert written.validation == 0 and written.lr == found["iid"]["ngc"]["lr"]

    def test_what_was_not_tuned(self, searched: tuple[Path, list[tune.Trial]]) -> None:
        found = tune.read(searched[0] / tune.TUNED)
        with pytest.raises(BadValue, match=r"partition: 'skew:1' .*it was not tuned.*valid: iid"):
            tune.tuned(experiments("ngc", partition="skew:1")[0], found)
        with pytest.raises(BadValue, match=r"algorithms: 'cga' .*valid: dpsgd, ngc"):
            tune.tuned(experiments("cga")[0], found)

    @pytest.mark.parametrize("text, words", [("a = [", "not TOML"), ("ngc = 1", "it has no table")])
    def test_other_files(self, tmp_path: Path, text: str, words: str) -> None:
        path = tmp_path / "x.toml"
        with pytest.raises(BadValue, match=r"tuned: .*No such file"):
            tune.read(path)
        path.write_text(text)
        with pytest.raises(BadValue, match=words):
            tune.read(path)


class TestField:
    def test_a_tree_where_only_a_tree_will_do(self) -> None:
        plain, relay = (field.fitting(e) for e in experiments("dpsgd", "relaysgd"))
        assert (plain.topology, relay.topology) == ("ring", "spanning-tree:ring")
        [directed] = experiments("cga", topology="directed-ring")
        with pytest.raises(BadValue, match="directed-ring"):
            field.fitting(directed)

    def test_one_table_and_one_picture(self, tmp_path: Path) -> None:
        by_partition = {
            name: experiments("dpsgd", "compngc", partition=name) for name in ("skew:1", "iid")
        }
        jobs = field.jobs(by_partition, 1, tmp_path)
        lost = Job("Lost", jobs[0].experiment.replace(lr=1e32), tmp_path / "lost", may_diverge=True)
        compare([*jobs, lost], 1, tmp_path, resume=False)
        rows = field.rows([*jobs, lost])
        field.write(tmp_path, [*jobs, lost], rows)
        lines = (tmp_path / "table.md").read_text().splitlines()
        assert [cell.strip() for cell in lines[0].split("|")[1:4]] == ["", "skew:1", "iid"]
        assert [line.split("|")[1].strip() for line in lines[2:]] == ["D-PSGD", "CompNGC"]
        dense, packed = (float(line.split("|")[4]) for line in lines[2:])
        assert packed / dense == pytest.approx(1 + 1 / 32, abs=0.03)  # one bit back for each entry
        records = [json.loads(line) for line in (tmp_path / "field.jsonl").read_text().splitlines()]
        assert {(r["partition"], r["label"]) for r in records} == {
            (p, label) for p in by_partition for label in ("D-PSGD", "CompNGC")
        }
        assert all(math.isfinite(r["seconds"]) for r in records)
        assert (tmp_path / "field.png").read_bytes().startswith(b"\x89PNG")
