"""Images that stay on disk: the same run to the last bit, with less memory."""

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import parley
from parley.data import Batches, load, own
from parley.data.mapped import Rows
from parley.data.samples import Data
from parley.errors import BadValue
from parley.experiment import Experiment
from parley.training.problem import problem
from tests.data.test_data import noise, write_hub_folder
from tests.data.test_sizes import write_folder
from tests.processes import PATIENCE, process


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_CACHE", str(tmp_path / "cache"))


def both(folder: Path, **options: Any) -> list[Data]:
    return [load(str(folder), options={**options, "mapped": mapped}) for mapped in (False, True)]


def test_the_same_samples(tmp_path: Path) -> None:
    """More than one chunk, colour among grey, and a place that is asked for twice."""
    grey = [image[..., 0] for image in noise(3, 6, 6, 3)]
    write_hub_folder(tmp_path / "pets", {"train": [*noise(70, 6, 6, 3), *grey], "test": grey})
    plain, mapped = both(tmp_path / "pets")
    rows: Any = mapped.train.inputs
    assert isinstance(rows, Rows) and rows.shape == plain.train.inputs.shape
    index = torch.tensor([72, 3, 40, 3, 0])
    assert torch.equal(rows.index_select(0, index), plain.train.inputs[index])
    assert torch.equal(rows[index][torch.tensor([1])].index_select(0, torch.tensor([0]))[0],
                       plain.train.inputs[3])  # fmt: skip
    assert torch.equal(mapped.test.inputs, plain.test.inputs)
    assert torch.equal(mapped.train.targets, plain.train.targets)
    assert (mapped.transform, mapped.class_names) == (plain.transform, plain.class_names)


def test_batches_are_decoded_ahead(tmp_path: Path) -> None:
    write_hub_folder(tmp_path / "pets", {"train": noise(20, 5, 5), "test": noise(2, 5, 5)})
    plain, mapped = (
        Batches([d.train.take(range(9)), d.train.take(range(9, 20))], [0, 1], 4, d.transform, 3)
        for d in both(tmp_path / "pets")
    )
    rows: Any = mapped.inputs
    for step in (0, 1, 2, 3, 7, 2, 8):  # in order and not, over the ends of passes
        expected, found = plain.at(step), mapped.at(step)
        assert torch.equal(found.inputs, expected.inputs)
        assert torch.equal(found.targets, expected.targets)
        assert rows._ahead is not None
        ahead = rows._ahead[1].result()  # of the next step, done by the thread
        first = plain._indices(step + 1)[0][0, 0]
        assert torch.equal(ahead[0], plain.inputs[first])


def test_a_run_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "scans")
    options: dict[str, Any] = {"data": str(folder), "agents": 2, "model": "mlp", "epochs": 2}
    options |= {"batch": 2, "partition": "iid", "progress": False, "algorithm": "ngc"}
    runs = [
        parley.train(**options, data_options={"resize": 8, "mapped": mapped})
        for mapped in (False, True)
    ]
    assert runs[0].x_ND.equal(runs[1].x_ND)
    assert runs[0].records[-1]["loss"] == runs[1].records[-1]["loss"]
    held = Experiment.of(**{n: v for n, v in options.items() if n != "progress"}, validation=0.4)
    held = held.replace(data_options={"resize": 8, "mapped": True})
    assert isinstance(problem(held).test.inputs, torch.Tensor)


def test_what_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "scans")
    with pytest.raises(BadValue, match=r"--data-option resize=9 scales and crops"):
        load(str(folder), options={"mapped": True})
    with pytest.raises(BadValue, match=r"data.mapped: 1 is not valid; valid: true or false"):
        load(str(folder), options={"mapped": 1})
    with pytest.raises(BadValue, match=r"data.mapped leaves them on disk"):
        chosen: dict[str, Any] = {"resize": 8, "mapped": True}
        spec = "feature:rotation"
        problem(Experiment.of(data=str(folder), agents=2, partition=spec, data_options=chosen))
    with pytest.raises(BadValue, match=r"data.mapped: True is not valid .*read into memory"):
        own.load({0: folder}, options={"resize": 8, "mapped": True})


def anonymous() -> int:
    """Bytes of memory that cannot be given back: not pages of mapped files, nor what allocators
    keep for later."""
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    [line] = [x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x]
    return int(line.split()[1]) * 1024


def measure(folder: Path, count: int) -> None:
    """By how much memory grows for batches of images, and for all of them at once."""
    torch.set_num_threads(1)
    os.environ["PARLEY_CACHE"] = str(folder / "cache")
    load(str(folder / "scans"), options={"resize": 8, "mapped": True})
    before = anonymous()
    data = load(str(folder / "photographs"), options={"mapped": True})
    batches = Batches([data.train], [0], 16, data.transform, seed=0)
    most = max(anonymous() for step in range(count // 16) if batches.at(step).sizes)
    rows: Any = data.train.take(range(count)).inputs
    everything = rows.column.decoded(rows.places)
    grown = [most - before, anonymous() - before]
    assert everything.numel() == count * 3 * 64 * 64
    (folder / "grown.json").write_text(json.dumps(grown))


@pytest.mark.skipif(sys.platform != "linux", reason="measures with /proc")
def test_memory_stays_below_the_size_of_the_dataset(tmp_path: Path) -> None:
    """Of the steps themselves: what a batch needs, not what all images need."""
    side, count = 64, 2400
    size = count * 3 * side * side  # 29 MB
    draws = np.random.default_rng(0)
    blocks = draws.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    images = [np.kron(block, np.ones((8, 8, 1), np.uint8)) for block in blocks]
    write_hub_folder(tmp_path / "photographs", {"train": images, "test": images[:4]})
    del images
    write_folder(tmp_path / "scans")
    # In a new process, since memory that other tests have left behind would be used again.
    worker = process(measure, tmp_path, count)
    worker.join(PATIENCE)
    in_batches, everything = json.loads((tmp_path / "grown.json").read_text())
    assert in_batches < 0.6 * size
    assert everything > 0.9 * size
