"""Runs the examples and renews what their pages show.

    python docs/update_examples.py                  all of them
    python docs/update_examples.py hospitals        only this one
    python docs/update_examples.py --pages          only the pages, from the records that are there

Each writes docs/images/examples/NAME.png and docs/records/examples/NAME.json, and in
docs/examples/NAME.md the blocks between the markers: the numbers, and the example's code.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from PIL import Image

DOCS = Path(__file__).resolve().parent
EXAMPLES = DOCS.parent / "examples"
sys.path[:0] = [str(EXAMPLES / "tasks"), str(EXAMPLES / "hospitals")]

import run  # noqa: E402
import together as hospitals  # noqa: E402

HOSPITALS = "hospitals"

TRAINING = """
sites = [site(agent) for agent in range(len(SITES))]
result = parley.train(
    model=network,
    data=[site["train"] for site in sites],
    test=[site["test"] for site in sites],
    topology="full",
    progress=False,
    **OPTIONS,
)
last = result.records[-1]
print(last["METRIC_mean_model"], last["METRIC_personal_agents"])
"""


def page_of(name: str) -> Path:
    """The page of an example."""
    return DOCS / "examples" / f"{name.replace('_', '-')}.md"


ILLUSTRATION = (
    "This is one run on made-up data, with amounts and settings chosen for the example. It shows\n"
    "how the pieces fit together, not how much your own data would gain."
)


def numbers_of_hospitals() -> str:
    """The record of the hospitals as a table."""
    record = recorded(HOSPITALS)
    lines = ["| | trains on | tested on | AUROC alone | together | together, own test scans |"]
    lines += ["|---|---|---|---|---|---|"]
    columns = ("hospitals", "train_samples", "test_samples", "auroc_alone")
    rows = zip(*(record[key] for key in columns), record["auroc_together_at_home"], strict=True)
    for name, train, test, alone, home in rows:
        both = f"{alone:.3f} | {record['auroc_together']:.3f} | {home:.3f}"
        lines.append(f"| {name} | {train} scans | {test} scans | {both} |")
    sent = f"Each hospital sent {record['megabytes_sent']:.1f} MB to the others, and no scans."
    return "\n".join([*lines, "", sent, "", ILLUSTRATION])


def numbers(name: str) -> str:
    """The record of an example as a table."""
    if name == HOSPITALS:
        return numbers_of_hospitals()
    record = recorded(name)
    sites = [*(f"{site} alone" for site in record["sites"]), "**together**"]
    values = [f"{value:.2f}" for value in [*record["alone"], record["together"]]]
    lines = [f"| trained by | {record['metric']} on all test data |", "|---|---|"]
    lines += [f"| {site} | {value} |" for site, value in zip(sites, values, strict=True)]
    sent = f"Each site sent {record['megabytes_sent']:.1f} MB to its neighbours, and no samples."
    if record["parameters_sent"] < record["parameters"]:
        sent += f" Of {record['parameters']:,} parameters, {record['parameters_sent']:,} are sent."
    return "\n".join([*lines, "", sent, "", ILLUSTRATION])


def code(name: str) -> str:
    """An example without what draws its picture, and with the call that trains; of the hospitals,
    their network."""
    if name == HOSPITALS:
        source = (EXAMPLES / HOSPITALS / "networks.py").read_text(encoding="utf-8")
        return f"```python\n{source.strip()}\n```"
    source = (EXAMPLES / "tasks" / f"{name}.py").read_text(encoding="utf-8")
    body = source.partition('"""\n')[2].partition("\n\ndef show(")[0]
    body = body.replace("from matplotlib.figure import SubFigure\n", "").replace(
        "from torch import Tensor, nn\n", "from torch import Tensor, nn\n\nimport parley\n", 1
    )
    body = body.replace("import parley\nfrom torch.nn import functional\n",
                        "from torch.nn import functional\n\nimport parley\n")  # fmt: skip
    training = TRAINING.replace("METRIC", recorded(name)["metric"])
    return f"```python\n{body.strip()}\n\n{training}```"


def recorded(name: str) -> dict[str, Any]:
    """What came of an example."""
    path = DOCS / "records" / "examples" / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def page(name: str) -> str:
    """The page with its blocks renewed."""
    text = page_of(name).read_text(encoding="utf-8")
    for marker, made in (("numbers", numbers(name)), ("code", code(name))):
        begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
        block = f"{begin}\n{made}\n{end}"
        text = re.sub(f"{begin}.*?{end}", lambda _, block=block: block, text, flags=re.DOTALL)
    return text


def update(name: str) -> None:
    """Trains, and keeps the picture, in few colours, and the numbers."""
    picture = DOCS / "images" / "examples" / f"{name}.png"
    if name == HOSPITALS:
        kept = {"command": "python examples/hospitals/together.py", **hospitals.run(picture)}
    else:
        outcome = run.train(name)
        run.draw(name, outcome, picture)
        command = f"python examples/tasks/run.py {name}"
        kept = {"command": command, "sites": run.example(name).SITES, **outcome.numbers}
    with Image.open(picture) as drawn:
        drawn.convert("RGB").quantize(128).save(picture, optimize=True)
    path = DOCS / "records" / "examples" / f"{name}.json"
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """The examples that are named, or all."""
    named = [word for word in sys.argv[1:] if word != "--pages"] or [HOSPITALS, *run.NAMES]
    for name in named:
        if "--pages" not in sys.argv:
            update(name)
        page_of(name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
