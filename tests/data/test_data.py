import io
import os
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits

import parley
from parley.cache import cache_folder
from parley.data import Batches, Samples, Transform, from_user, load, own, steps_per_epoch
from parley.data import sources as module
from parley.errors import BadValue

# Read before any test hides it.
ROOT = Path(os.environ.get("PARLEY_DATA_ROOT") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("PARLEY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.delenv("PARLEY_DATA_ROOT", raising=False)


def numbered(n: int, first: int = 0) -> Samples:
    """Samples that can be told apart: sample i's only feature and its class are first + i."""
    values = torch.arange(first, first + n)
    return Samples(values[:, None].float(), values)


def pictures(n: int, seed: int = 0) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, 3, 6, 5), generator=generator, dtype=torch.uint8)
    return Samples(pixels, torch.arange(n) % 4)


AUGMENTING = Transform((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), flip=True, crop_padding=2)


def test_samples_take():
    taken = numbered(5).take(np.array([3, 1]))
    assert taken.targets.tolist() == [3, 1] and taken.inputs.flatten().tolist() == [3, 1]
    assert len(taken) == 2


def test_normalise_is_its_formula():
    inputs = pictures(4).inputs
    for dtype in (torch.float32, torch.float64):
        mean, std = (
            torch.tensor(v, dtype=dtype)[:, None, None] for v in (AUGMENTING.mean, AUGMENTING.std)
        )
        expected = (inputs.to(dtype) / 255 - mean) / std
        actual = AUGMENTING.normalise(inputs, dtype)
        assert actual.dtype == dtype
        torch.testing.assert_close(actual, expected)
        # Floats are taken as they are.
        torch.testing.assert_close(AUGMENTING.normalise(inputs.to(dtype) / 255, dtype), expected)
    plain = Transform().normalise(inputs)
    torch.testing.assert_close(plain, inputs.float() / 255)
    tokens = torch.tensor([[5, 7]])
    assert Transform().normalise(tokens) is tokens
    assert Transform().normalise(tokens.int()).dtype == torch.int64


def augment_loop(image: np.ndarray, flip: int, top: int, left: int, padding: int) -> np.ndarray:
    _, height, width = image.shape
    if flip:
        image = image[:, :, ::-1]
    padded = np.pad(image, [(0, 0), (padding, padding), (padding, padding)])
    return padded[:, top : top + height, left : left + width]


@settings(deadline=None, max_examples=30)
@given(st.booleans(), st.integers(0, 3), st.integers(1, 9), st.integers(0, 1000))
def test_augment_equals_a_loop(flip, padding, n, seed):
    transform = Transform(flip=flip, crop_padding=padding)
    draws = transform.draw(np.random.default_rng(seed), n)
    assert draws.shape == (n, 3)
    inputs = pictures(n).inputs
    expected = [
        augment_loop(image, *row, padding) for image, row in zip(inputs.numpy(), draws, strict=True)
    ]
    np.testing.assert_array_equal(transform.augment(inputs, draws).numpy(), np.stack(expected))


def resized_loop(image: np.ndarray, flip: int, top: int, left: int, h: int, w: int, side: int):
    """One image [c, h, w] through Pillow, rows first (which comes first depends on its version)."""
    part = Image.fromarray(image.transpose(1, 2, 0)).crop((left, top, left + w, top + h))
    for size in ((side, h), (side, side)):
        part = part.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(part)[:, :: -1 if flip else 1].transpose(2, 0, 1)


@settings(deadline=None, max_examples=30)
@given(
    st.booleans(), st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.integers(0, 99)
)
def test_resized_crops_equal_pillows_in_a_loop(flip, height, width, side, seed):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (5, 3, height, width), dtype=np.uint8)
    transform = Transform(flip=flip, resized_crop=side)
    draws = transform.draw(rng, 5, (height, width))
    assert draws.shape == (5, 5)
    expected = np.stack([resized_loop(i, *row, side) for i, row in zip(images, draws, strict=True)])
    np.testing.assert_array_equal(
        transform.augment(torch.from_numpy(images), draws).numpy(), expected
    )
    floats = transform.augment(torch.from_numpy(images).float(), draws).numpy()
    np.testing.assert_allclose(floats, expected, atol=1.01)  # not rounded after rows, columns


