"""The live page in a real browser, with real runs in progress."""

import json
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import parley
from parley.dash.app import build
from parley.dash.runs import Runs
from parley.dash.serve import listen
from parley.files import parse_json
from parley.store.status import held
from tests.browser import browser, faults, overflow, page
from tests.processes import Command, until

DRAWN = """(selector) =>
  [...document.querySelectorAll(`${selector} path[stroke-width='2']`)]
    .filter((line) => getComputedStyle(line).display !== "none")
    .map((line) => line.getAttribute("d")).join()"""
"""The curves that are seen."""


@contextmanager
def served(root: Path) -> Iterator[str]:
    with listen("127.0.0.1", 0) as listening:
        app = build(Runs(root), closing=lambda: server.should_exit)
        config = uvicorn.Config(app, log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            assert until(lambda: server.started)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two algorithms, two seeds, and one run beside them."""
    root = tmp_path_factory.mktemp("finished") / "runs"
    small = {"agents": 5, "epochs": 4, "progress": False, "bias_norms": "run"}
    for algorithm in ("ngc", "dpsgd"):
        parley.train(algorithm=algorithm, out=root / f"both/{algorithm}/seed-0", **small)
    for algorithm in ("ngc", "dpsgd"):
        source, target = (root / f"both/{algorithm}/seed-{seed}" for seed in (0, 1))
        shutil.copytree(source, target)
        text = (target / "experiment.toml").read_text()
        (target / "experiment.toml").write_text(text.replace("seed = 0", "seed = 1"))
    parley.train(algorithm="cga", topology="torus:2x3", agents=6, epochs=3, out=root / "alone",
                 progress=False)  # fmt: skip
    return root


def about(shown: Any, title: str) -> str:
    """What is said of a chart."""
    figure = shown.locator(f'figure:has(figcaption:text-is("{title}")) .parley-canvas > svg')
    return str(figure.get_attribute("aria-label"))


def about_graph(shown: Any) -> str:
    return str(shown.locator(".graph .parley-canvas > svg").first.get_attribute("aria-label"))


def ready(shown: Any, section: str = "accuracy") -> None:
    shown.wait_for_selector(f"#{section} svg")


def test_curves_grow_during_a_run_and_its_death_is_seen(chromium: Any, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    with served(root) as url, page(chromium, url) as shown:
        shown.wait_for_selector("text=does not exist yet")
        long = ("train", "--agents=5", "--epochs=100000", "--evaluate-every=25", "--out")
        command = Command(tmp_path, *long, root / "live")
        try:
            ready(shown)
            shown.wait_for_selector("text=/about .* left/")
            first = about(shown, "Test accuracy")
            assert "averaged model" in first and "%" in first
            curves = shown.evaluate(DRAWN, "#accuracy")
            shown.wait_for_function(f"old => ({DRAWN})('#accuracy') !== old", arg=curves)
            epoch = shown.locator(".going").inner_text()
            shown.wait_for_function(
                "old => document.querySelector('.going').innerText !== old", arg=epoch
            )
            graph = about_graph(shown)
            assert graph.startswith("5 agents at epoch ") and "Farthest from the mean" in graph
            command.send(signal.SIGKILL)
            command.wait()
            shown.wait_for_selector("text=It died: its process ended without reporting why")
            assert shown.locator(".going .state").inner_text() == "died"
        finally:
            command.send(signal.SIGKILL)
            command.wait()
        # It resumes from its checkpoint and breaks off in the middle of a record.
        records = (root / "live/records.jsonl").read_bytes()
        last = parse_json(records.splitlines()[-1])
        news = json.dumps({**last, "epoch": last["epoch"] + 25, "accuracy_mean_model": 0.125})
        with (root / "live/records.jsonl").open("a") as file:
            file.write("nonsense\n" + news[:40])
        shown.wait_for_selector("text=1 damaged line of records.jsonl skipped")
        assert "12.5 %" not in about(shown, "Test accuracy")
        with (root / "live/records.jsonl").open("a") as file:
            file.write(news[40:] + "\n")
        shown.wait_for_function("() => document.querySelector('.tiles').innerText.includes('12.5')")
        shown.wait_for_function(
            "() => document.querySelector('#accuracy svg').ariaLabel.includes('to 12.5 %')"
        )


def test_messages_move_unless_less_motion_is_wished(
    chromium: Any, finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "runs/going"
    shutil.copytree(finished / "both/ngc/seed-0", run)
    (run / "summary.json").unlink()
    with held(run), served(tmp_path / "runs") as url, page(chromium, url) as shown:
        ready(shown)
        assert shown.locator(".going .state").inner_text() == "running"
        dots = ".graph .moving circle"
        assert shown.locator(dots).count() == 0
        shown.emulate_media(reduced_motion="no-preference")
        shown.wait_for_selector(dots, state="attached")
        assert shown.locator(dots).count() == 2 * 5  # models and cross-gradients on a ring of 5
        place = f"() => document.querySelector('{dots}').getBoundingClientRect().x"
        first = shown.evaluate(place)
        shown.wait_for_function(f"old => ({place})() !== old", arg=first)


def test_lines_go_on_where_some_records_lack_a_figure(
    chromium: Any, finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "alone"
    shutil.copytree(finished / "alone", run)
    records = [parse_json(line) for line in (run / "records.jsonl").read_text().splitlines()]
    for field in [name for name in records[1] if "_own" in name or "_gossip" in name]:
        records[1][field] = None
    (run / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with served(run.parent) as url, page(chromium, url) as shown:
        ready(shown)
        own = '#accuracy path[data-of="own models"][stroke-width="2"]'
        drawn = str(shown.locator(own).get_attribute("d"))
        assert drawn.count("M") == 1 and drawn.count(" ") == len(records) - 2  # one line, no gap


def test_series_are_switched_off_by_buttons(chromium: Any, finished: Path) -> None:
    with served(finished) as url, page(chromium, f"{url}#run=both/ngc/seed-0") as shown:
        ready(shown)
        assert shown.locator("main > h2").inner_text() == "NGC on digits"
        assert shown.locator("main section:visible > h2").all_inner_texts() == [
            "Accuracy", "Loss", "Distance between agents", "Bias terms ε and ω",
            "Accuracy by MB sent", "Each agent", "Confusion matrices",
        ]  # fmt: skip
        before = shown.evaluate(DRAWN, "#accuracy")
        button = shown.locator("#accuracy .parley-legend button").last
        assert button.get_attribute("aria-pressed") == "true"
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert shown.evaluate(DRAWN, "#accuracy") != before
        button.press("Enter")
        assert button.get_attribute("aria-pressed") == "true"
        assert shown.evaluate(DRAWN, "#accuracy") == before
        shown.select_option("#axis", "megabytes")
        shown.wait_for_function(
            "() => document.querySelector('#loss svg').ariaLabel.includes('over MB sent')"
        )
        # Back to the first record.
        shown.locator(".replay input").fill("0")
        assert about_graph(shown).startswith("5 agents at epoch 1.")
        shown.get_by_role("button", name="Play").click()
        shown.wait_for_selector("text=epoch 4 >> nth=0")
        told = "document.querySelector('.graph .parley-canvas svg').ariaLabel"
        shown.wait_for_function(f"() => {told}.includes('epoch 4.')")


def test_runs_side_by_side(chromium: Any, finished: Path) -> None:
    with served(finished) as url, page(chromium, url) as shown:
        ready(shown)
        shown.get_by_role("button", name="Compare the runs of both").click()
        shown.wait_for_selector("h2:text-is('2 runs side by side')")
        ready(shown)
        names = shown.locator("main tbody th").all_inner_texts()
        assert sorted(names) == ["D-PSGD", "NGC"]
        last = parse_json((finished / "both/ngc/seed-0/records.jsonl").read_text().splitlines()[-1])
        row = shown.locator("main tbody tr", has=shown.locator("th:text-is('NGC')")).inner_text()
        assert f"{100 * last['accuracy_mean_model']:.1f} %" in row
        # A third one; a line that is switched off is so in all charts.
        shown.get_by_label("alone beside the others").check()
        shown.wait_for_selector("h2:text-is('3 runs side by side')")
        ready(shown, "distance")
        shown.locator("#loss .parley-legend button", has_text="NGC").first.click()
        for section in ("accuracy", "distance"):
            off = shown.locator(f"#{section} .parley-legend button", has_text="NGC").first
            assert off.get_attribute("aria-pressed") == "false"
        assert shown.locator(".graph:visible").count() == 3
        # The address says what is shown.
        shown.reload()
        shown.wait_for_selector("h2:text-is('3 runs side by side')")
        assert faults(shown) == []


def test_search_and_keyboard(chromium: Any, finished: Path) -> None:
    with served(finished) as url, page(chromium, url) as shown:
        ready(shown)
        shown.wait_for_selector("text='5 runs'")
        shown.keyboard.press("/")
        shown.keyboard.type("ngc seed:1")
        assert shown.locator("#count").inner_text() == "1 of 5 runs"
        assert shown.locator(".run .name").all_inner_texts() == ["ngc/seed-1"]
        shown.keyboard.press("ArrowDown")
        shown.keyboard.press("Enter")
        shown.wait_for_selector("text=both/ngc/seed-1 · digits")
        shown.fill("#search", "nothing like this")
        shown.wait_for_selector("text=No run matches.")
        shown.fill("#search", "")
        shown.get_by_role("button", name="finished 5").click()
        assert shown.locator(".run").count() == 5
        shown.locator(".run button").first.focus()
        shown.keyboard.press("ArrowDown")
        at = "() => [...document.querySelectorAll('.run button')].indexOf(document.activeElement)"
        assert shown.evaluate(at) == 1
        shown.locator(".skip").focus()
        shown.keyboard.press("Enter")
        assert shown.evaluate("() => document.activeElement.id") == "shown"


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("dark", [False, True])
def test_light_dark_wide_and_narrow(chromium: Any, finished: Path, dark: bool, width: int) -> None:
    with served(finished) as url, page(chromium, url, dark=dark, width=width) as shown:
        ready(shown)
        paper = "() => getComputedStyle(document.body).backgroundColor"
        assert shown.evaluate(paper) == ("rgb(20, 26, 34)" if dark else "rgb(255, 255, 255)")
        assert overflow(shown) <= 0
        assert faults(shown) == []
        assert shown.locator("#list").is_visible() == (width > 1000)
        shown.click("#theme")
        assert shown.evaluate(paper) == ("rgb(255, 255, 255)" if dark else "rgb(20, 26, 34)")
        shown.reload()
        ready(shown)
        assert shown.evaluate(paper) == ("rgb(255, 255, 255)" if dark else "rgb(20, 26, 34)")


def test_names_of_others_are_text_not_html(chromium: Any, tmp_path: Path) -> None:
    """A run may come from elsewhere."""
    nasty = "<img src=x onerror=alert(1)>"
    root = tmp_path / "runs"
    parley.train(agents=3, epochs=2, out=root / nasty, progress=False)
    agents = parse_json((root / nasty / "agents.json").read_text())
    agents["classes"] = [nasty] * 10
    (root / nasty / "agents.json").write_text(json.dumps(agents))
    with served(root) as url, page(chromium, url) as shown:
        ready(shown)
        shown.wait_for_selector(f"text={nasty}")
        told = shown.locator('.graph circle[data-of="agent 0"] title').text_content()
        assert "samples" in told and nasty in told and "distance" in told
        assert shown.locator("img").count() == 0


def test_a_token_in_the_address(chromium: Any, finished: Path) -> None:
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        app = build(Runs(finished), None, "abc", lambda: server.should_exit)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            with page(chromium, f"http://127.0.0.1:{port}/?token=abc") as shown:
                ready(shown)
                assert "abc" not in shown.url
                assert shown.evaluate("() => document.cookie") == ""
        finally:
            server.should_exit = True
            thread.join()
