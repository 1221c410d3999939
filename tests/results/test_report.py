"""The report: what it reads, what it tells, and that the page works in a real browser."""

import json
import re
import shutil
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import parley
from parley import BadValue
from parley.charts.shapes import palette
from parley.cli.main import main
from parley.errors import ParleyError
from parley.experiment import Experiment
from parley.files import lines_of, parse_json
from parley.measures import KNOWN
from parley.reproduce.cells import Form, cells, find_cell
from parley.reproduce.study import named
from parley.results import sections as charts
from parley.results import static_charts
from parley.results.curves import POINTS
from parley.results.group import group_seeds
from parley.results.page import page as report_page
from parley.results.pictures import pictures
from parley.results.read import RecordedRun, find_runs, read_all, read_run
from parley.results.seeds import Group, curve, field_of, slots
from parley.training.record import parse_lines
from tests.browser import browser, faults, overflow, page
from tests.fuzz.damage import SPECIAL
from tests.processes import until

AGENTS, EPOCHS = 4, 4


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with two seeds each; ε and ω of one of them only."""
    root = tmp_path_factory.mktemp("runs")
    for algorithm in ("ngc", "dpsgd"):
        for seed in (0, 1):
            parley.train(
                algorithm=algorithm, agents=AGENTS, epochs=EPOCHS, seed=seed, progress=False,
                partition="skew:1", bias_norms="run" if algorithm == "ngc" else "off",
                out=root / algorithm / f"seed-{seed}",
            )  # fmt: skip
    return root


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs, tmp_path / "runs"))


def groups_of(path: Path) -> list[Group]:
    return group_seeds(read_all([path]))


def sections(path: Path) -> dict[str, charts.Section]:
    return {section.name: section for section in charts.sections(groups_of(path))}


# --- reading -----------------------------------------------------------------------------------


def test_runs_are_found_below_a_folder_and_seeds_are_grouped(runs: Path) -> None:
    assert len(find_runs(runs)) == 4 and find_runs(runs / "ngc/seed-1") == [runs / "ngc/seed-1"]
    first, second = groups_of(runs)
    assert (first.label, [r.seed for r in first.runs]) == ("D-PSGD", [0, 1])
    assert (second.label, [r.seed for r in second.runs]) == ("NGC", [0, 1])


def test_a_band_is_the_spread_over_seeds(runs: Path) -> None:
    group = groups_of(runs)[0]
    found = curve(group.seeds, field_of("accuracy_own", 100))
    values = np.array([[100 * r["accuracy_own"] for r in run.records] for run in group.runs])
    assert found is not None and found.low is not None and found.high is not None
    assert found.x == [1, 2, 3, 4] and found.seeds == [2] * EPOCHS
    np.testing.assert_allclose(found.mean, values.mean(0))
    np.testing.assert_allclose(np.array(found.high) - found.low, 2 * values.std(0, ddof=1))


def test_seeds_that_have_not_come_so_far_do_not_cut_the_others_short(copied: Path) -> None:
    records = copied / "dpsgd/seed-1/records.jsonl"
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:2]))
    found = curve(groups_of(copied)[0].seeds, field_of("loss"))
    assert found is not None and found.seeds == [2, 2, 1, 1]


def test_damaged_lines_are_passed_over_with_a_note(copied: Path) -> None:
    path = copied / "dpsgd/seed-0/records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        lines[0] + b'{"epoch": 2, "lo\n' + b"[1, 2]\n\xff\xfe\n" + lines[2] + lines[3][:40]
    )
    (copied / "dpsgd/seed-0/agents.json").write_text("{")
    run = read_run(copied / "dpsgd/seed-0")
    assert [r["epoch"] for r in run.records] == [1, 3]
    assert run.notes == [
        "records.jsonl: 3 damaged lines skipped (2, 3, 4)",
        "records.jsonl: the last record is missing",
        "agents.json is damaged",
    ]
    text = report_page(groups_of(copied))
    assert "3 damaged lines skipped" in text and "agents.json is damaged" in text


@pytest.mark.parametrize("what", sorted(SPECIAL))
def test_what_is_no_file_is_passed_over_with_a_note(what: str, copied: Path) -> None:
    runs = find_runs(copied)
    for name in ("records.jsonl", "experiment.toml", "summary.json", "agents.json"):
        (runs[0] / name).unlink()
        SPECIAL[what](runs[0] / name)
    assert find_runs(copied) == runs
    notes = read_run(runs[0]).notes
    assert {note.split()[0].rstrip(":") for note in notes} == {
        *("experiment.toml", "records.jsonl", "summary.json", "agents.json")
    }
    assert str(runs[1]) in report_page(group_seeds(read_all([copied])))


def test_accuracies_on_a_part_of_the_test_samples_are_marked(copied: Path) -> None:
    assert "Not comparable" not in report_page(groups_of(copied))
    path = copied / "dpsgd/seed-1/records.jsonl"
    *lines, last = path.read_text().splitlines()
    record = json.loads(last)
    assert record["test_samples"] == 360
    changed = record | {"test_samples": 240, "test_samples_absent": 120}
    path.write_text("\n".join([*lines, json.dumps(changed)]) + "\n")
    text = report_page(groups_of(copied))
    assert "Not comparable with the others" in text and "dpsgd/seed-1 (240 of 360)" in text


def test_a_half_written_line_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"epoch": 1}\n{"epoch": 2, "loss": 0.')
    assert parse_lines(lines_of(path)) == ([{"epoch": 1}], [])
    path.write_bytes(b"")
    assert parse_lines(lines_of(path)) == ([], [])


def test_an_experiment_of_another_version_is_shown_with_a_note(copied: Path) -> None:
    path = copied / "ngc/seed-0/experiment.toml"
    path.write_text("warp_drive = true\n" + path.read_text())
    group = next(g for g in groups_of(copied) if g.experiment is None)
    assert group.label == "NGC" and "this version does not understand" in group.note
    assert "warp_drive" in report_page(groups_of(copied))


def test_labels_tell_groups_of_one_algorithm_apart(tmp_path: Path) -> None:
    def run(seed: int, **options: object) -> RecordedRun:
        experiment = Experiment.of(algorithm="ngc", seed=seed, **options)
        return RecordedRun(tmp_path, experiment.model_dump(exclude_none=True))

    made = group_seeds([run(0), run(0, topology="full"), run(1), run(0, alpha=0.5)])
    labels = [(g.label, len(g.runs)) for g in made]
    assert labels == [("NGC topology=ring", 2), ("NGC topology=full", 1), ("NGC α=0.5", 1)]


# --- what is told ------------------------------------------------------------------------------


def test_the_graph_shows_who_holds_what(runs: Path) -> None:
    [chart] = sections(runs)["graph"].charts  # the same for all four runs
    network = chart.network
    assert network and len(network.places) == AGENTS and len(network.edges) == AGENTS
    about = parse_json((runs / "ngc/seed-0/agents.json").read_text())
    held = np.array(about["held"])
    assert held.sum() == 1437 and held.shape == (AGENTS, 10)
    assert network.shares == held.tolist()
    assert all(edge.weight == pytest.approx(1 / 3, abs=1e-5) for edge in network.edges)


def test_older_runs_have_a_graph_without_classes_and_say_why(copied: Path) -> None:
    for name in ("agents.json", "confusion.json"):
        for path in copied.rglob(name):
            path.unlink()
    made = sections(copied)
    [chart] = made["graph"].charts
    assert chart.network and not chart.network.shares and "older version" in made["graph"].text
    assert not made["confusion"].charts and "run them again" in made["confusion"].missing
    assert made["confusion"].missing in report_page(groups_of(copied))


def test_fields_that_are_not_recorded_are_named(runs: Path, copied: Path) -> None:
    assert sections(runs / "dpsgd")["bias"].missing.startswith("Not recorded: use")
    both = sections(runs)["bias"]
    assert len(both.charts) == 2 and "Not recorded for D-PSGD." in both.text
    for path in copied.rglob("records.jsonl"):
        lines = [parse_json(line) for line in path.read_text().splitlines()]
        for name in ("bytes_models", "accuracy_agents", "loss_train", "accuracy_own"):
            for line in lines:
                del line[name]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = sections(copied)
    assert made["bytes"].missing == "The records do not count bytes."
    assert made["agents"].missing == "The records have no per-agent accuracies."
    assert [c.title for c in made["loss"].charts] == ["Test loss of the averaged model"]
    assert len(made["accuracy"].charts) == 2
    report_page(groups_of(copied))


def test_time_on_a_simulated_network_is_an_axis(runs: Path, tmp_path: Path) -> None:
    assert "network" not in sections(runs), "none was simulated"
    parley.train(agents=3, epochs=2, links="delay=1", progress=False, out=tmp_path / "ngc")
    (chart, _) = sections(tmp_path)["network"].charts
    taken = [r["seconds_network"] for r in read_run(tmp_path / "ngc").records]
    assert chart.lines[0].x == pytest.approx(taken) and chart.x.unit == "s"


def test_a_run_without_records_yet_has_a_page(copied: Path) -> None:
    run = copied / "ngc/seed-0"
    for name in ("records.jsonl", "summary.json", "confusion.json"):
        (run / name).unlink()
    made = sections(run)
    assert made["accuracy"].missing == "There are no records yet."
    assert made["confusion"].missing == "They are recorded once a run is complete."
    assert "epoch 0 of 4" in report_page(groups_of(run))


def test_the_confusion_is_that_of_the_best_and_the_worst_agent(runs: Path) -> None:
    folder = runs / "ngc/seed-0"
    last = read_run(folder).last
    found = parse_json((folder / "confusion.json").read_text())
    for name, extreme in (("best", max), ("worst", min)):
        matrix = np.array(found[name]["matrix"])
        accuracy = extreme(last["accuracy_agents"])
        assert matrix.sum() == 360 and found[name]["accuracy"] == accuracy
        assert matrix.trace() / matrix.sum() == pytest.approx(accuracy, abs=1e-6)
    titles = [chart.title for chart in sections(folder)["confusion"].charts]
    assert [re.search("worst|best", t)[0] for t in titles] == ["worst", "best"]  # type: ignore[index]


def test_many_agents_are_rows_of_a_heat_map(tmp_path: Path) -> None:
    n = charts.SMALL_MULTIPLES + 1
    records = [{"epoch": e, "accuracy_agents": [0.01 * e] * n} for e in range(1, 4)]
    run = RecordedRun(tmp_path, {}, records=records)
    [chart] = charts.agents_section(KNOWN["accuracy"], [Group("many", [run])]).charts
    assert chart.heat and np.shape(chart.heat.values) == (n, 3)
    assert chart.heat.values[0] == [1, 2, 3]


def test_long_curves_are_thinned_and_keep_their_end(tmp_path: Path) -> None:
    records = [{"epoch": e, "loss": 1.0 / e} for e in range(1, 2501)]
    run = RecordedRun(tmp_path, {}, records=records)
    made = {s.name: s for s in charts.sections([Group("long", [run])])}
    [line] = made["loss"].charts[0].lines
    assert len(line.x) <= POINTS and line.x[-1] == 2500


def test_the_papers_figures_stand_beside_ours(tmp_path: Path) -> None:
    preset = cells(named("paper"))["fashion_mnist/lenet5/ring/10/ngc"]
    for name, form in (("whole", Form()), ("short", Form(epochs=10))):
        experiment = preset.experiment(form, evaluate_every=1)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "experiment.toml").write_text(experiment.to_toml())
        record = {"epoch": 1, "step": 188, "accuracy_after_gossip": 0.8774}
        (folder / "records.jsonl").write_text(json.dumps(record) + "\n")
    text = report_page(groups_of(tmp_path), published=find_cell)
    assert text.count("<td>87.24 ± 0.23</td><td>+0.50</td>") == 2
    assert f"reduced: 10 of {preset.usual.epochs} epochs" in text
    assert find_cell(preset.experiment(lr=0.123)) is None


# --- the page and the pictures -------------------------------------------------------------------


class Outline(HTMLParser):
    """Headings, and everything that would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [v or "" for k, v in attrs if k in ("src", "href")]


