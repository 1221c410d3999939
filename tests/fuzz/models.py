"""Trained models that somebody has sent, and what they are asked about."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from parley.data.preparation import Expected
from parley.store import outputs
from parley.store.inference import answers
from parley.training.initial_weights import start_from
from tests.fuzz import damage

CARD: dict[str, Any] = {
    "format": 1,
    "architecture": {
        "model": "mlp",
        "kind": "name",
        "options": {"hidden": 5},
        "input_shape": [1, 4, 4],
        "classes": 3,
    },
    "input": {"shape": [1, 4, 4], "dtype": "float32", "mean": [0.5], "std": [0.25], "resize": 0},
    "task": "classification",
    "labels": ["a", "b", "c"],
    "dtype": "float32",
    "average_of": [0, 1],
}
HUGE = (
    b"(99999999999, 1, 4, 4)",
    b"(-2, 1, 4, 4)",
    b"(2**70, 1)",
    b"(1e9,)",
    b"()",
    b"(0, 1, 4, 4)",
)


def models(source: random.Random, folder: Path) -> None:
    """model.json and model.safetensors: to be built, asked and started from."""
    architecture = outputs.Card.model_validate(CARD).architecture
    tensors = {name: value.zero_() for name, value in architecture.build().state_dict().items()}
    card, weights = json.dumps(CARD).encode(), save(tensors)
    what = source.randrange(3)
    if what == 0:
        card = damage.bytes_of(source, card)
    elif what == 1:
        changed = damage.value_of(source, damage.value_of(source, CARD))
        card = json.dumps(changed, default=str).encode()
    else:
        weights = _damaged(source, weights)
    (folder / "model.json").write_bytes(card)
    (folder / "model.safetensors").write_bytes(weights)
    if source.random() < 0.2:
        damage.replaced(source, folder / source.choice(["model.json", "model.safetensors"]))
    if what == 2:
        start_from(architecture.build(), str(folder))
    trained = outputs.found(folder)
    expected, module = trained.expected(), trained.module()
    raw = torch.zeros(2, *expected.shape, dtype=getattr(torch, expected.dtype))
    for answer in answers(module, trained.card, ["one", "two"], raw):
        json.dumps(answer.described())


def _damaged(source: random.Random, weights: bytes) -> bytes:
    """Lengths and offsets are what readers trust most."""
    size = int.from_bytes(weights[:8], "little")
    header, rest = json.loads(weights[8 : 8 + size]), weights[8 + size :]
    match source.randrange(4):
        case 0:
            return damage.bytes_of(source, weights)
        case 1:
            length = source.choice([0, 1, 2**31, 2**63, 2**64 - 1, len(weights), size + 1])
            return length.to_bytes(8, "little") + weights[8:]
        case 2:
            for about in header.values():
                about["data_offsets"] = source.choice([[0, 4], [0, 2**62], [8, 0], [-4, 4], [0], 3])
        case _:
            about = header[source.choice(sorted(header))]
            about[source.choice(["dtype", "shape"])] = source.choice(
                ["F64", "I8", "X", [2**40, 2**40], [-1], [], 3, [1e300], ["x"]]
            )
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


def arrays(source: random.Random, folder: Path) -> None:
    """Arrays to be asked about, a pickle among them."""
    shape = (1, 4, 4)
    expected = Expected(shape, source.choice(["uint8", "float32", "int64"]))
    path = folder / source.choice(["a.npy", "a.npz"])
    values: Any = np.zeros((2, *shape), source.choice(["u1", "f4", "i8", "f2", "c8", "M8[s]", "?"]))
    if source.random() < 0.2:
        values = np.array([{"a": print}, None], dtype=object)
    with path.open("wb") as file:
        if path.suffix == ".npy":
            np.save(file, values, allow_pickle=True)
        else:
            np.savez(file, **dict.fromkeys(source.choice(["a", "ab"]), values))
    content = path.read_bytes()
    if source.random() < 0.3:
        content = content.replace(b"(2, 1, 4, 4)", source.choice(HUGE), 1)
    if source.random() < 0.6:
        content = damage.bytes_of(source, content)
    path.write_bytes(content)
    if source.random() < 0.1:
        damage.replaced(source, path)
    names, raw = expected.read([str(path)])
    assert raw.shape == (len(names), *shape)


TARGETS = {"models": models, "arrays": arrays}
