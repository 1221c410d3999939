"""Pictures: files of the right kind, the same every time, that show what they were given."""

import itertools
import math
from pathlib import Path as FilePath

import networkx as nx
import numpy as np
import pytest
from PIL import Image

from parley.charts.shapes import Circle, Path, Sheet, Words
from parley.errors import BadValue
from parley.graphs import Topology, from_graph, parse, ring
from parley.results import graphs, holdings
from parley.results.graphs import PANELS, topology_picture
from parley.results.holdings import partition_picture
from parley.results.layout import layout, nearest

HOLDINGS = np.array([[5, 0, 1], [0, 3, 3], [2, 2, 2], [0, 0, 9]])


@pytest.fixture
def sheets(monkeypatch: pytest.MonkeyPatch) -> list[Sheet]:
    """The drawings, instead of files."""
    seen: list[Sheet] = []
    for module in (graphs, holdings):
        monkeypatch.setattr(module, "save", lambda sheet, out: seen.append(sheet) or out)
    return seen


def texts(sheet: Sheet) -> list[str]:
    return [shape.text for shape in sheet.shapes if isinstance(shape, Words)]


def paths(sheet: Sheet, of: str) -> list[Path]:
    return [shape for shape in sheet.shapes if isinstance(shape, Path) and shape.of == of]


def edges(sheet: Sheet) -> list[Path]:
    return [s for s in sheet.shapes if isinstance(s, Path) and s.stroke == "edge"]


def test_endings_choose_the_format(tmp_path: FilePath) -> None:
    for ending, start in {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}.items():
        out = topology_picture(ring(4), tmp_path / "new" / f"ring.{ending}", HOLDINGS)
        assert out.read_bytes().startswith(start)
    with Image.open(tmp_path / "new" / "ring.png") as image:
        assert min(image.size) > 400
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 10


def test_the_same_input_gives_the_same_file(tmp_path: FilePath) -> None:
    for ending in ("svg", "pdf"):
        one, two = (
            partition_picture(HOLDINGS, tmp_path / f"{k}.{ending}").read_bytes() for k in "ab"
        )
        assert one == two


@pytest.mark.parametrize("name", ["ring.gif", "ring", "ring.png.txt"])
def test_an_unknown_ending(name: str) -> None:
    for picture in (
        lambda: topology_picture(ring(3), name),
        lambda: partition_picture(HOLDINGS, name),
    ):
        with pytest.raises(BadValue, match=r"valid: a file that ends in \.png, \.svg, \.pdf") as e:
            picture()
        assert e.value.field == "out"


def test_wrong_holdings_are_refused(tmp_path: FilePath) -> None:
    out = tmp_path / "a.png"
    with pytest.raises(BadValue, match=r"holdings: \(4, 3\) is not valid; valid: shape \(5, cl"):
        topology_picture(ring(5), out, HOLDINGS)
    with pytest.raises(BadValue, match=r"shape \(agents, classes\)"):
        partition_picture([1, 2, 3], out)
    with pytest.raises(BadValue, match=r"-1\.0 is not valid; valid: counts of 0 or more"):
        partition_picture([[1, -1]], out)
    with pytest.raises(BadValue, match="class_names: 2 is not valid; valid: 3 names"):
        partition_picture(HOLDINGS, out, ["a", "b"])


@pytest.mark.parametrize(
    ("spec", "agents"),
    [
        ("ring", 1), ("ring", 2), ("directed-ring", 6), ("chain", 30), ("torus", 20),
        ("torus:2x5", 10), ("star", 8), ("star", 1), ("full", 12), ("hypercube", 64),
        ("erdos-renyi:0.3", 30), ("random-regular:3", 20), ("exponential", 100),
        ("petersen", 10), ("dyck", 32),
    ],
)  # fmt: skip
def test_agents_have_a_place_and_a_number(
    spec: str, agents: int, sheets: list[Sheet], tmp_path: FilePath
) -> None:
    t = parse(spec, agents)
    places = layout(t)
    assert places.shape == (agents, 2)
    np.testing.assert_array_equal(places, layout(t))
    if agents > 1:
        apart = np.linalg.norm(places[:, None] - places[None], axis=-1) + 9 * np.eye(agents)
        assert apart.min() > 0.4
    topology_picture(t, tmp_path / "a.png")
    heading, about, *numbers = texts(sheets[0])
    assert numbers == [str(i) for i in range(agents)]
    assert heading.startswith(f"{spec}, {agents} agent")
    assert about == f"spectral gap {t.spectral_gap:.3g}"


def test_arrows_only_where_edges_are_one_way(sheets: list[Sheet], tmp_path: FilePath) -> None:
    both: Topology = from_graph(nx.DiGraph([(0, 1), (1, 0), (1, 2), (2, 0)]))
    for t, expected in [(parse("directed-ring", 6), 6), (ring(6), 0), (both, 4)]:
        topology_picture(t, tmp_path / "a.png")
        assert len(paths(sheets[-1], "arrow")) == expected