def test_the_page_needs_nothing_else_and_names_cannot_break_it(copied: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    for path in copied.rglob("agents.json"):
        about = parse_json(path.read_text())
        about["classes"][0] = evil
        path.write_text(json.dumps(about))
    for path in copied.rglob("environment.json"):
        path.write_text(json.dumps({"command": f"parley train --data '{evil}'", "cores": 2}))
    text = report_page(groups_of(copied), date(2030, 1, 2))
    outline = Outline()
    outline.feed(text)
    assert not outline.fetched
    assert evil not in text and "2030-01-02" in text
    assert "&lt;/script&gt;&lt;img src=x" in text  # said of the agents, as text
    found = re.findall(r'<script type="application/json">(.*?)</script>', text)
    assert len(found) > 5 and all(json.loads(data)["series"] for data in found)


def test_command_versions_and_machine_are_told(runs: Path) -> None:
    text = report_page(groups_of(runs))
    environment = parse_json((runs / "ngc/seed-0/environment.json").read_text())
    assert environment["command"].startswith("python")
    for name in ("python", "torch", "cores"):
        assert f"<dt>{name}</dt><dd>{environment[name]}</dd>" in text
    assert "algorithm" in text and "[algorithm]" in text  # the experiment, as TOML


def test_the_same_plots_as_pictures(runs: Path, tmp_path: Path) -> None:
    written = pictures(groups_of(runs), tmp_path / "figures")
    wanted = {"overview", "graph", "accuracy", "loss", "distance", "bias", "bytes", "agents"}
    assert {p.stem for p in written} == wanted | {"confusion"}
    assert {p.suffix for p in written} == {".png", ".svg"}
    for name in ("overview", "accuracy", "loss", "distance", "bytes", "agents"):
        pixels = np.asarray(Image.open(tmp_path / f"figures/{name}.png").convert("RGB"))
        for slot in slots(["NGC", "D-PSGD"]).values():  # a line for each method
            colour = palette()["lines"][slot]
            rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
            assert (pixels == rgb).all(-1).sum() > 50, (name, colour)
    svg = (tmp_path / "figures/accuracy.svg").read_text()
    assert svg.startswith("<?xml") and "Averaged model" in svg.replace("\n", " ")


def test_result_plots_and_reports_itself(tmp_path: Path) -> None:
    result = parley.train(agents=3, epochs=1, progress=False)
    assert result.plot()._repr_svg_().startswith("<?xml")
    assert result.plot(tmp_path / "one.svg").read_text().startswith("<?xml")
    text = result.report(tmp_path / "one.html").read_text()
    assert "NGC on digits" in text and 'data-of="share"' in text and "worst agent" in text


# --- the command -------------------------------------------------------------------------------


def run_command(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["parley", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_command_writes_the_page_beside_the_runs(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_command("report", str(copied), capsys=capsys)
    assert code == 0 and out == f"written to {copied / 'report.html'}\n"
    code, out, _ = run_command(
        "report", str(copied / "ngc"), str(copied / "dpsgd"), "--json",
        "--out", str(copied / "a/b.html"), "--pictures", str(copied / "figures"), capsys=capsys,
    )  # fmt: skip
    told = json.loads(out)
    assert code == 0 and Path(told["page"]).is_file() and len(told["pictures"]) == 18


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "run: 'nowhere' is not valid (it does not exist)"),
        (["file.txt"], "run: 'file.txt' is not valid (it is a file)"),
        (
            ["empty"],
            "run: 'empty' is not valid (neither it nor any folder in it has experiment.toml)",
        ),
        (
            ["empty", "--out", "x.pdf"],
            "out: 'x.pdf' is not valid; valid: a file that ends in .html",
        ),
        (["empty", "--out", "folder.html"], "out: 'folder.html' is not valid (it is a folder)"),
        (["empty", "--pictures", "file.txt"], "pictures: 'file.txt' is not valid (it is a file)"),
        ([], "Missing argument"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.txt").write_text("no run")
    Path("empty").mkdir()
    Path("folder.html").mkdir()
    code, out, err = run_command("report", *words, capsys=capsys)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert complaint in err
    assert not list(tmp_path.rglob("report.html"))


def test_a_graph_that_cannot_be_known_is_no_error(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, {}, None, {}, [], None, None, None)
    with pytest.raises(ParleyError, match="its experiment cannot be read"):
        static_charts.recorded_graph_chart(run)
    assert charts.graph_section([Group("x", [run])]).missing == "x: its experiment cannot be read."
    with pytest.raises(BadValue, match=r"has no experiment\.toml"):
        read_run(tmp_path)


# --- in a browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium() -> object:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def shown_page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report_page(groups_of(runs)), encoding="utf-8")
    return path.as_uri()


FIRST = "#accuracy figure:first-of-type"
LINES = f"{FIRST} svg path[stroke-width='2']"
SHOWN = f"""[...document.querySelectorAll("{LINES}")].filter(
    (line) => getComputedStyle(line).display !== 'none')"""


def test_the_page_is_whole_and_without_faults(chromium: object, shown_page: str) -> None:
    with page(chromium, shown_page) as shown:
        assert shown.title() == "2 methods on digits"
        drawn = shown.locator(".parley-canvas > svg").count()
        assert drawn == shown.locator("figure").count() > 15
        assert shown.locator("#graph circle[data-of^=agent]").count() == AGENTS
        assert faults(shown) == [] and overflow(shown) == 0


def test_hovering_shows_values(chromium: object, shown_page: str, runs: Path) -> None:
    with page(chromium, shown_page) as shown:
        canvas = shown.locator(f"{FIRST} .parley-canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        tip = shown.locator(".parley-tip b", has_text="epoch 4")

        def seen() -> bool:  # once the chart listens: a move before that is lost
            for x in (box["width"] * 0.9, box["width"] - 18):
                shown.mouse.move(box["x"] + x, box["y"] + box["height"] / 2)
            shown.wait_for_timeout(100)
            return bool(tip.is_visible())

        assert until(seen)
        ends = [100 * r.last["accuracy_mean_model"] for r in groups_of(runs)[0].runs]
        told = tip.locator("xpath=..").inner_text()
        assert f"{float(f'{np.mean(ends):.3g}'):g}" in told and "±" in told, told


def test_methods_can_be_switched_off_everywhere_at_once(chromium: object, shown_page: str) -> None:
    with page(chromium, shown_page) as shown:
        assert shown.evaluate(f"{SHOWN}.length") == 2
        button = shown.locator(f"{FIRST} button", has_text="D-PSGD")
        button.focus()
        shown.keyboard.press("Enter")
        assert shown.evaluate(f"{SHOWN}.length") == 1
        states = shown.locator("button", has_text="D-PSGD").evaluate_all(
            "all => all.map(b => b.getAttribute('aria-pressed'))"
        )
        assert set(states) == {"false"} and len(states) > 5
        shown.keyboard.press("Enter")  # the focus has stayed
        assert shown.evaluate(f"{SHOWN}.length") == 2


def test_numbers_for_those_who_cannot_hover(chromium: object, shown_page: str, runs: Path) -> None:
    with page(chromium, shown_page) as shown:
        shown.locator(f"{FIRST} summary").click()
        rows = shown.locator(f"{FIRST} tbody tr")
        rows.first.wait_for()
        assert rows.count() == EPOCHS
        group = groups_of(runs)[0]
        mean = np.mean([100 * run.last["accuracy_mean_model"] for run in group.runs])
        assert float(rows.last.locator("td").nth(1).inner_text()) == pytest.approx(mean, rel=5e-3)
        assert faults(shown) == []


def background(shown: object) -> str:
    return shown.evaluate("getComputedStyle(document.body).backgroundColor")  # type: ignore[attr-defined]


def line_colour(shown: object) -> str:
    return shown.evaluate(f"getComputedStyle({SHOWN}[0]).stroke")  # type: ignore[attr-defined]


def test_dark_follows_the_system_and_the_button(chromium: object, shown_page: str) -> None:
    found = json.loads(Path(parley.__file__).with_name("web").joinpath("palette.json").read_text())
    first = {theme: found[theme]["lines"][0] for theme in ("light", "dark")}
    colours = {
        theme: f"rgb({', '.join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))})"
        for theme, colour in first.items()
    }
    with page(chromium, shown_page, dark=True) as shown:
        assert (background(shown), line_colour(shown)) == ("rgb(20, 26, 34)", colours["dark"])
        assert faults(shown) == []
        shown.locator("#theme").click()
        assert background(shown) == "rgb(255, 255, 255)"
        assert line_colour(shown) == colours["light"]
    with page(chromium, shown_page) as shown:
        assert (background(shown), line_colour(shown)) == ("rgb(255, 255, 255)", colours["light"])


def test_narrow_windows_need_no_scrolling_sideways(chromium: object, shown_page: str) -> None:
    with page(chromium, shown_page, width=360, height=700) as shown:
        assert overflow(shown) == 0 and faults(shown) == []
        widths = shown.locator(".parley-canvas > svg").evaluate_all(
            "all => all.map(s => s.clientWidth)"
        )
        assert min(widths) > 200 and max(widths) <= 360


def test_on_paper_it_is_light_and_has_its_charts(chromium: object, shown_page: str) -> None:
    with page(chromium, shown_page, dark=True) as shown:
        paper_bytes = shown.pdf(format="A4")
        pages = len(re.findall(rb"/Type\s*/Page\b", paper_bytes))
        assert paper_bytes[:5] == b"%PDF-" and 3 <= pages <= 8
        assert background(shown) == "rgb(20, 26, 34)"  # dark again on the screen
        shown.emulate_media(media="print", color_scheme="dark")
        assert background(shown) == "rgb(255, 255, 255)"
        heights = shown.locator(".parley-canvas").evaluate_all(
            "all => all.map(c => c.clientHeight)"
        )
        assert min(heights) > 60 and not shown.locator("#theme").is_visible()


def test_a_report_shows_what_is_no_text_and_no_number_too(tmp_path: Path) -> None:
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "experiment.toml").write_text("data = 2020-01-01\nagents = 10:00:00\n")
        (folder / "summary.json").write_text(json.dumps({"label": "half \ud800"}))
    written = report_page(group_seeds(read_all([tmp_path])))
    assert "2020-01-01" in written and "half ?" in written
    assert written.encode()