def test_random_parts_are_as_torchvision_draws_them():
    draws = Transform(flip=True, resized_crop=8).draw(np.random.default_rng(0), 20_000, (60, 90))
    flip, top, left, h, w = draws.T
    assert (
        (top >= 0).all() and (top + h <= 60).all() and (left >= 0).all() and (left + w <= 90).all()
    )
    assert flip.mean() == pytest.approx(0.5, abs=0.02)
    share, ratio = h * w / (60 * 90), w / h
    assert 0.075 < share.min() < 0.09
    assert 0.85 < share.max() < 0.9  # the ratio limits it to 80 x 60
    assert 0.7 < ratio.min() < 0.76 and 1.32 < ratio.max() < 1.4
    small = share < 0.3  # parts that fit whatever their ratio: nothing was drawn again
    assert np.log(ratio[small]).mean() == pytest.approx(0, abs=0.01)
    assert share[small].mean() == pytest.approx(0.19, abs=0.005)
    assert np.unique(top[h == 50]).tolist() == [*range(11)]  # every place, both ends included


def test_parts_that_never_fit_are_central():
    wide = Transform(resized_crop=4).draw(np.random.default_rng(0), 50, (3, 300))
    assert {tuple(row) for row in wide.tolist()} == {(0, 0, 148, 3, 4)}
    tall = Transform(resized_crop=4).draw(np.random.default_rng(0), 50, (300, 3))
    assert {tuple(row) for row in tall.tolist()} == {(0, 148, 0, 4, 3)}


def test_two_kinds_of_crop_exclude_each_other():
    with pytest.raises(ValueError, match="cannot be combined"):
        Transform(crop_padding=1, resized_crop=4)


def test_draws_reach_every_flip_and_place():
    draws = AUGMENTING.draw(np.random.default_rng(0), 500)
    assert [np.unique(column).tolist() for column in draws.T] == [[0, 1], [*range(5)], [*range(5)]]
    unflipped = Transform(crop_padding=1).draw(np.random.default_rng(0), 50)
    assert not unflipped[:, 0].any()


@pytest.mark.parametrize("transform", [AUGMENTING, Transform(flip=True, resized_crop=4)])
def test_batches_do_not_depend_on_the_other_agents(transform):
    shares = [pictures(n, seed) for seed, n in enumerate((11, 30, 17, 5))]
    together = Batches(shares, [0, 1, 2, 3], 4, transform, seed=9)
    alone = Batches([shares[2]], [2], 4, transform, seed=9)
    later = [alone.at(step) for step in reversed(range(12))]
    for step, one in enumerate(reversed(later)):
        many = together.at(step)
        size = one.sizes[0]
        assert many.sizes[2] == size and one.agents == (2,) and one.step == step
        assert torch.equal(many.inputs[2, :size], one.inputs[0])
        assert torch.equal(many.targets[2, :size], one.targets[0])
        assert torch.equal(many.weights[2, :size], one.weights[0])
        assert torch.equal(together.at(step).inputs, many.inputs)


def test_agents_steps_and_seeds_draw_different_batches():
    share = pictures(64)
    batches = Batches([share, share], [0, 1], 64, AUGMENTING, seed=0)
    other = Batches([share, share], [0, 1], 64, AUGMENTING, seed=1)
    seen = [*batches.at(0).inputs, *batches.at(1).inputs, *other.at(0).inputs]
    for i in range(len(seen)):
        for j in range(i):
            assert not torch.equal(seen[i], seen[j])


@pytest.mark.parametrize(("n", "batch"), [(12, 4), (13, 4), (3, 4), (1, 1), (7, 7)])
def test_a_pass_has_every_sample_once(n, batch):
    batches = Batches([numbered(n, 100)], [3], batch, Transform(), seed=0)
    steps = steps_per_epoch([n], batch)
    orders = []
    for number in range(3):
        seen = [
            target
            for step in range(number * steps, (number + 1) * steps)
            for target in batches.at(step).targets[0].tolist()
        ]
        assert sorted(seen) == list(range(100, 100 + n))
        orders.append(seen)
    if n > 3:
        assert orders[0] != orders[1] != orders[2]