def test_edges_are_as_wide_as_their_weights(sheets: list[Sheet], tmp_path: FilePath) -> None:
    path = nx.Graph()
    path.add_weighted_edges_from([(0, 1, 0.4), (1, 2, 0.2)])
    topology_picture(from_graph(path), tmp_path / "a.png")
    wide, narrow = (edge.width for edge in edges(sheets[0]))
    assert wide == pytest.approx(2 * narrow)


def test_pies_show_the_shares(sheets: list[Sheet], tmp_path: FilePath) -> None:
    topology_picture(ring(4), tmp_path / "a.png", HOLDINGS, ["cat", "$dog", "emu"])
    sectors = paths(sheets[0], "share")
    assert len(sectors) == np.count_nonzero(HOLDINGS)

    def share(path: Path) -> float:  # of the area of the circle
        [corners] = path.lines
        doubled = sum(a * d - b * c for (a, b), (c, d) in itertools.pairwise(corners))
        circle = next(s for s in sheets[0].shapes if isinstance(s, Circle))
        return abs(doubled) / 2 / (math.pi * circle.radius**2)

    first, second = sectors[:2]  # agent 0 holds 5 cats and 1 emu
    assert (first.fill, second.fill) == ("class0", "class2")
    assert share(first) == pytest.approx(5 / 6, rel=0.02)
    assert share(second) == pytest.approx(1 / 6, rel=0.02)
    assert texts(sheets[0])[-4:] == ["class", "cat", "$dog", "emu"]


def test_many_classes_get_a_scale_instead_of_a_list(
    sheets: list[Sheet], tmp_path: FilePath
) -> None:
    topology_picture(ring(4), tmp_path / "a.png", np.ones((4, 100)))
    key = texts(sheets[0])
    key = key[key.index("class") + 1 :]
    assert len(key) <= 10 and key[0] == "0"
    assert len({p.fill for p in paths(sheets[0], "") if p.fill}) == 100


def test_an_agent_without_examples_is_drawn(sheets: list[Sheet], tmp_path: FilePath) -> None:
    topology_picture(ring(2), tmp_path / "a.png", [[0, 0], [1, 1]])
    partition_picture([[0, 0], [0, 0]], tmp_path / "a.png")
    assert len(sheets) == 2


def test_bubbles_have_the_areas_of_the_counts(sheets: list[Sheet], tmp_path: FilePath) -> None:
    partition_picture(HOLDINGS, tmp_path / "a.png", ["a", "b", "c"])
    bubbles = [shape for shape in sheets[0].shapes if isinstance(shape, Circle)]
    agent, label = np.nonzero(HOLDINGS)
    counts = HOLDINGS[agent, label]
    areas = np.array([bubble.radius**2 for bubble in bubbles])
    np.testing.assert_allclose(areas / areas.max(), counts / 9)
    assert len({b.x for b in bubbles}) == 3 and len({b.y for b in bubbles}) == 4
    bars = [p for p in paths(sheets[0], "") if p.fill == 0]
    wide = [max(x for x, _ in p.lines[0]) - min(x for x, _ in p.lines[0]) for p in bars]
    np.testing.assert_allclose(np.array(wide) / max(wide), np.array([6, 6, 6, 9]) / 9)


@pytest.mark.parametrize("shape", [(2, 2), (2, 100), (100, 2), (100, 100)])
def test_a_partition_of_any_size_fits_a_page(
    shape: tuple[int, int], sheets: list[Sheet], tmp_path: FilePath
) -> None:
    partition_picture(np.ones(shape), tmp_path / "a.png")
    assert 140 < sheets[0].height < 1400
    assert 400 < sheets[0].width < 2400


def test_a_sequence_is_drawn_round_by_round(sheets: list[Sheet], tmp_path: FilePath) -> None:
    topology = parse("base:1", 5)
    topology_picture(topology, tmp_path / "rounds.png")
    [sheet] = sheets
    assert [t for t in texts(sheet) if "round " in t] == [f"round {k}" for k in range(5)]
    assert len(edges(sheet)) == sum(len(phase.edges) // 2 for phase in topology.phases)
    assert "exact mean after 5 rounds" in texts(sheet)[1]


def test_long_sequences_are_drawn_in_part(sheets: list[Sheet], tmp_path: FilePath) -> None:
    topology_picture(parse("matchings:20", 6), tmp_path / "rounds.png")
    assert sum(t.startswith("round ") for t in texts(sheets[0])) == PANELS
    assert f"{20 - PANELS} more rounds not drawn" in texts(sheets[0])[1]


def test_trees_grow_downwards_without_overlap() -> None:
    places = layout(parse("tree:3", 14))
    assert places[0, 1] == places[:, 1].max()
    assert len({tuple(place) for place in places}) == 14
    assert nearest(places) >= 0.9


def test_graphs_of_many_agents_need_no_whole_matrix(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are read edge by edge; `weights` would be made on first use."""
    monkeypatch.setattr("parley.graphs.topology.DENSE", 100)
    topology = parse("circulant:1,5", 600)
    topology_picture(topology, tmp_path / "many.png")
    assert "weights" not in vars(topology)
