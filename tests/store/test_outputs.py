"""What a run leaves behind to be used: its models, how to build them, and what they answer."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

import parley
from parley.data import load as load_data
from parley.errors import BadValue, ParleyError
from parley.files import parse_json
from parley.store import inference, outputs
from parley.store.outputs import Trained

SMALL: dict[str, Any] = {"agents": 3, "epochs": 1, "progress": False, "fraction": 0.2}


class Net(nn.Module):
    """A model that this module has a name for."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 4)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(4, 10)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.frozen(x.flatten(1)) * self.scale)
        return out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[parley.Result, Path]:
    out = tmp_path_factory.mktemp("outputs") / "run"
    return parley.train(**SMALL, out=out), out


def test_every_model_is_written_under_the_names_of_its_module(
    run: tuple[parley.Result, Path],
) -> None:
    result, out = run
    mean = load_file(out / "model.safetensors")
    assert set(mean) == set(result.model().state_dict())
    for name, value in result.model().state_dict().items():
        assert torch.equal(mean[name], value)
    for agent in range(3):
        own = load_file(out / "agents" / f"agent-{agent}.safetensors")
        for name, value in result.model(agent).state_dict().items():
            assert torch.equal(own[name], value)
    card = parse_json((out / "model.json").read_text())
    assert card["architecture"]["model"] == "mlp"
    assert card["input"]["shape"] == [1, 8, 8]
    assert card["average_of"] == [0, 1, 2]
    assert card["labels"] == list("0123456789")
    assert card["versions"]["torch"] == torch.__version__


def test_files_may_be_read_by_whom_the_umask_says(run: tuple[parley.Result, Path]) -> None:
    """Safetensors makes its files for the user alone."""
    _, out = run
    probe = out / "probe"
    probe.touch()
    expected = probe.stat().st_mode
    probe.unlink()
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".safetensors", ".json", ".toml", ".jsonl"}
    assert [path.name for path in files if path.stat().st_mode != expected] == []


def test_a_loaded_run_gives_the_modules_and_needs_no_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = parley.train(**SMALL, out=out)
    for part in (out / "checkpoint").rglob("*.safetensors"):
        part.unlink()
    inputs = torch.rand(5, 1, 8, 8)
    found = parley.load(out)
    assert torch.equal(found.model()(inputs), result.model()(inputs))
    assert torch.equal(found.model(agent=2)(inputs), result.model(2)(inputs))
    assert not found.model().training
    with pytest.raises(BadValue, match=r"agent: 3 is not valid"):
        found.model(agent=3)


def test_frozen_parameters_and_buffers_are_part_of_the_model(tmp_path: Path) -> None:
    parley.train(model=Net, **SMALL, out=tmp_path / "run")
    written = load_file(tmp_path / "run" / "model.safetensors")
    assert set(written) == {"frozen.weight", "frozen.bias", "head.weight", "head.bias", "scale"}
    card = parse_json((tmp_path / "run" / "model.json").read_text())
    assert card["architecture"]["kind"] == "code"
    assert card["architecture"]["model"] == f"{__name__}:Net"
    found = parley.load(tmp_path / "run")
    with pytest.raises(BadValue, match=r"valid: model\(allow_code='tests.store.test_outputs'\)"):
        found.model()
    inputs = torch.rand(2, 1, 8, 8)
    allowed = found.model(allow_code=__name__)(inputs)
    assert torch.equal(found.model(Net)(inputs), allowed)
    with pytest.raises(
        BadValue, match=r"head.bias is only in the file|weight is only in the model"
    ):
        found.model(lambda: nn.Linear(3, 2))