def test_short_batches_are_padded_with_weight_zero():
    batches = Batches([numbered(5), numbered(8, 50)], [4, 6], 4, Transform(), seed=0)
    full, short = batches.at(0), batches.at(1)
    assert full.sizes == (4, 4) and torch.equal(full.weights, torch.full((2, 4), 0.25))
    assert short.sizes == (1, 4) and short.agents == (4, 6)
    assert short.weights.tolist() == [[1, 0, 0, 0], [0.25] * 4]
    assert short.inputs[0].unique().numel() == 1 and short.targets[0].unique().numel() == 1
    # An agent's inputs and targets stay together, and are its own.
    assert torch.equal(short.inputs[..., 0].long(), short.targets)
    assert (short.targets[0] < 5).all() and (short.targets[1] >= 50).all()


def test_a_batch_is_no_wider_than_its_widest_agent():
    batches = Batches([numbered(2), numbered(3)], [0, 1], 32, Transform(), seed=0)
    assert batches.at(0).inputs.shape == (2, 3, 1)
    assert Batches([numbered(2)], [0], 32, Transform(), seed=0).at(0).weights.tolist() == [
        [0.5, 0.5]
    ]


def test_augmented_padding_repeats_the_first_sample():
    batches = Batches([pictures(5), pictures(8)], [0, 1], 4, AUGMENTING, 0, dtype=torch.float64)
    short = batches.at(1)
    assert short.inputs.dtype == short.weights.dtype == torch.float64
    assert all(torch.equal(short.inputs[0, k], short.inputs[0, 0]) for k in range(4))


def test_batches_refuse_nonsense():
    with pytest.raises(BadValue, match=r"^batch: 0"):
        Batches([numbered(2)], [0], 0, Transform(), seed=0)
    with pytest.raises(BadValue, match="agent 7"):
        Batches([numbered(0)], [7], 1, Transform(), seed=0)


