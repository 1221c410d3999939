"""Images of different sizes, scaled and cropped to one."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

import parley
from parley.data import load, own
from parley.data.images import pixels, squared
from parley.data.preparation import Expected, Preparation
from parley.errors import BadValue

SIZES = {"a": (12, 9), "b": (9, 20), "c": (16, 16)}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_CACHE", str(tmp_path / "cache"))


def photograph(width: int, height: int, seed: int = 0, grey: bool = True) -> Image.Image:
    shape = (height, width) if grey else (height, width, 3)
    draws = np.random.default_rng([seed, width, height])
    return Image.fromarray(draws.integers(0, 256, shape, dtype=np.uint8))


def write_folder(folder: Path, sizes: dict[str, tuple[int, int]] = SIZES) -> Path:
    """Two classes, each with an image of every size, as PNG and as JPEG."""
    for split in ("train", "test"):
        for seed, kind in enumerate(("healthy", "ill")):
            (folder / split / kind).mkdir(parents=True)
            for name, (width, height) in sizes.items():
                end = "png" if name < "c" else "jpg"
                photograph(width, height, seed).save(folder / split / kind / f"{name}.{end}")
    return folder


def test_without_an_option_file_size_and_remedy_are_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "scans")
    with pytest.raises(BadValue) as caught:
        load(str(folder))
    assert str(caught.value) == (
        f"data: '{folder}' is not valid (training image 0 a.png has 12 x 9 pixels and training "
        "image 1 b.png 9 x 20); valid: images of one size; --data-option resize=9 scales and crops "
        "them to squares"
    )


@pytest.mark.parametrize(
    ("options", "shorter", "side"), [({"resize": 10}, 10, 10), ({"resize": 10, "crop": 8}, 10, 8)]
)
def test_images_are_scaled_and_cropped(
    tmp_path: Path, options: dict[str, int], shorter: int, side: int
) -> None:
    folder = write_folder(tmp_path / "scans")
    data = load(str(folder), options=options)
    assert data.train.inputs.shape == data.test.inputs.shape == (6, 1, side, side)
    for row, name in enumerate(("a.png", "b.png", "c.jpg")):
        with Image.open(folder / "train" / "healthy" / name) as image:
            expected = pixels(squared(image, shorter, side))[:, :, 0]
        np.testing.assert_array_equal(data.train.inputs[row, 0].numpy(), expected)
    again = load(str(folder), options=options)  # from the cache
    assert torch.equal(again.train.inputs, data.train.inputs)
    assert (again.preparation.resize, again.preparation.crop) == (shorter, side)


def test_cropping_alone_keeps_pixels_and_refuses_what_is_smaller(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "scans")
    data = load(str(folder), options={"crop": 8})
    with Image.open(folder / "train" / "healthy" / "a.png") as image:
        whole = np.asarray(image)
    np.testing.assert_array_equal(data.train.inputs[0, 0].numpy(), whole[:8, 2:10])
    assert (data.preparation.resize, data.preparation.crop) == (0, 8)
    small = (
        r"data.crop: 10 .*\(training image 0 a\.png of .* has 12 x 9 .*valid: at most 9; or data"
    )
    with pytest.raises(BadValue, match=small):
        load(str(folder), options={"crop": 10})
    expected = Expected((1, 10, 10), "uint8", Preparation(crop=10))
    with pytest.raises(BadValue, match=r"12 x 9 pixels.*; valid: an image of at least 10 x 10"):
        expected.read([str(folder / "train" / "healthy" / "a.png")])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resize": 3}, "data.resize: 3 is not valid; valid: a whole number from 4 to 4096"),
        ({"resize": 5000}, "data.resize: 5000 is not valid"),
        ({"resize": 8, "crop": 9}, r"data.crop: 9 is not valid \(data.resize is 8\)"),
        ({"resize": 8, "length": 9}, r"'length' is not valid .*has images\).*resize, crop"),
    ],
)
def test_what_is_refused(tmp_path: Path, options: dict[str, int], words: str) -> None:
    folder = write_folder(tmp_path / "scans")
    with pytest.raises(BadValue, match=words):
        load(str(folder), options=options)


def test_imagenette_has_its_own_size() -> None:
    with pytest.raises(BadValue, match=r"'resize' is not valid .*scaled and cropped already"):
        load("imagenette", options={"resize": 8})


def test_agents_with_folders_of_different_sizes(tmp_path: Path) -> None:
    one = write_folder(tmp_path / "one", {"a": (9, 9)})
    two = write_folder(tmp_path / "two", {"a": (12, 10)})
    with pytest.raises(BadValue, match=r"agent 0's: uint8 of shape \[1, 9, 9\]; .*resize=9 scales"):
        own.load({0: one, 1: two})
    found = own.load({0: one, 1: two}, options={"resize": 9})
    assert [tuple(s.inputs.shape) for s in found.samples] == [(2, 1, 9, 9)] * 2
    assert found.preparation.resize == 9


def test_datasets_from_python(tmp_path: Path) -> None:
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes"])}

    def site(seed: int) -> Any:
        images = [photograph(8 + n, 10, seed) for n in range(4)]
        rows = {"image": images, "label": [0, 1, 0, 1]}
        return datasets.Dataset.from_dict(rows, features=datasets.Features(features))

    settings: dict[str, Any] = {"algorithm": "dpsgd", "epochs": 1, "progress": False}
    sites = [site(agent) for agent in range(3)]
    out = tmp_path / "run"
    parley.train(
        "logistic", data=sites, test=site(9), data_options={"resize": 8}, out=out, **settings
    )
    photograph(30, 20).save(tmp_path / "large.png")
    [answer] = parley.load(out).predict(tmp_path / "large.png")
    assert sum(answer.probabilities.values()) == pytest.approx(1)
    pairs = [(torch.zeros(2, 3), [0, 1])] * 3
    with pytest.raises(BadValue, match="data_options: 'resize' is not valid; valid: none"):
        parley.train("logistic", data=pairs, data_options={"resize": 8}, **settings)