def test_a_model_without_a_name_has_to_be_given_again(tmp_path: Path) -> None:
    parley.train(model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), **SMALL, out=tmp_path / "r")
    found = parley.load(tmp_path / "r")
    with pytest.raises(BadValue, match=r"a Python program gave it"):
        found.model()
    made = found.model(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    assert made(torch.rand(2, 1, 8, 8)).shape == (2, 10)


def test_a_run_that_goes_on_for_longer_has_no_model_until_its_end(tmp_path: Path) -> None:
    from parley.experiment import Experiment
    from parley.store.folder import RunFolder

    parley.train(**SMALL, out=tmp_path / "run")
    longer = Experiment.of(agents=3, epochs=2, fraction=0.2)
    RunFolder(tmp_path / "run").extend(longer)
    assert Trained.read(tmp_path / "run") is None
    with pytest.raises(BadValue, match=r"it has no model.json"):
        outputs.found(tmp_path / "run")
    parley.train(**{**SMALL, "epochs": 2}, out=tmp_path / "run", resume=True)
    assert Trained.read(tmp_path / "run") is not None


def test_answers_are_those_of_the_model_on_images_and_arrays(
    run: tuple[parley.Result, Path], tmp_path: Path
) -> None:
    result, out = run
    digits = load_data("digits")
    raw = digits.test.inputs[:4]
    np.save(tmp_path / "four.npy", raw.numpy())
    np.savez(tmp_path / "one.npz", raw[0].numpy())
    scores = result.model()(digits.transform.normalise(raw)).detach().double().softmax(1)
    found = parley.load(out).predict(tmp_path / "four.npy", tmp_path / "one.npz")
    assert [answer.input.removeprefix(str(tmp_path)) for answer in found[-2:]] == [
        "/four.npy[3]",
        "/one.npz",
    ]
    for row, answer in enumerate(found[:4]):
        assert answer.label == str(int(scores[row].argmax()))
        for digit in range(10):
            assert answer.probabilities[str(digit)] == pytest.approx(float(scores[row, digit]))
    pixels = (raw[0, 0] * 255).round().to(torch.uint8).numpy()
    Image.fromarray(pixels).save(tmp_path / "one.png")
    Image.fromarray(pixels).resize((16, 16)).save(tmp_path / "large.png")
    [image] = parley.load(out).predict(tmp_path / "one.png")
    assert image.probabilities == pytest.approx(found[0].probabilities, abs=0.01)
    with pytest.raises(BadValue, match=r"it has 16 x 16"):
        parley.load(out).predict(tmp_path / "large.png")
    [resized] = parley.load(out).predict(tmp_path / "large.png", resize=True)
    assert sum(resized.probabilities.values()) == pytest.approx(1)


ROWS = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 3.0]])


def trained_for(task: str, width: int, targets: torch.Tensor, out: Path, **options: Any) -> Any:
    """A linear model on six samples, and what it gives for `ROWS`."""
    torch.manual_seed(3)
    model = nn.Linear(3, width)
    samples = (torch.randn(6, 3), targets)
    parley.train(model, [samples, samples], task=task, algorithm="dpsgd", epochs=1, out=out,
                 progress=False, **options)  # fmt: skip
    np.save(out / "rows.npy", ROWS.numpy())
    found = parley.load(out)
    outputs_ = found.model(model)(ROWS).detach().double()
    return found.predict(out / "rows.npy", build=model), outputs_


def test_answers_of_a_regression_are_numbers(tmp_path: Path) -> None:
    found, outputs_ = trained_for("regression", 2, torch.randn(6, 2), tmp_path / "run")
    for answer, of in zip(found, outputs_.tolist(), strict=True):
        assert answer.numbers == pytest.approx({"0": of[0], "1": of[1]})
    assert set(found[0].described()) == {"input", "numbers"}
    card = parse_json((tmp_path / "run" / "model.json").read_text())
    assert card["task"] == "regression"


def test_answers_of_a_multilabel_task_are_all_labels_above_a_half(tmp_path: Path) -> None:
    targets = (torch.arange(12).view(6, 2) % 3 == 0).float()
    found, outputs_ = trained_for("multilabel", 2, targets, tmp_path / "run")
    for answer, of in zip(found, outputs_.sigmoid().tolist(), strict=True):
        assert answer.probabilities == pytest.approx({"0": of[0], "1": of[1]})
        assert set(filter(None, answer.label.split(", "))) == {
            name for name, p in zip("01", of, strict=True) if p > 0.5
        }


@pytest.mark.parametrize("width", [1, 2])
def test_answers_of_a_binary_task_are_yes_or_no(tmp_path: Path, width: int) -> None:
    found, outputs_ = trained_for("binary", width, torch.arange(6) % 2, tmp_path / "run")
    yes = outputs_.sigmoid()[:, 0] if width == 1 else outputs_.softmax(1)[:, 1]
    for answer, p in zip(found, yes.tolist(), strict=True):
        assert answer.probabilities == pytest.approx({"0": 1 - p, "1": p})
        assert answer.label == str(int(p > 0.5))


def test_a_task_without_one_answer_has_none_in_words(tmp_path: Path) -> None:
    from parley.store.outputs import Card

    out = tmp_path / "run"
    parley.train(**SMALL, out=out)
    card = parse_json((out / "model.json").read_text())
    other = Card(**(card | {"task": "own"}))
    with pytest.raises(BadValue, match="trained for the task own"):
        inference.answers(nn.Identity(), other, ["x"], torch.zeros(1, 1, 8, 8))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: np.save(path, np.zeros((2, 3))), r"its shape is \[2, 3\]"),
        (lambda path: np.save(path, np.array([{}], dtype=object)), "they are Python objects"),
        (lambda path: np.save(path, np.full((1, 8, 8), "x")), "they are <U1"),
        (lambda path: np.save(path, np.full((1, 8, 8), np.nan)), "some are NaN or infinite"),
        (lambda path: path.write_bytes(b"nothing"), "NumPy array of numbers"),
        (lambda path: None, "No such file"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    run: tuple[parley.Result, Path], tmp_path: Path, make: Any, why: str
) -> None:
    make(tmp_path / "bad.npy")
    with pytest.raises(BadValue, match=why):
        parley.load(run[1]).predict(tmp_path / "bad.npy")