def test_the_papers_steps_per_epoch():
    assert [steps_per_epoch([50_000 // n] * n, 32) for n in (5, 10, 20)] == [313, 157, 79]
    assert steps_per_epoch([10, 33, 4], 32) == 2


def test_digits_are_those_of_scikit_learn():
    images, labels = load_digits(return_X_y=True)
    data = load("digits")

    def rows(inputs, labels):
        flat = inputs.reshape(len(inputs), -1).tolist()
        return sorted(zip(flat, labels.tolist(), strict=True))

    inputs, targets = (torch.cat([getattr(part, name) for part in (data.train, data.test)])
                       for name in ("inputs", "targets"))  # fmt: skip
    assert rows(inputs * 16, targets) == rows(images, labels)


def test_digits():
    data = load("digits")
    assert data.name == "digits" and len(data.train) + len(data.test) == 1797
    assert data.train.inputs.dtype == torch.float32 and data.train.inputs.max() == 1
    x = data.transform.normalise(data.train.inputs)
    assert x.mean().item() == pytest.approx(0, abs=1e-4)
    assert x.std().item() == pytest.approx(1, abs=1e-3)
    every, test = (torch.bincount(t) for t in (data.train.targets, data.test.targets))
    torch.testing.assert_close(test / (test + every), torch.full((10,), 0.2), atol=0.01, rtol=0)
    again = load("digits")
    assert torch.equal(again.test.inputs, data.test.inputs)


def png(pixels: np.ndarray) -> dict[str, object]:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return {"bytes": out.getvalue(), "path": None}


def write_hub_folder(folder: Path, splits: dict[str, list[np.ndarray]], names=("cat", "dog")):
    """A folder as the hub's: Parquet files in data/, features in their metadata."""
    features = datasets.Features(
        {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=list(names))}
    )
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for split, images in splits.items():
        rows = {
            "picture": [png(image) for image in images],
            "kind": [i % len(names) for i in range(len(images))],
        }
        dataset = datasets.Dataset.from_dict(rows, features=features)
        dataset.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")


def noise(n: int, *shape: int) -> list[np.ndarray]:
    return list(np.random.default_rng(n).integers(0, 256, (n, *shape), dtype=np.uint8))


def test_a_local_copy_of_a_hub_dataset(tmp_path, monkeypatch):
    train, test = noise(5, 4, 3, 3), noise(2, 4, 3, 3)
    write_hub_folder(tmp_path / "root" / "owner" / "pets", {"train": train, "test": test})
    data = load("owner/pets", tmp_path / "root")
    assert data.class_names == ("cat", "dog") and data.name == "owner/pets"
    np.testing.assert_array_equal(data.train.inputs.numpy(), np.stack(train).transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.test.inputs.numpy(), np.stack(test).transpose(0, 3, 1, 2))
    assert data.train.targets.tolist() == [0, 1, 0, 1, 0]
    values = np.stack(train) / 255
    assert data.transform.mean == pytest.approx(values.mean((0, 1, 2)), abs=1e-5)
    assert data.transform.std == pytest.approx(values.std((0, 1, 2)), abs=1e-5)
    assert not data.transform.augments

    monkeypatch.setenv("PARLEY_DATA_ROOT", str(tmp_path / "root"))
    assert torch.equal(load("owner/pets").train.inputs, data.train.inputs)
    by_path = load(str(tmp_path / "root" / "owner" / "pets"))
    assert torch.equal(by_path.train.inputs, data.train.inputs)


def test_known_names_keep_their_transform_and_validation_serves_as_test(tmp_path):
    write_hub_folder(
        tmp_path / "uoft-cs" / "cifar10",
        {"train": noise(2, 32, 32, 3), "validation": noise(1, 32, 32, 3)},
    )
    data = load("cifar10", tmp_path)
    assert data.transform == module.SOURCES["cifar10"].transform and data.transform.augments
    assert data.name == "cifar10" and len(data.test) == 1


def write_table(folder: Path, split: str, rows: dict[str, list], features: dict) -> None:
    (folder / "data").mkdir(parents=True, exist_ok=True)
    dataset = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    dataset.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")


def test_cifar100_has_fine_labels(tmp_path):
    features = {
        "img": datasets.Image(),
        "coarse_label": datasets.ClassLabel(names=["fish", "flowers"]),
        "fine_label": datasets.ClassLabel(names=["orchid", "shark", "trout"]),
    }
    images = noise(3, 32, 32, 3)
    rows = {"img": [png(i) for i in images], "coarse_label": [0, 0, 1], "fine_label": [2, 1, 0]}
    for split in ("train", "test"):
        write_table(tmp_path / "uoft-cs" / "cifar100", split, rows, features)
    data = load("cifar100", tmp_path)
    assert data.train.targets.tolist() == [2, 1, 0]
    assert data.class_names == ("orchid", "shark", "trout")
    assert data.transform.mean == (0.5071, 0.4867, 0.4408) and data.transform.crop_padding == 4
    coarse = load("cifar100", tmp_path, {"label": "coarse_label"})
    assert coarse.train.targets.tolist() == [0, 0, 1] and coarse.class_names == ("fish", "flowers")
    assert load("cifar100", tmp_path).class_names == data.class_names  # its own cached copy
    with pytest.raises(BadValue, match=r"it has img: Image.*a ClassLabel column kind"):
        load("cifar100", tmp_path, {"label": "kind"})


def prepared(pixels: np.ndarray, shorter: int, side: int) -> np.ndarray:
    """Resize(shorter) and CenterCrop(side) of one image, [c, h, w]."""
    image = Image.fromarray(pixels).convert("RGB")
    w, h = image.size
    size = (shorter, shorter * h // w) if w < h else (shorter * w // h, shorter)
    image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
    return np.asarray(image.crop((left, top, left + side, top + side))).transpose(2, 0, 1)


def test_imagenette_in_full_size(tmp_path):
    train = [
        *noise(1, 300, 400, 3),
        *noise(1, 500, 270, 3),
        *noise(1, 100, 120),
        *noise(1, 256, 256),
    ]
    test = [*noise(1, 241, 241, 3), *noise(1, 280, 460, 3)]
    folder = tmp_path / "frgfm" / "imagenette-full_size"
    write_hub_folder(folder, {"train": train, "validation": test})
    data = load("imagenette-224", tmp_path)
    assert data.train.inputs.shape == (4, 3, 256, 256)
    assert data.test.inputs.shape == (2, 3, 224, 224)
    for image, tensor in zip(train, data.train.inputs, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), prepared(image, 256, 256))
    for image, tensor in zip(test, data.test.inputs, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), prepared(image, 256, 224))
    batch = Batches([data.train], [0], 4, data.transform, seed=0).at(0)
    assert batch.inputs.shape == (1, 4, 3, 224, 224)

    small = load("imagenette", tmp_path, {"folder": str(folder)})
    assert small.train.inputs.shape == (4, 3, 32, 32) and small.test.inputs.shape == (2, 3, 32, 32)
    np.testing.assert_array_equal(small.train.inputs[1].numpy(), prepared(train[1], 32, 32))
    assert small.transform.resized_crop == 32
    assert torch.equal(load("imagenette-224", tmp_path).train.inputs, data.train.inputs)


def test_imagenette_is_not_enlarged_unless_asked(tmp_path):
    folder = tmp_path / "frgfm" / "imagenette"
    write_hub_folder(folder, {"train": noise(2, 32, 40, 3), "validation": noise(1, 32, 32, 3)})
    with pytest.raises(BadValue) as error:
        load("imagenette-224", tmp_path)
    for part in ("at most 32 x 32", "frgfm/imagenette-full_size", "--data-root", "data.folder"):
        assert part in str(error.value)
    assert load("imagenette-224", tmp_path, {"folder": str(folder)}).test.inputs.shape[-1] == 224
    assert load("imagenette", tmp_path).train.inputs.shape == (2, 3, 32, 32)


def test_variants_on_the_hub_and_their_parquet_copies(monkeypatch):
    asked = []

    def load_dataset(place, config=None, revision=None, trust_remote_code=None):
        assert trust_remote_code is False
        asked.append((place, config, revision))
        if revision is None:
            raise RuntimeError("Dataset scripts are no longer supported, but found imagenette.py")
        raise OSError("no such thing")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BadValue, match="cannot be reached"):
        load("imagenette-224")
    assert asked == [
        ("frgfm/imagenette", "full_size", None),
        ("frgfm/imagenette", "full_size", "refs/convert/parquet"),
    ]


