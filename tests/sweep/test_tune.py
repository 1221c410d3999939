"""The search: the same budget for all, no look at the test set, and files that can be used."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parley import data
from parley.algorithms import CGA, DPSGD, build
from parley.cli.main import main
from parley.errors import BadValue
from parley.experiment import Experiment, read_file
from parley.store.folder import RunFolder
from parley.sweep import field, tune
from parley.sweep.compare import compare
from parley.sweep.jobs import Job
from parley.training import problem as problems

pytestmark = pytest.mark.usefixtures("undrawn")
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
        plain, split = (
            problems.problem(experiment),
            problems.problem(experiment.replace(validation=0.2)),
        )
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

    def test_a_trial_ends_where_its_condition_holds(self, tmp_path: Path) -> None:
        """Records are what a condition looks at: without one, a trial has only its last."""
        small = {"model": "logistic", "epochs": 4, "evaluate_every": 2}
        plain, bound = (
            tune.plan(experiments("dpsgd", **small, stop_when=when), 2, tmp_path / str(place))
            for place, when in enumerate(["", "loss<=100"])
        )
        assert {trial.job.experiment.evaluate_every for trial in plain} == {4}
        for todo in (plain, bound):
            tune.tune(todo, 1, todo[0].job.out.parents[2], resume=False)
        epochs = [
            [[record["epoch"] for record in RunFolder(t.job.out).records()] for t in todo]
            for todo in (plain, bound)
        ]
        assert epochs == [[[4], [4]], [[2], [2]]]
        for todo in (plain, bound):
            assert max(trial.score for trial in todo)[0] > 0
        stopped = json.loads((bound[0].job.out / "summary.json").read_text())
        assert (stopped["stopped"], stopped["epochs"]) == ("loss<=100", 2)

    def test_gamma_is_drawn_where_it_is_the_methods_own(self) -> None:
        assert tune.settings_of(DPSGD(), (0.5, 0.1)) == {"lr": 0.1}
        assert tune.settings_of(CGA(), (0.0, 0.1)) == {"lr": 0.01}
        choco = build("choco", {})
        low, high = (tune.settings_of(choco, (1.0, at))["gamma"] for at in (0.0, 1.0))
        assert (low, high) == (0.04, 1.0)  # 0.2 over 5, and times 5
        assert tune.settings_of(build("d2", {}), (0.5, 1.0))["gamma"] == 1.0  # not above its limit

    @pytest.mark.parametrize("name", ["d2", "led"])
    def test_gamma_is_one_that_the_graph_allows(self, name: str, tmp_path: Path) -> None:
        """The smallest eigenvalue of a hypercube is -1/2, so that γ has to be below 8/9."""
        todo = tune.plan(experiments(name, topology="hypercube", agents=8), 30, tmp_path)
        assert max(trial.settings["gamma"] for trial in todo) == pytest.approx(0.88)
        for trial in todo:
            trial.experiment.algorithm.check(problems.topology_of(trial.experiment))

    def test_rates_the_wrong_way_round(self, tmp_path: Path) -> None:
        with pytest.raises(BadValue, match="rates"):
            tune.plan(experiments("dpsgd"), 2, tmp_path, (1.0, 0.1))


GROWING: dict[str, Any] = {"lr": 1e6, "weight_decay": 1000.0}
"""Every step makes the models a billion times larger."""


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tune.Trial]]:
    """Two methods, three trials, and for each one more with a rate that cannot work."""
    out = tmp_path_factory.mktemp("tune") / "search"
    todo = tune.plan(experiments("dpsgd", "ngc"), 3, out, (0.05, 0.5))
    for first in (todo[0], todo[3]):
        wild = first.job.experiment.replace(**GROWING)
        job = Job(first.label, wild, first.job.out.with_name("trial-3"), may_diverge=True)
        todo.append(tune.Trial(first.label, first.key, 3, {"lr": 1e6}, wild, job))
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
        assert [t.settings["lr"] for t in lost] == [1e6, 1e6]
        assert all("training has diverged" in (t.job.failure or "") for t in lost)
        assert all(t.score[0] == float("-inf") for t in lost)
        cells = [line.split("|") for line in (out / "table.md").read_text().splitlines()[2:]]
        assert [int(row[-2]) for row in cells] == [1, 1]

    def test_continues_where_it_stopped(self, searched: tuple[Path, list[tune.Trial]]) -> None:
        out, todo = searched
        before = {t.job.out: (t.job.out / "experiment.toml").stat().st_mtime_ns for t in todo}
        with pytest.raises(BadValue, match="it is not empty; use --resume to continue"):
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


class TestWhatIsAskedFor:
    """Tuning does not replace what the user wrote."""

    @pytest.fixture
    def command(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> Any:
        monkeypatch.chdir(tmp_path)

        def run(words: str) -> tuple[Any, str]:
            small = "--agents 3 --model logistic --batch 200 --gossip-rounds 0 --parallel 1"
            monkeypatch.setattr(sys, "argv", ["parley", *words.split(), *small.split()])
            with pytest.raises(SystemExit) as exit_:
                main()
            return exit_.value.code, capsys.readouterr().err

        return run

    def test_a_rate_that_tuning_would_replace_is_refused(self, command: Any) -> None:
        for words in (
            "tune --lr 0.3 --epochs 1",
            "tune --algorithms dpsgd,ngc:lr=0.3 --epochs 1",
            "compare --tune 2 --lr 0.3",
            "compare --tune 2 --algorithms ngc:lr=0.3",
        ):
            code, err = command(words)
            assert code == 2 and "lr: 0.3 is not valid (tuning chooses it)" in err

    def test_a_given_averaging_rate_is_not_searched(self) -> None:
        at = (0.5, 0.5)
        assert set(tune.settings_of(build("choco", {}), at)) == {"lr", "gamma"}
        assert set(tune.settings_of(build("choco", {"gamma": 0.3}), at)) == {"lr"}
        assert set(tune.settings_of(build("dpsgd", {"gamma": 0.3}), at)) == {"lr"}

    def test_two_of_the_same_algorithm_are_tuned_apart(self, command: Any) -> None:
        methods = "--algorithms ngc:alpha=0,ngc,choco:gamma=0.4"
        code, err = command(f"tune {methods} --trials 2 --epochs 1 --partition iid --out found")
        assert code == 0, err
        found = tune.read(Path("found/tuned.toml"))["iid"]
        assert set(found) == {"ngc:alpha=0", "ngc", "choco"}
        assert set(found["choco"]) == {"lr"}
        assert read_file(Path("found/iid/ngc-alpha-0.toml"))["algorithm"]["alpha"] == 0
        # As different as can be, so that one cannot be taken for the other.
        Path("tuned.toml").write_text(
            '[iid."ngc:alpha=0"]\nlr = 0.01\n[iid.ngc]\nlr = 0.02\n'
            "[iid.choco]\nlr = 0.03\ngamma = 0.9\n"
        )
        words = f"compare {methods},dpsgd --tuned tuned.toml --seeds 1 --epochs 1"
        code, err = command(f"{words} --partition iid --out all")
        assert code == 2 and "algorithms: 'dpsgd' is not valid (it was not tuned" in err
        words = f"compare {methods}:lr=0.5,dpsgd:lr=0.6 --tuned tuned.toml --seeds 1 --epochs 1"
        code, err = command(f"{words} --partition iid --out all")
        assert code == 0, err
        made = [
            RunFolder(path.parent).experiment()
            for path in sorted(Path("all/iid").rglob("experiment.toml"))
        ]
        rates = {e.algorithm.label: e.lr for e in made if e}
        assert (rates["NGC α=0"], rates["NGC"], rates["D-PSGD"]) == (0.01, 0.02, 0.6)
        [choco] = [e for e in made if e and e.algorithm.name == "choco"]
        assert (choco.lr, choco.algorithm.settings()["gamma"]) == (0.5, 0.4)

    def test_a_rate_for_all_beside_tuned_ones_is_refused(self, command: Any) -> None:
        code, err = command("compare --tuned x.toml --lr 0.3")
        assert code == 2 and "--tuned sets it for each method" in err

    def test_a_graph_behind_a_name_is_not_replaced(self, command: Any) -> None:
        words = "compare --algorithms dpsgd,relaysgd:topology=ring --partitions iid,skew:1"
        code, err = command(f"{words} --epochs 1 --out all")
        assert code == 2 and "relaysgd:topology=chain" in err
        code, err = command("compare --algorithms ngc:partition=iid --partitions iid,skew:1")
        assert code == 2 and "one partition for all methods" in err

    def test_an_option_that_no_method_has_is_refused(self, command: Any) -> None:
        code, err = command("tune --algorithms dpsgd,qgm --alpha 0.5")
        assert code == 2 and "alpha: 0.5 is not valid (none of dpsgd, qgm has it)" in err


class TestField:
    def test_a_tree_where_only_a_tree_will_do(self) -> None:
        plain, relay = (field.fitting(e) for e in experiments("dpsgd", "relaysgd"))
        assert (plain.topology, relay.topology) == ("ring", "spanning-tree:ring")
        [directed] = experiments("cga", topology="directed-ring")
        with pytest.raises(BadValue, match="symmetric weights"):
            field.fitting(directed)

    def test_one_table_and_one_picture(self, tmp_path: Path, drawn: None) -> None:
        by_partition = {
            name: experiments("dpsgd", "compngc", partition=name) for name in ("skew:1", "iid")
        }
        jobs = field.jobs(by_partition, 1, tmp_path)
        grown = jobs[0].experiment.replace(**GROWING)
        lost = Job("Lost", grown, tmp_path / "lost", may_diverge=True)
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
        assert (tmp_path / "field.svg").read_bytes().startswith(b"<?xml")