def test_damaged_outputs_are_refused_by_name(tmp_path: Path) -> None:
    out = tmp_path / "run"
    parley.train(**SMALL, out=out)
    weights = load_file(out / "model.safetensors")
    weights["1.weight"] = weights["1.weight"][:5].contiguous()
    save_file(weights, out / "model.safetensors")
    with pytest.raises(BadValue, match=r"1.weight has shape \[64, 64\] in the model and \[5, 64\]"):
        parley.load(out).model()
    (out / "model.safetensors").write_bytes(b"short")
    with pytest.raises(BadValue, match=r"model.safetensors"):
        parley.load(out).model()
    card = parse_json((out / "model.json").read_text())
    (out / "model.json").write_text(json.dumps(card | {"dtype": "float8"}))
    with pytest.raises(BadValue, match=r"model.json: dtype"):
        parley.load(out).model()
    (out / "model.json").write_text("[")
    with pytest.raises(BadValue, match=r"not JSON"):
        parley.load(out).model()


@pytest.mark.parametrize("form", ["torch-export", "onnx"])
def test_an_exported_model_takes_raw_inputs_and_answers_the_same(
    run: tuple[parley.Result, Path], tmp_path: Path, form: str
) -> None:
    if form == "onnx":
        onnx = pytest.importorskip("onnx")
        pytest.importorskip("onnxscript")
    result, out = run
    digits = load_data("digits")
    raw = digits.test.inputs[:5]
    expected = result.model()(digits.transform.normalise(raw))
    path = tmp_path / f"model{inference.FORMATS[form]}"
    trained = outputs.found(out)
    inference.export(trained.module(), trained.card, form, path)
    if form == "onnx":
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(onnx.load(str(path)))
        found = torch.from_numpy(session.run(None, {"input": raw.numpy()})[0])
    else:
        found = torch.export.load(path).module()(raw)
    assert torch.allclose(found, expected, atol=1e-5)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk, as Linux has it")
