"""Runs the demo and renews what the documentation shows of it.

    python docs/update_demo.py              runs `parley demo`
    python docs/update_demo.py runs/demo-001    takes a finished one

Writes docs/images/demo.png (the overview of `parley report`), docs/images/report.png (its page,
where there is Chromium), docs/records/demo/ and the block between the markers in README.md.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from tests.browser import browser, find_chromium, page  # noqa: E402

IMAGES = ROOT / "docs" / "images"
RECORDS = ROOT / "docs" / "records" / "demo"
BEGIN, END = "<!-- demo:begin -->", "<!-- demo:end -->"


def main() -> None:
    """With a folder as argument, takes that; else runs the demo into a temporary one."""
    if len(sys.argv) > 1:
        update(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "demo"
        subprocess.run([sys.executable, "-m", "parley", "demo", "--out", str(out)], check=True)
        update(out)


def update(demo: Path) -> None:
    """Copies the picture (smaller), table and last records; rewrites the README's block."""
    runs = sorted(demo.glob("*/seed-*"))
    RECORDS.mkdir(parents=True, exist_ok=True)
    for old in RECORDS.iterdir():
        old.unlink()
    pictures(demo)
    shutil.copy(demo / "table.md", RECORDS / "table.md")
    environment = json.loads((runs[0] / "environment.json").read_text(encoding="utf-8"))
    environment["command"] = "parley demo"  # without the folder that it was run in
    text = json.dumps(environment, indent=2) + "\n"
    (RECORDS / "environment.json").write_text(text, encoding="utf-8")
    lines = []
    for run in runs:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        experiment = tomllib.loads((run / "experiment.toml").read_text(encoding="utf-8"))
        lines.append(json.dumps({**summary, "out": None, "experiment": experiment}) + "\n")
    (RECORDS / "runs.jsonl").write_text("".join(lines), encoding="utf-8")

    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    table = (demo / "table.md").read_text(encoding="utf-8")
    block = f"{BEGIN}\n{settings(runs)}\n\n{table}{END}"
    readme.write_text(before + block + after, encoding="utf-8")


def pictures(demo: Path) -> None:
    """The report's overview, and its page as a browser shows it."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "report.html"
        words = ["report", str(demo), "--out", str(out), "--pictures", temporary]
        subprocess.run([sys.executable, "-m", "parley", *words], check=True)
        shrink(Path(temporary) / "overview.png", IMAGES / "demo.png")
        if find_chromium():
            with browser() as chromium, page(chromium, out.as_uri(), height=1330) as shown:
                shown.screenshot(path=str(Path(temporary) / "page.png"))
            shrink(Path(temporary) / "page.png", IMAGES / "report.png")


def shrink(picture: Path, out: Path) -> None:
    """As wide as a page shows it, in few colours."""
    image = Image.open(picture).convert("RGB")
    image = image.resize((1320, 1320 * image.height // image.width), Image.Resampling.LANCZOS)
    image.quantize(128, dither=Image.Dither.NONE).save(out, optimize=True)


def settings(runs: list[Path]) -> str:
    """One sentence on what was run, from the experiments themselves."""
    found = [tomllib.loads((r / "experiment.toml").read_text(encoding="utf-8")) for r in runs]
    machine = json.loads((runs[0] / "environment.json").read_text(encoding="utf-8"))
    first = found[0]
    seeds = sorted({e["seed"] for e in found})
    printed = "as printed" if first["algorithm"]["gradient_at"] == "own" else "as run"
    return (
        f"{first['agents']} agents, {first['topology']}, partition {first['partition']}, model "
        f"{first['model']}, {first['epochs']} epochs, batch {first['batch']}, learning rate "
        f"{first['lr']:g}, momentum {first['algorithm']['momentum']:g}, algorithms {printed}; mean "
        f"and standard deviation over {len(seeds)} seeds; torch {machine['torch']}, "
        f"{machine['cores']} cores."
    )


if __name__ == "__main__":
    main()