def test_options_of_a_dataset(tmp_path):
    write_hub_folder(tmp_path / "pets", {"train": noise(2, 4, 4), "test": noise(1, 4, 4)})
    pets = str(tmp_path / "pets")
    assert load(pets, options={"label": "kind"}).train.targets.tolist() == [0, 1]
    for options, message in (
        ({"lable": "kind"}, r"did you mean 'label'\?"),
        ({"length": 64}, r"'length' is not valid \(.*has images\)"),
        ({"length": 2}, "data.length: 2 is not valid; valid: a whole number from 4 to 1000000"),
        ({"label": 3}, "data.label: 3 is not valid; valid: text"),
        ({"folder": "elsewhere"}, "data.folder: 'elsewhere'.*has a name for"),
    ):
        with pytest.raises(BadValue, match=message):
            load(pets, options=options)
    with pytest.raises(BadValue, match=r"data.folder: 'nowhere'.*it does not exist"):
        load("cifar10", options={"folder": "nowhere"})
    with pytest.raises(BadValue, match="digits has none"):
        load("digits", options={"label": "x"})


def test_grey_among_colour_becomes_colour(tmp_path):
    grey, colour = noise(1, 4, 4)[0], noise(1, 4, 4, 3)[0]
    write_hub_folder(tmp_path / "mixed", {"train": [grey, colour], "test": [grey]})
    data = load(str(tmp_path / "mixed"))
    assert data.test.inputs.shape == (1, 3, 4, 4)
    assert all(np.array_equal(channel, grey) for channel in data.train.inputs[0].numpy())
    write_hub_folder(tmp_path / "grey", {"train": [grey, grey], "test": [grey]})
    assert load(str(tmp_path / "grey")).train.inputs.shape == (2, 1, 4, 4)


