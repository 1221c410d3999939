"""Answers of segmentations and language models, and models of text in other formats."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import parley
from parley.cli.main import main
from parley.errors import BadValue
from parley.models import text
from parley.store import inference, outputs


def pixels_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv2d(1, 3, 3, padding=1)


def letters_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))


def test_masks_of_a_segmentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = torch.Generator().manual_seed(0)
    images = torch.randint(256, (6, 1, 8, 8), generator=made, dtype=torch.uint8)
    data = [(images, torch.randint(3, (6, 8, 8), generator=made))] * 2
    out = tmp_path / "run"
    given = {"task": "segmentation", "epochs": 1, "algorithm": "dpsgd", "progress": False}
    result = parley.train(pixels_net, data, out=out, **given)
    monkeypatch.chdir(tmp_path)
    Image.fromarray(images[0, 0].numpy()).save("scan.png")
    np.save("scans.npy", images[1:3].numpy())
    found = parley.load(out).predict("scan.png", "scans.npy", build=pixels_net)
    transform = outputs.found(out).card.transform()
    expected = result.model()(transform.normalise(images[:3])).argmax(1)
    for answer, mask in zip(found, expected, strict=True):
        assert answer.mask is not None and np.array_equal(answer.mask, mask.numpy())
        assert answer.shares is not None
        assert answer.shares[answer.label] == max(answer.shares.values())
        for number, name in enumerate("012"):
            assert answer.shares[name] == (mask == number).float().mean()
    words = ["predict", "run", "scan.png", "scans.npy", "--masks", ".", "--json"]
    monkeypatch.setattr(sys, "argv", ["parley", *words, "--allow-code", __name__])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    said = json.loads(capsys.readouterr().out)
    names = ["scan-mask.png", "scans-0-mask.png", "scans-1-mask.png"]
    assert [one["mask"] for one in said] == names
    for one, mask in zip(said, expected, strict=True):
        assert np.array_equal(np.asarray(Image.open(one["mask"])), mask.numpy())
    assert np.array_equal(np.asarray(Image.open("scan.png")), images[0, 0].numpy())  # as it was
    with pytest.raises(BadValue, match=r"masks: '.*scan-mask.png' .*two inputs would be written"):
        inference.write_masks([found[0], found[0]], tmp_path)


def test_the_next_token_of_a_language_model(tmp_path: Path) -> None:
    made = torch.Generator().manual_seed(0)
    ids = torch.randint(12, (10, 7), generator=made)
    data, out = [(ids[:, :-1], ids[:, 1:])] * 2, tmp_path / "run"
    given = {"task": "language-model", "epochs": 1, "algorithm": "dpsgd", "progress": False}
    result = parley.train(letters_net, data, out=out, **given)
    for name, rows in (("whole", ids[:2, :6]), ("short", ids[0, :3]), ("long", ids)):
        np.save(tmp_path / f"{name}.npy", rows.numpy())
    load = parley.load(out)
    for name, rows in (("whole", ids[:2, :6]), ("short", ids[:1, :3])):
        found = load.predict(tmp_path / f"{name}.npy", build=letters_net)
        p_nC = result.model()(rows)[:, -1].softmax(-1).detach()
        for answer, p_C in zip(found, p_nC, strict=True):
            assert answer.label == f"token {int(p_C.argmax())}"
            assert answer.probabilities["token 4"] == pytest.approx(float(p_C[4]), rel=1e-5)
    with pytest.raises(BadValue, match=r"its shape is \[10, 7\].*or with fewer tokens"):
        load.predict(tmp_path / "long.npy", build=letters_net)
    with pytest.raises(BadValue, match=r"'.*short.npy' .*rows as long as those of .*: 6 tokens"):
        load.predict(tmp_path / "whole.npy", tmp_path / "short.npy", build=letters_net)


@pytest.mark.parametrize("form", ["torch-export", "onnx"])
@pytest.mark.parametrize("kind", ["classifier", "next token"])
def test_a_model_of_text_is_exported(kind: str, form: str, tmp_path: Path) -> None:
    """With rows of any length that are padded to that of the run."""
    transformers = pytest.importorskip("transformers")
    if kind == "classifier":
        module = text.bert_mini((9,), 3, vocabulary=30).eval()
    else:
        sizes = {"vocab_size": 30, "n_positions": 9, "n_embd": 16, "n_layer": 1, "n_head": 2}
        ends = {"bos_token_id": 1, "eos_token_id": 1}
        transformers.GPT2Config(**sizes, **ends).save_pretrained(tmp_path / "gpt2")
        source = str(tmp_path / "gpt2")
        module = text.hugging_face((9,), 30, source, fresh=True, head="next-token").eval()
    card = outputs.Card(
        architecture={"model": "x", "kind": "python", "input_shape": (9,), "classes": 3},  # type: ignore[arg-type]
        input={"shape": (9,), "dtype": "int64"},  # type: ignore[arg-type]
        labels=(), dtype="float32", average_of=(0,),
    )  # fmt: skip
    path = tmp_path / f"model{inference.FORMATS[form]}"
    if form == "onnx":
        onnx = pytest.importorskip("onnx")
        pytest.importorskip("onnxscript")
    inference.export(module, card, form, path)
    ids = torch.arange(27).reshape(3, 9) + 1
    ids[0, 4:], ids[:, 7:] = 0, 0  # padding
    if form == "onnx":
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(onnx.load(str(path)))
        found = torch.from_numpy(session.run(None, {"input": ids.numpy()})[0])
    else:
        found = torch.export.load(path).module()(ids)
    torch.testing.assert_close(found, module(ids), atol=1e-5, rtol=1e-5)
