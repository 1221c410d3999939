"""Pictures: files of the right kind, the same every time, that show what they were given."""

from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from parley.errors import BadValue
from parley.graphs import Topology, from_graph, parse, ring
from parley.results import graphs, holdings
from parley.results.graphs import PANELS, topology_picture
from parley.results.holdings import partition_picture
from parley.results.layout import layout, nearest

HOLDINGS = np.array([[5, 0, 1], [0, 3, 3], [2, 2, 2], [0, 0, 9]])


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn, instead of files."""
    seen: list[Figure] = []
    for module in (graphs, holdings):
        monkeypatch.setattr(module, "save", lambda figure, out: seen.append(figure) or out)
    return seen


def texts(figure: Figure) -> list[str]:
    return [t.get_text() for axes in figure.axes for t in axes.texts]


def test_endings_choose_the_format(tmp_path: Path) -> None:
    for ending, start in {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}.items():
        out = topology_picture(ring(4), tmp_path / "new" / f"ring.{ending}", HOLDINGS)
        assert out.read_bytes().startswith(start)
    with Image.open(tmp_path / "new" / "ring.png") as image:
        assert min(image.size) > 400
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 10


def test_the_same_input_gives_the_same_file(tmp_path: Path) -> None:
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


def test_wrong_holdings_are_refused(tmp_path: Path) -> None:
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
    spec: str, agents: int, figures: list[Figure], tmp_path: Path
) -> None:
    t = parse(spec, agents)
    places = layout(t)
    assert places.shape == (agents, 2)
    np.testing.assert_array_equal(places, layout(t))
    if agents > 1:
        apart = np.linalg.norm(places[:, None] - places[None], axis=-1) + 9 * np.eye(agents)
        assert apart.min() > 0.4
    topology_picture(t, tmp_path / "a.png")
    assert texts(figures[0]) == [str(i) for i in range(agents)]
    assert figures[0].texts[0].get_text().startswith(f"{spec}, {agents} agent")
    assert f"spectral gap {t.spectral_gap:.3g}" in figures[0].texts[0].get_text()


def arrows(figure: Figure) -> int:
    return sum(type(p).__name__ == "FancyArrowPatch" for p in figure.axes[0].patches)


def test_arrows_only_where_edges_are_one_way(figures: list[Figure], tmp_path: Path) -> None:
    both: Topology = from_graph(nx.DiGraph([(0, 1), (1, 0), (1, 2), (2, 0)]))
    for t, expected in [(parse("directed-ring", 6), 6), (ring(6), 0), (both, 4)]:
        topology_picture(t, tmp_path / "a.png")
        assert arrows(figures[-1]) == expected


def test_edges_are_as_wide_as_their_weights(figures: list[Figure], tmp_path: Path) -> None:
    path = nx.Graph()
    path.add_weighted_edges_from([(0, 1, 0.4), (1, 2, 0.2)])
    topology_picture(from_graph(path), tmp_path / "a.png")
    wide, narrow = figures[0].axes[0].collections[0].get_linewidths()
    assert wide == pytest.approx(2 * narrow)


def test_pies_show_the_shares(figures: list[Figure], tmp_path: Path) -> None:
    topology_picture(ring(4), tmp_path / "a.png", HOLDINGS, ["cat", "$dog", "emu"])
    wedges = [p for p in figures[0].axes[0].patches if type(p).__name__ == "Wedge"]
    assert len(wedges) == np.count_nonzero(HOLDINGS)
    first, second = wedges[:2]  # agent 0 holds 5 cats and 1 emu
    assert first.theta2 - first.theta1 == pytest.approx(300)
    assert second.theta2 - second.theta1 == pytest.approx(60)
    legend = figures[0].legends[0]
    assert [t.get_text() for t in legend.get_texts()] == ["cat", "$dog", "emu"]


def test_many_classes_get_a_scale_instead_of_a_list(figures: list[Figure], tmp_path: Path) -> None:
    topology_picture(ring(4), tmp_path / "a.png", np.ones((4, 100)))
    assert not figures[0].legends
    assert len(figures[0].axes) == 2


def test_an_agent_without_examples_is_drawn(figures: list[Figure], tmp_path: Path) -> None:
    topology_picture(ring(2), tmp_path / "a.png", [[0, 0], [1, 1]])
    partition_picture([[0, 0], [0, 0]], tmp_path / "a.png")
    assert len(figures) == 2


def test_bubbles_have_the_areas_of_the_counts(figures: list[Figure], tmp_path: Path) -> None:
    partition_picture(HOLDINGS, tmp_path / "a.png", ["a", "b", "c"])
    grid, totals = figures[0].axes
    bubbles = grid.collections[0]
    agent, label = np.nonzero(HOLDINGS)
    np.testing.assert_array_equal(bubbles.get_offsets(), np.stack([label, agent], axis=1))
    sizes = bubbles.get_sizes()
    np.testing.assert_allclose(sizes / sizes.max(), HOLDINGS[agent, label] / 9)
    assert [bar.get_width() for bar in totals.patches] == [6, 6, 6, 9]


@pytest.mark.parametrize("shape", [(2, 2), (2, 100), (100, 2), (100, 100)])
def test_a_partition_of_any_size_fits_a_page(
    shape: tuple[int, int], figures: list[Figure], tmp_path: Path
) -> None:
    partition_picture(np.ones(shape), tmp_path / "a.png")
    width, height = figures[0].get_size_inches()
    assert 1.5 < height < 15
    assert 4 < width < 15


def test_a_sequence_is_drawn_round_by_round(figures: list[Figure], tmp_path: Path) -> None:
    topology = parse("base:1", 5)
    topology_picture(topology, tmp_path / "rounds.png")
    [figure] = figures
    assert [axes.get_title() for axes in figure.axes] == [f"round {k}" for k in range(5)]
    drawn = [len(axes.collections[0].get_segments()) for axes in figure.axes]  # type: ignore[attr-defined]
    assert drawn == [len(phase.edges) // 2 for phase in topology.phases]
    assert "exact mean after 5 rounds" in figure.texts[0].get_text()


def test_long_sequences_are_drawn_in_part(figures: list[Figure], tmp_path: Path) -> None:
    topology_picture(parse("matchings:20", 6), tmp_path / "rounds.png")
    assert len(figures[0].axes) == PANELS
    assert f"{20 - PANELS} more rounds not drawn" in figures[0].texts[0].get_text()


def test_trees_grow_downwards_without_overlap() -> None:
    places = layout(parse("tree:3", 14))
    assert places[0, 1] == places[:, 1].max()
    assert len({tuple(place) for place in places}) == 14
    assert nearest(places) >= 0.9


def test_graphs_of_many_agents_need_no_whole_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are read edge by edge; `weights` would be made on first use."""
    monkeypatch.setattr("parley.graphs.topology.DENSE", 100)
    topology = parse("circulant:1,5", 600)
    topology_picture(topology, tmp_path / "many.png")
    assert "weights" not in vars(topology)
