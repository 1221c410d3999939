"""Bytes that become tensors: checkpoints, messages, images."""

import io
import json
import random
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file

from parley import graphs
from parley.algorithms import CompNGC
from parley.data import images as decoding
from parley.errors import BadValue
from parley.store import checkpoint
from parley.wire import codec as codecs
from parley.wire.local import Local
from parley.wire.placement import spread
from parley.wire.spread import _check, _headers
from tests import small
from tests.fuzz import damage

ABOUT = {"epoch": 3, "seconds": 1.5, "samples": 70}
CLOCK = {"time": [0.0] * 4, "free": [0.0] * 4, "messages": 1}


def checkpoints(source: random.Random, folder: Path) -> None:
    """A damaged file; or one whose checksums are right and whose header is not."""
    hood = small.hood(graphs.ring(4))
    _, state = small.trajectory(CompNGC(), hood, 1)
    about = ABOUT | ({"clock": CLOCK} if source.random() < 0.3 else {})
    checkpoint.save(folder, 3, state, hood.transport, about)
    [path] = folder.rglob("*.safetensors")
    if source.random() < 0.4:
        path.write_bytes(damage.bytes_of(source, path.read_bytes()))
    elif source.random() < 0.2:
        shutil.move(
            path.parent, path.parent.with_name(source.choice(["epoch-²", "epoch-", "epoch-9"]))
        )
    else:
        _rewrite(source, path)
    transport = Local(spread(graphs.ring(4), 1))
    epoch = checkpoint.newest(folder, transport)
    found = checkpoint.models(folder, range(4))
    assert found is None or found.state.shape[0] == 4
    if epoch:
        checkpoint.load(folder, epoch, state, transport)


def _rewrite(source: random.Random, path: Path) -> None:
    """Another header or other arrays, with checksums that fit them."""
    with safe_open(path, "np") as file:
        header = json.loads(file.metadata()["parley"])
        arrays = {name: file.get_tensor(name) for name in header["checks"]}
    if source.random() < 0.3:
        name = source.choice(sorted(arrays))
        other = np.zeros(source.choice([(), (0,), (1,), (4,), (4, 3), (9, 52)]))
        arrays[name] = other.astype(source.choice(["f4", "f8", "i8", "u1", "bool"]))
        checksum = zlib.crc32(f"{arrays[name].dtype} {arrays[name].shape}".encode())
        header["checks"][name] = zlib.crc32(arrays[name].tobytes(), checksum)
    else:
        header = damage.value_of(source, header)
    text = json.dumps(header, default=str)
    save_file(arrays, path, {"parley": text, "check": str(zlib.crc32(text.encode()))})


def messages(source: random.Random, folder: Path) -> None:
    """Random bytes of the right length, as a bad peer may send them."""
    spec = source.choice(["dense", "fp16", "sign", "topk:0.3", "topk:1", "randomk:0.3", "qsgd:4"])
    sizes = source.choice([[1], [7], [5, 12], [300]])
    dtype = source.choice([torch.float32, torch.float64])
    codec = codecs.build(spec, sizes)
    count = source.randint(1, 3)
    content = bytearray(source.randbytes(count * codec.message_bytes(dtype)))
    if source.random() < 0.3:
        content = bytearray([source.choice([0, 255])]) * len(content)
    wire_EB = torch.frombuffer(content, dtype=torch.uint8).view(count, -1)
    decoded = codec.decode(wire_EB, dtype)
    assert decoded.shape == (count, sum(sizes))


def headers(source: random.Random, folder: Path) -> None:
    """Messages whose headers are not the expected ones."""
    expected = torch.from_numpy(_headers([(0, 1), (2, 1)]).view(np.uint8).reshape(2, -1).copy())
    got = expected.clone()
    if source.random() < 0.9:
        row = source.randrange(2)
        for place in source.sample(range(got.shape[1]), source.choice([1, 4, got.shape[1]])):
            got[row, place] = source.randrange(256)
    _check(got, expected, lambda row: f"agent {row}")
    assert torch.equal(got, expected)


def images(source: random.Random, folder: Path) -> None:
    """Damaged images of every format."""
    out = io.BytesIO()
    pixels = np.frombuffer(source.randbytes(12 * 9 * 3), dtype=np.uint8).reshape(12, 9, 3)
    form = source.choice(decoding.FORMATS)
    Image.fromarray(pixels).save(out, form)
    content = damage.bytes_of(source, out.getvalue())
    if form == "PNG" and source.random() < 0.3:
        size = struct.pack(">II", source.choice([1, 10**4, 2**31 - 1]), source.choice([1, 10**9]))
        content = content[:16] + size + content[24:]
    try:
        found = decoding.opened({"bytes": content, "path": "a.png"})
        side = source.choice([4, 64])
        assert decoding.pixels(decoding.squared(found, side, side)).shape[:2] == (side, side)
    except decoding.NoImage as error:
        raise BadValue("data", "fuzz", "images", str(error)) from error


TARGETS = {"checkpoints": checkpoints, "messages": messages, "headers": headers, "images": images}
