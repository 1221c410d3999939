"""Made-up scans for three hospitals: folders of PNG files, and what each hospital tells Parley.

    python examples/hospitals/scans.py hospitals

Writes for each hospital a folder as its own disk would have it:

    hospitals/north/scans/train/healthy/000.png   and so on: test, ill
    hospitals/north/host.toml                     which agent it is, and where its data are
    hospitals/north/experiment.toml, networks.py  what all hospitals have agreed on: copies
    hospitals/north/new.png                       a scan that nobody has seen yet

The hospitals differ in what they own (the size of their scans, how bright their scanner is) and in
whom they treat (how many, and how many of them are ill).
"""

import argparse
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

LABELS = ("healthy", "ill")
SPOT = 60.0
"""How much brighter ill tissue is."""
SHARED = ("experiment.toml", "networks.py")
HERE = Path(__file__).parent


class Hospital(NamedTuple):
    """Its scanner, and the patients it treats."""

    name: str
    size: tuple[int, int]
    """Width and height of its scans."""
    light: float
    """How bright its scanner is."""
    train: tuple[int, int]
    """Healthy and ill patients whose scans it trains on."""
    test: tuple[int, int]


HOSPITALS = (
    Hospital("north", (24, 24), 90.0, (70, 10), (20, 20)),
    Hospital("coast", (40, 32), 100.0, (12, 28), (15, 25)),
    Hospital("valley", (32, 48), 80.0, (60, 60), (12, 12)),
)


def scan(hospital: Hospital, ill: bool, draws: np.random.Generator) -> NDArray[np.uint8]:
    """A round organ; in the ill, with a bright spot somewhere in it. Grey, [height, width]."""
    width, height = hospital.size
    side = min(width, height)
    y, x = np.mgrid[:height, :width]
    y, x = (y - height / 2 + 0.5) / side, (x - width / 2 + 0.5) / side
    made = hospital.light * np.ones((height, width))
    made += 40 * (x**2 + y**2 < 0.42**2)
    if ill:
        angle, away = draws.uniform(0, 2 * np.pi), draws.uniform(0, 0.25)
        from_spot = (x - away * np.cos(angle)) ** 2 + (y - away * np.sin(angle)) ** 2
        made += SPOT * np.exp(-from_spot / (2 * 0.07**2))
    made += draws.normal(scale=14, size=made.shape)
    return np.clip(made, 0, 255).astype(np.uint8)


def write(folder: Path, hospitals: tuple[Hospital, ...] = HOSPITALS) -> list[Path]:
    """Writes every hospital's folder; returns them."""
    made = []
    for agent, hospital in enumerate(hospitals):
        home = folder / hospital.name
        draws = np.random.default_rng(agent)
        for split, counts in (("train", hospital.train), ("test", hospital.test)):
            for label, count in zip(LABELS, counts, strict=True):
                place = home / "scans" / split / label
                place.mkdir(parents=True, exist_ok=True)
                for number in range(count):
                    pixels = scan(hospital, label == "ill", draws)
                    Image.fromarray(pixels).save(place / f"{number:03}.png")
        Image.fromarray(scan(hospital, True, draws)).save(home / "new.png")
        text = f'agents = [{agent}]\nallow_code = ["networks"]\n\n[data]\n{agent} = "scans"\n'
        (home / "host.toml").write_text(text, encoding="utf-8")
        for name in SHARED:
            shutil.copy(HERE / name, home / name)
        made.append(home)
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to write the hospitals' folders")
    for home in write(parser.parse_args().folder):
        print(home)
