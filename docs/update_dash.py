"""Makes the pictures of the live page that the documentation shows.

    python docs/update_dash.py              also makes the runs
    python docs/update_dash.py runs         uses existing runs

Needs Chromium, as the tests of the page do. Writes docs/images/dash.png and dash-compare.png.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from tests.browser import browser, page  # noqa: E402

PARLEY = [sys.executable, "-m", "parley"]
COMMON = "--agents 10 --partition skew:1 --momentum 0.9 --variant as-run --lr 0.05"
COMPARED = "--algorithms dpsgd,ngc,compngc --seeds 1 --epochs 40"
LIVE = "--algorithm ngc --topology circulant:1,3 --epochs 400 --bias-norms run"


def main() -> None:
    """Uses the runs in the folder given as argument, or makes some, one of them unfinished."""
    if len(sys.argv) > 1:
        take(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "runs"
        compared = f"compare {COMMON} {COMPARED} --out {root / 'digits'}".split()
        subprocess.run([*PARLEY, *compared], check=True)
        going = f"train {COMMON} {LIVE} --out {root / 'ngc-live'}".split()
        live = subprocess.Popen([*PARLEY, *going])
        try:
            while not has_records(root / "ngc-live", 60) and live.poll() is None:
                time.sleep(0.2)
            take(root)
        finally:
            live.kill()
            live.wait()


def has_records(run: Path, count: int) -> bool:
    """Whether a run has this many records."""
    path = run / "records.jsonl"
    return path.exists() and path.read_bytes().count(b"\n") >= count


def take(root: Path) -> None:
    """Both pictures of the runs in a folder."""
    command = [*PARLEY, "dash", root.name, "--no-open", "--port", "0"]
    server = subprocess.Popen(command, cwd=root.parent, stderr=subprocess.PIPE, text=True)
    try:
        url = next(
            found[0] for line in server.stderr or () if (found := re.findall(r"http://\S+", line))
        )
        with browser() as chromium, page(chromium, url, width=1280, height=930) as shown:
            shown.emulate_media(reduced_motion="no-preference")
            shown.wait_for_selector("#accuracy svg")
            shown.wait_for_timeout(2500)
            save(shown.screenshot(), "dash.png")
            shown.get_by_role("button", name="Compare the runs of digits").click()
            shown.wait_for_selector("#accuracy svg")
            shown.wait_for_timeout(1500)
            save(shown.screenshot(), "dash-compare.png")
    finally:
        server.kill()
        server.wait()


def save(png: bytes, name: str) -> None:
    """Few colours: the page has no more."""
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        Path(file.name).write_bytes(png)
        picture = Image.open(file.name).convert("RGB")
    picture.quantize(160, dither=Image.Dither.NONE).save(ROOT / "docs/images" / name, optimize=True)


if __name__ == "__main__":
    main()
