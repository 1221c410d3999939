"""Exported models take what people have, and answer as ``parley predict`` does."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

import parley
from parley.cli.export import export
from parley.data.images import squared
from parley.store import outputs
from parley.store.inference import ABOUT, FORMATS, Answer
from tests.data.test_sizes import write_folder

WARDS = ["north", "south", "west"]


def exported(run: Path, form: str) -> tuple[Any, dict[str, str]]:
    """What computes scores of raw inputs, and what the file says about itself."""
    path = run / f"model{FORMATS[form]}"
    export(run, form, path)
    if form == "torch-export":
        files = {ABOUT: ""}
        module = torch.export.load(path, extra_files=files).module()
        return lambda raw: module(torch.from_numpy(raw)).detach().numpy(), json.loads(files[ABOUT])
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path)
    about = session.get_modelmeta().custom_metadata_map
    [given] = session.get_inputs()
    assert given.type.removeprefix("tensor(") in ("float)", "double)", "uint8)", "int32)", "int64)")
    return lambda raw: session.run(None, {given.name: raw})[0], about


def agree(scores: Any, answers: list[Answer]) -> None:
    """The classes' probabilities, in the order of the labels."""
    p_nC = torch.from_numpy(scores).double().softmax(1)
    for p_C, answer in zip(p_nC, answers, strict=True):
        named = sorted(answer.probabilities)
        assert [answer.probabilities[label] for label in named] == pytest.approx(
            p_C.tolist(), abs=2e-6
        )
    assert p_nC.std(0).min() > 1e-3  # or it would not matter what goes in


def patients(rows: int, seed: int) -> pandas.DataFrame:
    rng = np.random.default_rng(seed)
    ill = rng.random(rows) < 0.5
    return pandas.DataFrame(
        {
            "age": 40 + 15 * rng.standard_normal(rows) + 10 * ill,
            "smoker": rng.random(rows) < 0.3,
            "admitted": 1.7e9 + rng.integers(0, 5000, rows),
            "ward": rng.choice(WARDS, rows),
            "state": np.where(ill, "ill", "healthy"),
        }
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dropped", ["ward,admitted", "ward", "admitted"])
def test_raw_rows(tmp_path: Path, form: str, dropped: str) -> None:
    """Also of a column that single precision would blur, and with texts by their numbers."""
    sites, new = [patients(60, seed) for seed in (1, 2)], patients(5, 3)
    options = {"target": "state", "drop": dropped}
    given = {"algorithm": "dpsgd", "epochs": 5, "lr": 0.3, "progress": False, "seed": 1}
    out = tmp_path / "run"
    parley.train("logistic", data=sites, out=out, data_options=options, **given)
    new.to_csv(tmp_path / "new.csv", index=False)
    answers = parley.load(out).predict(tmp_path / "new.csv")
    compute, about = exported(out, form)
    columns = json.loads(about["columns"])
    assert columns == [c for c in new.columns if c not in (*dropped.split(","), "state")]
    assert json.loads(about["classes"]) == ["healthy", "ill"]
    assert json.loads(about["values"]) == ({"ward": WARDS} if "ward" in columns else {})
    rows = new[columns].assign(
        **{"ward": new["ward"].map(WARDS.index)} if "ward" in columns else {}
    )
    fine = "admitted" in columns
    assert about["input"].startswith(f"float{64 if fine else 32}, any number of inputs of shape [")
    raw = rows.to_numpy(np.float64 if fine else np.float32)
    agree(compute(raw), answers)
    if "ward" in columns:
        raw[0, columns.index("ward")] = 3
        scores = compute(raw)
        assert np.isnan(scores[0]).all() and np.isfinite(scores[1:]).all()  # no such ward


@pytest.mark.parametrize("form", FORMATS)
def test_raw_images(tmp_path: Path, form: str) -> None:
    """Scaling and cropping are outside, and the file says so."""
    scans, out = write_folder(tmp_path / "scans"), tmp_path / "run"
    options = {"resize": 10, "crop": 8}
    given = {"agents": 2, "epochs": 20, "algorithm": "dpsgd", "partition": "iid", "lr": 0.05}
    parley.train("mlp", str(scans), out=out, data_options=options, progress=False, **given)
    paths = sorted(scans.glob("test/*/*"))
    answers = parley.load(out).predict(*paths)
    compute, about = exported(out, form)
    assert about["input"].startswith("uint8, any number of inputs of shape [1, 8, 8]; pixels from")
    remedy = "scale the shorter side to 10, then crop the central square of 8 pixels"
    assert about["input"].endswith(f"; prepare images as the run did: {remedy}")
    assert json.loads(about["classes"]) == ["healthy", "ill"] and "softmax" in about["output"]
    images = [squared(Image.open(path), 10, 8) for path in paths]
    agree(compute(np.stack([np.asarray(image)[None] for image in images])), answers)


@pytest.mark.parametrize("form", FORMATS)
def test_texts(tmp_path: Path, form: str) -> None:
    """They become token IDs outside, by the tokenizer that the file names."""
    tokenizers = pytest.importorskip("tokenizers")
    folder, out = tmp_path / "news", tmp_path / "run"
    folder.mkdir()
    words = {"rain": ["wet", "storm", "cloud"], "sport": ["goal", "race", "win"]}
    for split in ("train", "test"):
        rows = [
            json.dumps({"text": f"{one} and {two}", "label": label})
            for label, known in words.items() for one in known for two in known
        ]  # fmt: skip
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    options = {"length": 8, "label": "label"}
    given = {"agents": 2, "partition": "iid", "epochs": 2, "algorithm": "dpsgd", "lr": 0.05}
    parley.train(
        "bert-mini", data=str(folder), out=out, data_options=options, progress=False, **given
    )
    said = ["storm and cloud", "goal and race", "wet"]
    answers = parley.load(out).predict(*said)
    compute, about = exported(out, form)
    assert "token IDs, which tokenizer.json makes of texts" in about["input"]
    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    length = outputs.found(out).card.input.shape[0]
    ids = [tokenizer.encode(one).ids for one in said]
    raw = np.array([row + [0] * (length - len(row)) for row in ids], np.int32)
    agree(compute(raw), answers)