def test_a_folder_of_images(tmp_path):
    for split in ("train", "test"):
        for kind in ("cat", "dog"):
            folder = tmp_path / "pets" / split / kind
            folder.mkdir(parents=True)
            Image.fromarray(noise(1, 4, 4, 3)[0]).save(folder / "one.png")
    data = load(str(tmp_path / "pets"))
    assert data.class_names == ("cat", "dog")
    assert data.train.inputs.shape == (2, 3, 4, 4) and data.test.targets.tolist() == [0, 1]


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda p: p.symlink_to(p), lambda p: p.symlink_to("no")]
)
def test_what_is_no_file_in_a_folder_is_named(tmp_path, make):
    folder = tmp_path / "pets" / "train" / "cat"
    folder.mkdir(parents=True)
    Image.fromarray(noise(1, 4, 4, 3)[0]).save(folder / "one.png")
    make(folder / "two.png")
    with pytest.raises(BadValue, match=r"train/cat/two.png is a pipe, a device or a broken link"):
        load(str(tmp_path / "pets"))


def test_the_cache_is_used_and_rebuilt(tmp_path, monkeypatch):
    folder = tmp_path / "pets"
    write_hub_folder(folder, {"train": noise(3, 4, 4), "test": noise(1, 4, 4)})
    first = load(str(folder))
    [cached] = (tmp_path / "cache").iterdir()

    with monkeypatch.context() as patch:
        patch.setattr("parley.data.decode._open", lambda *_: pytest.fail("the cache was not used"))
        again = load(str(folder))
    assert torch.equal(again.train.inputs, first.train.inputs)
    assert (again.class_names, again.transform) == (first.class_names, first.transform)

    for damage in (cached.read_bytes()[:100], b"", b"\x08" + b"\0" * 7 + b"{}      "):
        cached.write_bytes(damage)
        assert torch.equal(load(str(folder)).train.inputs, first.train.inputs)
        assert len(cached.read_bytes()) > 100

    write_hub_folder(folder, {"train": noise(4, 4, 4)})
    assert len(load(str(folder)).train) == 4
    assert not list((tmp_path / "cache").glob("*.part"))


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PARLEY_CACHE", str(tmp_path / "file" / "cache"))
    write_hub_folder(tmp_path / "pets", {"train": noise(2, 4, 4), "test": noise(1, 4, 4)})
    assert len(load(str(tmp_path / "pets")).train) == 2


