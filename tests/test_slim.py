"""The core: what `pip install parley-learning` brings is enough to train, to read and to report."""

import json
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRAS = (
    "datasets",
    "pyarrow",
    "pandas",
    "dill",
    "huggingface_hub",
    "sklearn",
    "transformers",
    "matplotlib",
)
"""What only extras bring."""
BLOCKED = f"""
    import sys
    from importlib.machinery import PathFinder

    class Without(PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name.partition(".")[0] not in {EXTRAS!r}:
                return super().find_spec(name, path, target)

    sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""


def without_extras(code: str, *arguments: str) -> str:
    """What the code prints where no extra is installed."""
    whole = textwrap.dedent(BLOCKED) + textwrap.dedent(code)
    command = [sys.executable, "-c", whole, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_extras_are_not_required() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {line.partition(">")[0].replace("-", "_") for line in project["dependencies"]}
    assert not required & {*EXTRAS, "scikit_learn"}
    assert {"datasets>=3.0", "pyarrow>=15"} == set(project["optional-dependencies"]["hub"])


def test_the_core_trains_predicts_and_reports(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(
        "age,ward,ill\n" + "".join(f"{20 + i},{'ab'[i % 2]},{i // 30}\n" for i in range(60))
    )
    code = """
        import json, sys
        from pathlib import Path
        import parley

        folder = Path(sys.argv[1])
        options = {"agents": 3, "epochs": 1, "progress": False}
        first = parley.train(out=folder / "digits", **options)
        parley.train("logistic", data=str(folder / "table.csv"), data_options={"target": "ill"},
                     partition="iid", validation=0.2, out=folder / "table", **options)
        first.report(folder / "report.html")
        answers = parley.load(folder / "table").predict(folder / "table.csv")
        refused = {}
        for data in ("fashion_mnist", str(folder / "some.parquet")):
            Path(folder / "some.parquet").write_bytes(b"")
            try:
                target = {"target": "ill"} if "." in data else {}
                parley.train(data=data, data_options=target, **options)
            except parley.BadValue as error:
                refused[data] = [error.field, "parley-learning[hub]" in str(error)]
        accuracy = first.summary["accuracy_mean_model"]
        print(json.dumps([accuracy, len(answers), list(refused.values())]))
    """
    accuracy, answers, refused = json.loads(without_extras(code, str(tmp_path)).splitlines()[-1])
    assert accuracy > 0.5 and answers == 60 and refused == [["data", True], ["data", True]]
    assert "</html>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("words", [["--data", "fashion_mnist"], ["--data", "frgfm/imagenette"]])
def test_the_command_names_the_extra(words: list[str], tmp_path: Path) -> None:
    code = """
        from parley.cli.main import main
        sys.argv = ["parley", "train", *sys.argv[1:]]
        try:
            main()
        except SystemExit as ended:
            print(ended.code)
    """
    whole = textwrap.dedent(BLOCKED) + textwrap.dedent(code)
    command = [sys.executable, "-c", whole, *words, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2"
    assert "pip install 'parley-learning[hub]'" in done.stderr
