"""Runs the comparisons whose curves the pages on update rules and local steps show.

    python docs/update_pace.py              all of them
    python docs/update_pace.py kgt led      only these

Each writes docs/images/pace/NAME.png and docs/records/pace/NAME/: the table, and the last record of
every run with its experiment.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from PIL import Image

from parley.results.curves import curves_picture
from parley.results.group import group_seeds
from parley.results.read import read_all

DOCS = Path(__file__).resolve().parent
COMMON = "--agents 10 --partition skew:1 --epochs 20 --seeds 1 --gossip-rounds 0"
FIGURES = {
    "adamw": "dpsgd:lr=0.1,dpsgd+adamw:lr=0.003,ngc+adamw:lr=0.003",
    "lion": "dpsgd+adamw:lr=0.003,dpsgd+lion:lr=0.002,ngc+lion:lr=0.002",
    "sam": "dpsgd,dpsgd+sam,dpsgd+sam:rho=0.3",
    "clip": "dpsgd:momentum=0.9,dpsgd+clip:momentum=0.9,"
    "dpsgd+clip:momentum=0.9:clip_by=value:clip=0.1",
    "schedules": "dpsgd:lr_decay=constant,dpsgd:lr_decay=exponential:0.9,"
    "dpsgd:lr_decay=cosine:warmup=2",
    "local-steps": "dpsgd,dpsgd:local_steps=4,dpsgd:local_steps=16",
    "kgt": "dpsgd:local_steps=4,tracking,kgt",
    "exact-diffusion": "dpsgd,tracking,exact-diffusion",
    "led": "dpsgd:local_steps=4,exact-diffusion,led",
    "proxskip": "dpsgd:local_steps=4,led,proxskip",
    "diloco": "dpsgd+adamw:lr=0.003,dpsgd+adamw:local_steps=10:lr=0.003,diloco:lr=0.003",
}

MORE = {"led": "--lr 0.05", "proxskip": "--lr 0.05", "clip": "--lr 1"}
"""At the default of 0.1 LED is unstable here: rounding alone decides where it ends. Clipping is for
rates that are too high without it."""


def main() -> None:
    """The figures that are named, or all."""
    for name in sys.argv[1:] or FIGURES:
        with tempfile.TemporaryDirectory() as temporary:
            out = Path(temporary) / name
            options = f"{COMMON} {MORE.get(name, '')}".split()
            words = ["compare", "--algorithms", FIGURES[name], *options, "--out", str(out)]
            subprocess.run([sys.executable, "-m", "parley", *words], check=True)
            keep(name, out, " ".join(["parley", *words[:-2]]))


def keep(name: str, out: Path, command: str) -> None:
    """The picture, in few colours, and the records behind it."""
    images, records = DOCS / "images" / "pace", DOCS / "records" / "pace" / name
    images.mkdir(parents=True, exist_ok=True)
    records.mkdir(parents=True, exist_ok=True)
    methods = {group.label: group.seeds for group in group_seeds(read_all([out]))}
    with Image.open(curves_picture(methods, out / "curves.png")) as picture:
        wide = 1100
        small = picture.convert("RGB").resize((wide, picture.height * wide // picture.width))
        small.quantize(64).save(images / f"{name}.png", optimize=True)
    shutil.copy(out / "table.md", records / "table.md")
    lines = []
    for run in sorted(out.glob("*/seed-*")):
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        experiment = tomllib.loads((run / "experiment.toml").read_text(encoding="utf-8"))
        kept = {**summary, "out": None, "command": command, "experiment": experiment}
        lines.append(json.dumps(kept) + "\n")
    (records / "runs.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