def test_the_cache_folder(monkeypatch):
    monkeypatch.setenv("PARLEY_CACHE", "own")
    assert cache_folder() == Path("own")
    monkeypatch.delenv("PARLEY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "xdg")
    assert cache_folder() == Path("xdg/parley")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "parley"


def test_unsuitable_folders(tmp_path):
    with pytest.raises(BadValue, match=r"^data: .*empty.* is not valid"):
        (tmp_path / "empty").mkdir()
        load(str(tmp_path / "empty"))
    write_hub_folder(tmp_path / "train-only", {"train": noise(2, 4, 4)})
    with pytest.raises(BadValue, match="a test or validation split"):
        load(str(tmp_path / "train-only"))
    write_hub_folder(tmp_path / "no-train", {"test": noise(2, 4, 4)})
    with pytest.raises(BadValue, match=r"it has test.*a train split"):
        load(str(tmp_path / "no-train"))
    write_hub_folder(tmp_path / "sizes", {"train": [*noise(1, 4, 4), *noise(1, 5, 4)]})
    found = r"training image 0 has 4 x 4 pixels and training image 1 4 x 5\).*resize=4 scales"
    with pytest.raises(BadValue, match=found):
        load(str(tmp_path / "sizes"))
    (tmp_path / "text" / "data").mkdir(parents=True)
    text = datasets.Dataset.from_dict({"text": ["a"], "label": [0]})
    text.to_parquet(tmp_path / "text" / "data" / "train-00000-of-00001.parquet")
    with pytest.raises(
        BadValue, match=r"it has text: Value.*an Image or text column and a ClassLabel column"
    ):
        load(str(tmp_path / "text"))


def test_unknown_names():
    with pytest.raises(BadValue, match=r"did you mean 'cifar10'\?.*hub ID owner/name.*digits"):
        load("cifar")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no network in this test")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)


def test_without_a_network_the_error_is_clear_and_quick(no_network, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it waits to try again"))
    with pytest.raises(BadValue) as error:
        load("cifar10", tmp_path)
    folder = tmp_path / "uoft-cs" / "cifar10"
    for part in ("uoft-cs/cifar10", f"no local copy in {folder}", "--data-root", "be reached"):
        assert part in str(error.value)
    assert "\n" not in str(error.value)
    assert not datasets.config.HF_HUB_OFFLINE
    with pytest.raises(BadValue, match="without --data-root"):
        load("fashion_mnist")
    with pytest.raises(BadValue, match=r"uoft-cs/cifar100.*hub cannot be reached"):
        load("cifar100")


class Pairs(torch.utils.data.Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.full((2, 3), float(i)), i % 2


def test_from_user_takes_arrays_tensors_and_datasets():
    arrays = (np.ones((3, 2, 3)), np.array([0, 1, 1], dtype=np.int32))
    tensors = (torch.zeros(2, 2, 3, dtype=torch.float64), torch.tensor([1, 0], dtype=torch.uint8))
    one, two, three = from_user([arrays, tensors, Pairs(4)])
    for samples, n in ((one, 3), (two, 2), (three, 4)):
        assert samples.inputs.shape == (n, 2, 3) and samples.inputs.dtype == torch.float32
        assert samples.targets.dtype == torch.int64 and len(samples) == n
    assert three.inputs[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert three.targets.tolist() == [0, 1, 0, 1]


def test_from_user_keeps_bytes_and_tokens():
    [images] = from_user([pictures(3)])
    assert images.inputs.dtype == torch.uint8
    [tokens] = from_user([(np.array([[1, 2]], dtype=np.int32), [0])])
    assert tokens.inputs.dtype == torch.int64


def test_from_user_takes_hugging_face_datasets():
    features = datasets.Features(
        {"a": datasets.Image(), "b": datasets.ClassLabel(names=["x", "y"])}
    )
    images = noise(3, 4, 5)
    rows = {"a": [png(image) for image in images], "b": [1, 0, 1]}
    whole = datasets.Dataset.from_dict(rows, features=features)
    [samples] = from_user([whole.select([2, 0])])
    np.testing.assert_array_equal(samples.inputs[:, 0].numpy(), [images[2], images[0]])
    assert samples.targets.tolist() == [1, 1]


GOOD = (np.zeros((2, 3)), [0, 1])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((np.zeros((0, 3)), np.zeros(0, dtype=int)), "it is empty"),
        ((np.zeros((3, 3)), [0, 1]), "as many inputs as targets"),
        ((np.zeros((2, 4)), [0, 1]), r"float32 of shape \[3\]"),
        ((np.zeros((2, 3), dtype=np.uint8), [0, 1]), r"its inputs are uint8"),
        ((np.zeros((2, 3)), [0.0, 1.0]), "its targets are float64"),
        ((np.zeros((2, 3)), [[0], [1]]), "the class as a whole number"),
        ((np.zeros((2, 3)), [0, -1]), "it has class -1"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "all of the same shape"),
        (([torch.zeros(2), torch.zeros(3)], [0, 1]), "all of the same shape"),
        ((np.array(["a", "b"]), [0, 1]), "numeric inputs"),
        ((np.zeros((2, 3), dtype=complex), [0, 1]), "real numbers"),
        ([1, 2, 3], "pairs"),
        (7, "it is a int"),
    ],
)
def test_from_user_names_the_agent_that_is_wrong(bad, message):
    with pytest.raises(BadValue, match=f"^data: 'agent 1'.*{message}"):
        from_user([GOOD, bad])


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_targets_of_different_widths_are_refused(task):
    wide, narrow = (np.zeros((2, 3)), [[0, 1], [1, 0]]), (np.zeros((2, 3)), [[0], [1]])
    words = r"its targets are float32 of shape \[1\].*float32 of shape \[2\]"
    with pytest.raises(BadValue, match=f"^data: 'agent 1'.*{words}"):
        from_user([wide, narrow], task=task)
    with pytest.raises(BadValue, match=f"^test: 'tuple'.*{words}"):
        parley.train("mlp", [wide, wide], test=narrow, task=task, progress=False)


def test_from_user_needs_someone():
    with pytest.raises(BadValue, match="one dataset per agent"):
        from_user([])


def test_one_folder_per_agent(tmp_path):
    for name, n in (("a", 3), ("b", 4)):
        write_hub_folder(tmp_path / name, {"train": noise(n, 4, 4)})
    shares = own.load({0: tmp_path / "a", 1: str(tmp_path / "b")}).samples
    assert [len(share) for share in shares] == [3, 4]
    assert shares[0].inputs.dtype == torch.uint8

    write_hub_folder(tmp_path / "c", {"train": noise(2, 4, 4)}, names=("dog",))
    both = {0: tmp_path / "a", 1: tmp_path / "c"}
    with pytest.raises(BadValue, match=r"agent 1 has classes dog"):
        own.load(both)
    for how in ({"class_names": ["bird", "cat", "dog"]}, {"options": {"labels": "bird, cat,dog"}}):
        matched = own.load(both, **how)
        assert [share.targets.tolist() for share in matched.samples] == [[1, 2, 1], [2, 2]]
        assert matched.class_names == ("bird", "cat", "dog")
    with pytest.raises(BadValue, match="agent 0 has classes cat"):
        own.load({0: tmp_path / "a"}, class_names=["dog"])
    with pytest.raises(BadValue, match="agent 1's data cannot be found"):
        own.load({0: tmp_path / "a", 1: tmp_path / "nowhere"})
    options = {"folder": "stand-in"}
    [large] = own.load({0: tmp_path / "a"}, like="imagenette-224", options=options).samples
    assert large.inputs.shape == (3, 1, 256, 256)


@pytest.fixture
def real(request, monkeypatch):
    """Loads a real dataset; the decoded copy is kept between test runs, beside pytest's own."""

    def of(name: str) -> module.Data:
        hub = module.SOURCES[name].hub
        if not (ROOT / str(hub)).is_dir():
            pytest.skip(f"{hub} is neither in PARLEY_DATA_ROOT nor in ../shared/data")
        monkeypatch.setenv("PARLEY_CACHE", str(request.config.cache.mkdir("parley")))
        return load(name, ROOT)

    return of


@pytest.mark.parametrize(
    ("name", "shape", "train"),
    [("fashion_mnist", (1, 28, 28), 60_000), ("cifar10", (3, 32, 32), 50_000)],
)
def test_real_datasets(real, name, shape, train):
    data = real(name)
    assert data.train.inputs.shape == (train, *shape) and data.train.inputs.dtype == torch.uint8
    assert data.test.inputs.shape == (10_000, *shape) and len(data.class_names) == 10
    assert torch.bincount(data.train.targets).tolist() == [train // 10] * 10
    assert torch.bincount(data.test.targets).tolist() == [1000] * 10
    if name == "cifar10":  # the paper's own figures for the mean
        mean = data.train.inputs.float().mean((0, 2, 3)) / 255
        torch.testing.assert_close(mean, torch.tensor(data.transform.mean), atol=1e-4, rtol=0)
    batch = Batches([data.train.take(range(100))], [0], 32, data.transform, seed=0).at(0)
    assert batch.inputs.shape == (1, 32, *shape) and batch.inputs.dtype == torch.float32
    assert -3 < batch.inputs.min() < batch.inputs.max() < 3


def test_real_imagenette(real):
    data = real("imagenette")
    assert data.train.inputs.shape == (9_469, 3, 32, 32) and len(data.test) == 3_925
    assert len(data.class_names) == 10 and 858 <= torch.bincount(data.train.targets).min() <= 993
    batch = Batches([data.train.take(range(100))], [0], 32, data.transform, seed=0).at(0)
    assert batch.inputs.shape == (1, 32, 3, 32, 32)
    assert batch.inputs.std().item() == pytest.approx(1, abs=0.3)
