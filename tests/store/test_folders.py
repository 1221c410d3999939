"""One dataset folder for each agent, named in the partition's file."""

import json

import numpy as np
import pytest
from PIL import Image

from parley.errors import BadValue
from parley.experiment import Experiment
from parley.training import problem as problems


def put(folder, split, label, count):
    place = folder / split / label
    place.mkdir(parents=True)
    for number in range(count):
        Image.fromarray(np.full((8, 8), 20 * number, np.uint8)).save(place / f"{number}.png")


def test_each_agent_trains_on_its_own_folder(tmp_path):
    for split, count in (("train", 2), ("test", 3)):
        for label in ("cat", "dog"):
            put(tmp_path / "base", split, label, count)
    put(tmp_path / "first", "train", "dog", 5)
    put(tmp_path / "second", "train", "cat", 4)
    parts = tmp_path / "parts.json"
    parts.write_text(json.dumps([str(tmp_path / "first"), str(tmp_path / "second")]))
    options = {"data": str(tmp_path / "base"), "partition": f"file:{parts}"}
    problem = problems.problem(Experiment.of(**options, agents=2))
    assert problem.class_names == ("cat", "dog")
    assert [s.targets.tolist() for s in problem.samples] == [[1] * 5, [0] * 4]
    assert len(problem.test) == 6
    with pytest.raises(BadValue, match="3 folders"):
        problems.problem(Experiment.of(**options, agents=3))