@pytest.mark.parametrize("form", ["torch-export", "onnx"])
def test_an_export_to_a_full_disk_is_refused(
    run: tuple[parley.Result, Path], tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a file, torch would abort the process."""
    if form == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxscript")

    @contextmanager
    def on_a_full_disk(path: Path, temporary: Path) -> Iterator[None]:
        temporary.symlink_to("/dev/full")
        yield

    monkeypatch.setattr(inference, "replacing", on_a_full_disk)
    trained, path = outputs.found(run[1]), tmp_path / f"model{inference.FORMATS[form]}"
    with pytest.raises(ParleyError, match=r"cannot be written \(.*No space left on device"):
        inference.export(trained.module(), trained.card, form, path)
    assert not path.exists()


def test_uint8_images_are_scaled_inside_the_exported_model() -> None:
    card = outputs.Card(
        architecture={"model": "x", "kind": "python", "input_shape": (1, 2, 2), "classes": 2},  # type: ignore[arg-type]
        input={"shape": (1, 2, 2), "dtype": "uint8", "mean": (0.5,), "std": (0.25,)},  # type: ignore[arg-type]
        labels=("a", "b"),
        dtype="float32",
        average_of=(0,),
    )
    raw = torch.tensor([[[[0, 255], [51, 102]]]], dtype=torch.uint8)
    prepared = inference.Prepared(nn.Identity(), card)(raw)
    assert torch.allclose(prepared, card.transform().normalise(raw))
    assert torch.allclose(prepared, torch.tensor([[[[-2.0, 2.0], [-1.2, -0.4]]]]))


def test_an_export_that_cannot_be_is_refused(
    run: tuple[parley.Result, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = outputs.found(run[1])
    module = trained.module()
    with pytest.raises(BadValue, match=r"valid: onnx, torch-export"):
        inference.export(module, trained.card, "pickle", tmp_path / "m.pkl")
    with pytest.raises(BadValue, match=r"a file that ends in .onnx"):
        inference.export(module, trained.card, "onnx", tmp_path / "m.pt2")
    with pytest.raises(BadValue, match=r"a folder that exists"):
        inference.export(module, trained.card, "torch-export", tmp_path / "no" / "m.pt2")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BadValue, match=r"pip install 'parley-learning\[onnx\]'"):
        inference.export(module, trained.card, "onnx", tmp_path / "m.onnx")

    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(BadValue, match=r"a model that torch.export can follow"):
        inference.export(Branching(), trained.card, "torch-export", tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())


def test_texts_are_answered_with_the_tokenizer_of_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    import datasets

    for split, count in (("train", 60), ("test", 12)):
        rows = [("good news" if i % 2 else "bad weather") + " today" for i in range(count)]
        features = datasets.Features(
            text=datasets.Value("string"), label=datasets.ClassLabel(names=["no", "yes"])
        )
        labels = [i % 2 for i in range(count)]
        made = datasets.Dataset.from_dict({"text": rows, "label": labels}, features=features)
        (tmp_path / "texts" / "data").mkdir(parents=True, exist_ok=True)
        made.to_parquet(str(tmp_path / "texts" / "data" / f"{split}-00000-of-00001.parquet"))
    sizes = {"vocabulary": 64, "dropout": 0.0}
    parley.train(
        model="bert-mini", model_options=sizes, data=str(tmp_path / "texts"),
        data_options={"length": 8, "vocabulary": 64}, agents=2, epochs=1, batch=8, lr=0.05,
        partition="iid", algorithm="dpsgd", out=tmp_path / "run", progress=False,
    )  # fmt: skip
    (tmp_path / "lines.txt").write_text("good news today\n\nbad weather today\n")
    found = parley.load(tmp_path / "run").predict("good news today", tmp_path / "lines.txt")
    assert [answer.input for answer in found] == [
        "good news today",
        "good news today",
        "bad weather today",
    ]
    assert found[0].probabilities == pytest.approx(found[1].probabilities)
    assert set(found[0].probabilities) == {"no", "yes"}


HOSTILE: dict[str, dict[str, Any]] = {
    "more memory than there is": {"input_shape": [1, 10**6, 10**6]},
    "more memory by an option": {"options": {"hidden": 10**13}},
    "an option of another type": {"options": {"hidden": "many"}},
    "code as a name": {"model": "os:abort"},
    "code": {"model": "os:abort", "kind": "code"},
}


@pytest.mark.parametrize("how", HOSTILE)
def test_what_a_card_asks_for_is_looked_at_before_it_is_done(
    how: str, run: tuple[parley.Result, Path], tmp_path: Path
) -> None:
    for name in ("model.json", "model.safetensors"):
        (tmp_path / name).write_bytes((run[1] / name).read_bytes())
    card = parse_json((tmp_path / "model.json").read_text())
    card["architecture"] |= HOSTILE[how]
    (tmp_path / "model.json").write_text(json.dumps(card))
    with pytest.raises(BadValue) as refused:
        outputs.found(tmp_path).module()
    assert refused.value.field.startswith("model")


def test_names_in_a_file_cannot_write_to_the_terminal(
    run: tuple[parley.Result, Path], tmp_path: Path
) -> None:
    (tmp_path / "model.json").write_bytes((run[1] / "model.json").read_bytes())
    tensors = load_file(run[1] / "model.safetensors")
    save_file({**tensors, "\x1b[2J" + "x" * 5000: torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(BadValue, match=r"\?\[2Jxxx.*\.\.\. is only in the file") as refused:
        outputs.found(tmp_path).module()
    assert str(refused.value).isprintable() and len(str(refused.value)) < 500


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_arrays_that_are_bombs_or_pickles(
    suffix: str, run: tuple[parley.Result, Path], tmp_path: Path
) -> None:
    expected = outputs.found(run[1]).expected()
    path = tmp_path / f"a{suffix}"

    def write(values: Any) -> bytes:
        with path.open("wb") as file:
            if suffix == ".npy":
                np.save(file, values, allow_pickle=True)
            else:
                np.savez(file, values)
        return path.read_bytes()

    write(np.array([print], dtype=object))
    with pytest.raises(BadValue, match="they are Python objects"):
        expected.read([str(path)])
    content = write(np.zeros((2, 1, 8, 8), "f4"))
    assert expected.read([str(path)])[1].shape == (2, 1, 8, 8)
    path.write_bytes(content.replace(b"(2, 1, 8, 8)", b"(9**9,1,8,8)"))
    with pytest.raises(BadValue, match=r"a.np[yz]"):
        expected.read([str(path)])
    path.write_bytes(content.replace(b"(2, 1, 8, 8)", b"(999999,1,8,8)"[:12]))
    with pytest.raises(BadValue, match=r"a.np[yz]"):
        expected.read([str(path)])
    for values in (np.ones((2, 1, 8, 8), ">f4"), np.asfortranarray(np.ones((2, 1, 8, 8)))):
        write(values)
        assert torch.equal(expected.read([str(path)])[1], torch.ones(2, 1, 8, 8))
    order = np.arange(128.0).reshape(2, 1, 8, 8)
    write(np.asfortranarray(order))
    assert torch.equal(expected.read([str(path)])[1], torch.from_numpy(order).float())
