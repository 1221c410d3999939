"""The examples that are folders: they train, draw their pictures, and are what their pages show."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import parley
from tests.cluster.test_launch import as_ranks
from tests.processes import PATIENCE, TOKEN, Command, nothing_left, records, without_torchrun
from tests.training.test_scoring import TIMES

ROOT = Path(__file__).parents[1]
TASKS = ROOT / "examples" / "tasks"
HOSPITALS = ROOT / "examples" / "hospitals"
SHORT = ("--epochs=2", "--gossip-rounds=1")


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def docs(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """What writes the pages, and has the examples as `docs.run` and `docs.hospitals`."""
    monkeypatch.delitem(sys.modules, "networks", raising=False)  # another test's
    monkeypatch.syspath_prepend(str(TASKS))
    monkeypatch.syspath_prepend(str(HOSPITALS))
    yield module_at(ROOT / "docs" / "update_examples.py")
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(ROOT / "examples")):
            del sys.modules[name]  # run, scans, …: other tests may have modules of these names


def test_every_task_has_its_example(docs: ModuleType) -> None:
    files = {path.stem for path in TASKS.glob("*.py")}
    assert files == {"run", *docs.run.NAMES}


@pytest.mark.parametrize(
    "name", ["regression", "segmentation", "multilabel", "language_model", "adapters"]
)
class TestTasks:
    def test_it_trains_alone_and_together_and_draws(
        self, docs: ModuleType, name: str, tmp_path: Path
    ) -> None:
        """Briefly here: the page's own program, which another test runs, trains to the end."""
        epochs = 8 if name == "regression" else 2
        outcome = docs.run.train(name, epochs=epochs, evaluate_every=epochs // 2)
        first, last = outcome.together.records
        assert last["loss"] < first["loss"]
        assert len(outcome.alone) == len(last["test_samples_agents"]) == 3
        assert outcome.numbers["test_samples"] == sum(last["test_samples_agents"])
        docs.run.draw(name, outcome, tmp_path / "picture.png")
        with Image.open(tmp_path / "picture.png") as picture:
            assert picture.width > 1000 and len(set(picture.convert("L").tobytes())) > 10

    def test_the_page_has_its_numbers_and_its_code(self, docs: ModuleType, name: str) -> None:
        record = docs.recorded(name)
        higher = record["metric"] in ("f1", "iou")
        best = max(record["alone"]) if higher else -min(record["alone"])
        assert record["parameters_sent"] <= record["parameters"]
        assert (record["together"] if higher else -record["together"]) > best
        assert docs.page_of(name).read_text(encoding="utf-8") == docs.page(name)
        with Image.open(ROOT / "docs" / "images" / "examples" / f"{name}.png") as picture:
            assert picture.width > 1000

    def test_data_are_the_same_each_time(self, docs: ModuleType, name: str) -> None:
        module = docs.run.example(name)
        for agent in range(len(module.SITES)):
            first, again = module.site(agent), module.site(agent)
            for part in ("train", "test"):
                assert all(map(torch.equal, first[part], again[part]))


def test_a_task_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docs: ModuleType
) -> None:
    """Model and data by name, as the page says."""
    monkeypatch.setenv("PYTHONPATH", str(TASKS))
    monkeypatch.chdir(TASKS)
    places = [f"--data-here={agent}=regression:site" for agent in range(3)]
    run = Command(
        tmp_path, "train", "--task=regression", "--model=regression:network", "--data=own",
        "--agents=3", "--topology=full", *places, "--algorithm=ngc+adamw", "--lr=0.01",
        "--epochs=2", f"--out={tmp_path / 'run'}", "--json",
    )  # fmt: skip
    assert run.wait() == 0, run.err
    given = {**docs.run.example("regression").OPTIONS, "epochs": 2, "metrics": ""}
    expected = docs.run.train("regression", **given).together
    assert run.summary["rmse_mean_model"] == pytest.approx(
        expected.summary["rmse_mean_model"], rel=1e-4
    )


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The disks of the three hospitals."""
    made: list[Path] = module_at(HOSPITALS / "scans.py").write(tmp_path_factory.mktemp("homes"))
    return made


@pytest.fixture(scope="module")
def trained(homes: list[Path]) -> list[Path]:
    """The runs of a rehearsal in one process, and of three hosts under torchrun."""
    env = {**os.environ, TOKEN: "hospitals", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    port = as_ranks(3)[0]["MASTER_PORT"]
    hosts = [
        ["-m", "torch.distributed.run", "--nnodes=3", "--nproc-per-node=1", f"--node-rank={rank}",
         f"--rdzv-endpoint=127.0.0.1:{port}", "-m", "parley", "train", "experiment.toml",
         "--host=host.toml", "--out=run", "--patience=240", *SHORT]
        for rank in range(3)
    ]  # fmt: skip
    places = [f"--data-here={agent}=../{home.name}/scans" for agent, home in enumerate(homes)]
    alone = ["-m", "parley", "train", "experiment.toml", "--allow-code=networks", *places]
    words = [*hosts, [*alone, "--out=rehearsal", *SHORT]]
    started = [
        subprocess.Popen(
            [sys.executable, *of], env=env, cwd=home, stderr=subprocess.PIPE, text=True,
            stdout=subprocess.DEVNULL,
        )
        for of, home in zip(words, [*homes, homes[0]], strict=True)
    ]  # fmt: skip
    for process in started:
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        assert "Traceback" not in without_torchrun(err)
    assert nothing_left("hospitals")
    return [homes[0] / "rehearsal", *(home / "run" for home in homes)]


class TestHospitals:
    def test_scans_have_different_sizes_and_amounts(self, homes: list[Path]) -> None:
        sizes, amounts = set(), set()
        for home in homes:
            files = sorted((home / "scans").rglob("*.png"))
            amounts.add(len(files))
            for file in files:
                with Image.open(file) as scan:
                    sizes.add(scan.size)
        assert len(sizes) == len(amounts) == 3

    def test_hosts_have_the_numbers_of_one_process(self, trained: list[Path]) -> None:
        expected, *found = map(records, trained)
        assert expected[-1]["test_samples_agents"] == [40, 40, 24]
        assert expected[-1]["auroc_mean_model"] is not None
        for of_host in found:
            for mine, other in zip(of_host, expected, strict=True):
                assert mine.keys() == other.keys()
                for name in mine.keys() - TIMES:
                    assert mine[name] == other[name], name

    def test_python_has_the_same_numbers(
        self, docs: ModuleType, homes: list[Path], trained: list[Path]
    ) -> None:
        result = docs.hospitals.train(homes, epochs=2, gossip_rounds=1)
        of_run = records(trained[0])[-1]
        for key in ("loss", "auroc_mean_model", "auroc_own", "auroc_personal_mean_model_agents"):
            assert result.records[-1][key] == pytest.approx(of_run[key], rel=1e-5), key

    def test_every_host_ends_with_its_model(
        self, homes: list[Path], trained: list[Path], docs: ModuleType
    ) -> None:
        rehearsed, *runs = trained
        average = load_file(rehearsed / "model.safetensors")
        assert any("running_mean" in name for name in average)
        for agent, (home, run) in enumerate(zip(homes, runs, strict=True)):
            held = [path.name for path in (run / "agents").iterdir()]
            assert held == [f"agent-{agent}.safetensors"]
            for file in ("model.safetensors", f"agents/{held[0]}"):
                mine, other = load_file(run / file), load_file(rehearsed / file)
                assert mine.keys() == other.keys()
                for name in mine:
                    assert torch.equal(mine[name], other[name]), name
            [answer] = parley.load(run).predict(home / "new.png", allow_code="networks")
            assert set(answer.probabilities) == {"healthy", "ill"}

    def test_a_new_scan_is_read(
        self, homes: list[Path], trained: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """From the command line; no network takes scans of its size."""
        monkeypatch.syspath_prepend(str(homes[1]))
        words = ("predict", trained[2], homes[1] / "new.png", "--allow-code=networks", "--json")
        asked = Command(homes[1], *words)
        assert asked.wait() == 0, asked.err
        [answer] = json.loads(asked.out)
        assert answer["label"] in ("healthy", "ill")

    def test_the_page_has_the_numbers_of_the_record(self, docs: ModuleType, tmp_path: Path) -> None:
        record = docs.recorded("hospitals")
        assert record["auroc_together"] > max(record["auroc_alone"])
        page = docs.page_of("hospitals").read_text(encoding="utf-8")
        assert page == docs.page("hospitals")
        shared = (HOSPITALS / "experiment.toml").read_text(encoding="utf-8").split("\n\n", 1)[1]
        assert f"```toml\n{shared}```" in page
        homes = docs.hospitals.write(tmp_path)
        assert (homes[0] / "host.toml").read_text(encoding="utf-8") in page
        docs.hospitals.draw(homes, record, tmp_path / "picture.png")
        assert (tmp_path / "picture.png").stat().st_size > 10_000
