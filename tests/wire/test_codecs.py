"""Sparse and quantised messages: lengths by formula, what they guarantee, and error feedback."""

import math
import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from parley import graphs
from parley.errors import BadValue, ParleyError
from parley.wire.codec import Codec, Dense, RandomK, build
from parley.wire.codec.bits import hashed, pack_numbers, packed_bytes, random_bits, unpack_numbers
from tests import small

DTYPES = [torch.float32, torch.float64]
SPECS = [
    "dense", "fp16", "sign", "topk:0.01", "topk:0.3", "topk:1", "randomk:0.01", "randomk:0.3",
    "randomk:0.3,unbiased", "qsgd:8", "qsgd:4", "qsgd:2", "qsgd:4,5",
]  # fmt: skip
CONTRACTIONS = ["dense", "sign", "topk:0.01", "topk:0.3", "topk:1"]
"""Those with ‖m - C(m)‖² ≤ (1 - δ) ‖m‖² for every single message."""


def keys(rows: int, first: int = 0) -> Tensor:
    return hashed(11, torch.arange(first, first + rows))


@st.composite
def messages(draw: st.DrawFn) -> tuple[Tensor, tuple[int, ...]]:
    """Some messages of 1 to 60 entries over many magnitudes, some of them zero, in segments."""
    sizes = draw(st.lists(st.integers(1, 15), min_size=1, max_size=4))
    rows, seed = draw(st.integers(1, 3)), draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, sum(sizes))
    magnitude = 10.0 ** torch.randint(-3, 4, shape, generator=generator)
    m_ED = magnitude * torch.randn(shape, generator=generator, dtype=torch.float64)
    m_ED[torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.2, 1.0]))] = 0.0
    return m_ED.to(draw(st.sampled_from(DTYPES))), tuple(sizes)


def expected_bytes(spec: str, size: int, sizes: tuple[int, ...], item: int) -> int:
    """Written out once more, from the documented formats."""
    name, _, text = spec.partition(":")
    share = float(text.split(",")[0]) if text else 0.0
    match name:
        case "dense":
            return item * size
        case "fp16":
            return 2 * size
        case "sign":
            return item * len(sizes) + math.ceil(size / 8)
        case "topk":
            k = sum(max(1, math.ceil(share * s - 1e-9)) for s in sizes)
            width = max(1, math.ceil(math.log2(size)))
            return item * k + min(math.ceil(k * width / 8), math.ceil(size / 8))
        case "randomk":
            return 8 + item * max(1, math.ceil(share * size - 1e-9))
        case _:
            bucket = min(size, int(text.split(",")[1]) if "," in text else 512)
            return item * math.ceil(size / bucket) + math.ceil(size * share / 8)


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=20)
@given(messages())
def test_lengths_shapes_and_independence(spec: str, case: tuple[Tensor, tuple[int, ...]]) -> None:
    """As announced, by the formula; and a message does not depend on those encoded beside it."""
    m_ED, sizes = case
    codec = build(spec, sizes).keyed(keys(len(m_ED)))
    wire_EB = codec.encode(m_ED)
    length = codec.message_bytes(m_ED.dtype)
    assert length == expected_bytes(spec, m_ED.shape[1], sizes, m_ED.element_size())
    assert (wire_EB.dtype, wire_EB.shape) == (torch.uint8, (len(m_ED), length))
    got_ED = codec.decode(wire_EB, m_ED.dtype)
    assert (got_ED.dtype, got_ED.shape) == (m_ED.dtype, m_ED.shape)
    for row, message_B in enumerate(wire_EB):
        alone = build(spec, sizes).keyed(keys(1, first=row)).encode(m_ED[row : row + 1])
        assert torch.equal(alone[0], message_B)
    # A receiver has no keys, and its bytes stand behind a header.
    behind = torch.cat([torch.zeros(len(m_ED), 5, dtype=torch.uint8), wire_EB], 1)[:, 5:]
    if spec != "dense":
        assert torch.equal(build(spec, sizes).decode(behind, m_ED.dtype), got_ED)


@pytest.mark.parametrize("spec", CONTRACTIONS)
@settings(max_examples=30)
@given(messages())
def test_contraction(spec: str, case: tuple[Tensor, tuple[int, ...]]) -> None:
    """‖m - C(m)‖² ≤ (1 - δ) ‖m‖²; for top-k δ = K/D of the segment with the smallest share."""
    m_ED, sizes = case
    m_ED = m_ED.double()
    error_E = (m_ED - build(spec, sizes).round_trip(m_ED)).square().sum(1)
    name, _, share = spec.partition(":")
    delta = {"dense": 1.0, "sign": 1 / max(sizes)}.get(name)
    if delta is None:
        delta = min(max(1, math.ceil(float(share) * s - 1e-9)) / s for s in sizes)
    assert (error_E <= (1 - delta) * m_ED.square().sum(1) * (1 + 1e-12) + 1e-300).all()


@given(messages(), st.sampled_from(["topk:0.3", "randomk:0.3"]))
def test_sparse_messages_have_the_entries_themselves(
    case: tuple[Tensor, tuple[int, ...]], spec: str
) -> None:
    m_ED, sizes = case
    codec = build(spec, [sum(sizes)]).keyed(keys(len(m_ED)))
    got_ED = codec.round_trip(m_ED)
    k = max(1, math.ceil(0.3 * m_ED.shape[1] - 1e-9))
    assert ((got_ED == m_ED) | (got_ED == 0)).all()
    assert (got_ED.count_nonzero(1) <= k).all()
    if spec.startswith("topk"):
        left_E = torch.where(got_ED == 0, m_ED, 0).abs().amax(1)
        sent_E = torch.where(got_ED == 0, torch.inf, got_ED.abs()).amin(1)
        assert (left_E <= sent_E).all()
    elif len(m_ED):
        assert codec.round_trip(torch.ones_like(m_ED)).count_nonzero(1).tolist() == [k] * len(m_ED)


def mean_and_error(spec: str, m_D: Tensor, draws: int) -> tuple[Tensor, Tensor, float]:
    """Of many independent messages: their mean, its standard error, and the mean squared error."""
    m_ED = m_D.expand(draws, -1).contiguous()
    got_ED = build(spec, [len(m_D)]).keyed(keys(draws)).round_trip(m_ED)
    squares = float((got_ED - m_ED).square().sum(1).mean())
    return got_ED.mean(0), got_ED.std(0) / math.sqrt(draws), squares


@pytest.mark.parametrize("spec", ["randomk:0.2,unbiased", "qsgd:8", "qsgd:4", "qsgd:2", "qsgd:4,7"])
def test_unbiased(spec: str) -> None:
    """The mean of 20,000 messages is the value, within five standard errors for each entry."""
    m_D = torch.randn(37, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    mean_D, deviation_D, squares = mean_and_error(spec, m_D, 20_000)
    assert squares > 1e-6  # there is noise to average out
    assert ((mean_D - m_D).abs() <= 5 * deviation_D + 1e-12).all()


def test_random_k_is_biased_towards_zero_and_contracts_in_expectation() -> None:
    m_D = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    mean_D, deviation_D, squares = mean_and_error("randomk:0.2", m_D, 20_000)
    assert ((mean_D - 0.2 * m_D).abs() <= 5 * deviation_D).all()
    assert squares == pytest.approx(0.8 * float(m_D.square().sum()), rel=0.01)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_qsgd_is_within_one_level(bits: int) -> None:
    """Neighbouring multiples of the bucket's largest entry, which itself is exact."""
    m_ED = torch.randn(6, 1100, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    got_ED = build(f"qsgd:{bits}", [1100]).keyed(keys(6)).round_trip(m_ED)
    levels = 2 ** (bits - 1) - 1
    for got, original in zip(got_ED.split(512, 1), m_ED.split(512, 1), strict=True):
        scale = original.abs().amax(1, keepdim=True)
        steps = got * levels / scale
        assert (steps - steps.round()).abs().max() < 1e-9
        assert ((got - original).abs() <= scale / levels * (1 + 1e-12)).all()
        assert (steps.abs().amax(1) - levels).abs().max() < 1e-9
        assert steps.unique().numel() > 1


@pytest.mark.parametrize("spec", SPECS)
def test_no_messages(spec: str) -> None:
    """A worker may have nobody to talk with in a round."""
    codec = build(spec, [20]).keyed(keys(0))
    assert codec.encode(torch.zeros(0, 20)).shape == (0, codec.message_bytes(torch.float32))
    assert codec.round_trip(torch.zeros(0, 20)).shape == (0, 20)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_arrive_as_zeros(spec: str, dtype: torch.dtype) -> None:
    for size in (1, 2, 9, 600):
        m_ED = torch.zeros(2, size, dtype=dtype)
        assert build(spec, [size]).keyed(keys(2)).round_trip(m_ED).abs().max() == 0


@pytest.mark.parametrize("spec", [s for s in SPECS if "randomk" not in s])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_does_not_arrive_as_one(spec: str, bad: float) -> None:
    """A run must notice that it has diverged, whatever its messages look like."""
    m_ED = torch.ones(1, 20)
    m_ED[0, 7] = bad
    assert not build(spec, [20]).keyed(keys(1)).round_trip(m_ED).isfinite().all()


def test_random_k_sends_what_is_no_number_when_its_turn_comes() -> None:
    m_ED = torch.full((3, 20), math.nan)
    assert build("randomk:0.1", [20]).keyed(keys(3)).round_trip(m_ED).isnan().sum() == 6


def test_halves() -> None:
    m_ED = torch.tensor([[1.0, -1e6, 65504.0, 1e-9, 1 / 3, math.inf, -math.inf]])
    got = build("fp16", [7]).round_trip(m_ED)
    assert got[0, :4].tolist() == [1.0, -65504.0, 65504.0, 0.0]
    assert abs(got[0, 4] * 3 - 1) <= 2**-11
    assert got[0, 5:].tolist() == [math.inf, -math.inf]


def compensated(codec: Codec, m_ED: Tensor, e_ED: Tensor) -> tuple[Tensor, Tensor]:
    """The message for `m_ED` after the error `e_ED`, and the new error."""
    p_ED = m_ED + e_ED
    return codec.take(p_ED), p_ED


class TestErrorFeedback:
    @pytest.mark.parametrize("spec", SPECS)
    @settings(max_examples=20)
    @given(messages())
    def test_the_error_is_what_the_message_leaves_out(
        self, spec: str, case: tuple[Tensor, tuple[int, ...]]
    ) -> None:
        m_ED, sizes = case
        e_ED = 0.1 * m_ED.flip(0)
        before = m_ED.clone(), e_ED.clone()
        codec = build(spec, sizes).keyed(keys(len(m_ED)))
        wire_EB, new_ED = compensated(codec, m_ED, e_ED)
        # The message is that of m + e, not of m alone; what it leaves out is the new error.
        assert torch.equal(wire_EB, codec.encode(m_ED + e_ED))
        sent_ED = codec.decode(wire_EB, m_ED.dtype)
        assert torch.equal(new_ED, m_ED + e_ED - sent_ED)
        assert torch.equal(m_ED, before[0]) and torch.equal(e_ED, before[1])

    @pytest.mark.parametrize("spec", ["sign", "topk:0.05", "randomk:0.05", "qsgd:8", "qsgd:4"])
    def test_the_mean_of_what_is_sent_becomes_right(self, spec: str) -> None:
        """Of a constant message, all but a bounded error has been sent after many steps."""
        m_ED = torch.randn(2, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        codec, e_ED, sent_ED = build(spec, [60]), torch.zeros_like(m_ED), torch.zeros_like(m_ED)
        for step in range(400):
            keyed = codec.keyed(hashed(step, torch.arange(2)))
            wire_EB, e_ED = compensated(keyed, m_ED, e_ED)
            sent_ED += keyed.decode(wire_EB, m_ED.dtype)
        torch.testing.assert_close(sent_ED + e_ED, 400 * m_ED)
        assert (sent_ED / 400 - m_ED).norm() < 0.15 * m_ED.norm()


class TestBits:
    @given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
    def test_packed_numbers_come_back(self, width: int, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        values = torch.randint(0, 2**width, (2, count), generator=generator)
        packed = pack_numbers(values, width)
        assert packed.shape == (2, packed_bytes(count, width))
        assert torch.equal(unpack_numbers(packed, count, width), values)

    def test_random_bits_are_splitmix64(self) -> None:
        """Written once more with whole numbers of any size."""
        mask = 2**64 - 1

        def reference(state: int) -> int:
            z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
            return z ^ (z >> 31)

        for key in (0, 1, -5, 2**63 - 1):
            got = [v & mask for v in random_bits(torch.tensor([key]), 50)[0].tolist()]
            states = [(key + (d + 1) * 0x9E3779B97F4A7C15) & mask for d in range(50)]
            assert got == [reference(state) for state in states]

    def test_every_entry_is_drawn_equally_often(self) -> None:
        drawn = RandomK(40, 0.25).keyed(keys(8000)).round_trip(torch.ones(8000, 40))
        counts = drawn.sum(0)  # 2000 each, with a standard deviation of 39
        assert counts.sum() == 80_000
        assert (counts - 2000).abs().max() < 5 * 39

    def test_keys_differ_in_every_part(self) -> None:
        several = [hashed(*parts) for parts in [(0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0)]]
        assert len({int(key) for key in several}) == 5


class TestSpecs:
    @pytest.mark.parametrize("spec", SPECS)
    def test_codecs_have_different_numbers(self, spec: str) -> None:
        numbers = {name: build(name, [50]).number for name in SPECS}
        same = [name for name in SPECS if numbers[name] == numbers[spec]]
        families = {(name.partition(":")[0], name[:6] if "qsgd" in name else "") for name in same}
        assert len(families) == 1

    @pytest.mark.parametrize(
        "spec, words",
        [
            ("topk", "valid: topk:0.01"),
            ("topk:0", "valid: topk:0.01 .0 < fraction <= 1"),
            ("topk:1.5", "valid: topk:0.01"),
            ("topk:nan", "valid: topk:0.01"),
            ("randomk:half", "valid: randomk:0.01 or randomk:0.01,unbiased"),
            ("randomk:0.1,biased", "valid: randomk:0.01 or"),
            ("qsgd:3", "valid: qsgd:8, qsgd:4, qsgd:2"),
            ("qsgd:4,0", "valid: qsgd:8"),
            ("sign:1", "valid: sign"),
            ("fp16:2", "valid: fp16"),
            ("tokp:0.1", r"did you mean 'topk'\?\); valid: dense, fp16, qsgd, randomk, sign, topk"),
        ],
    )
    def test_mistakes(self, spec: str, words: str) -> None:
        with pytest.raises(BadValue, match=words):
            build(spec, [50])
        with pytest.raises(BadValue, match=r"^second: "):
            build(spec, [50], field="second")

    def test_random_codecs_ask_for_keys(self) -> None:
        for spec in ("randomk:0.1", "qsgd:8"):
            with pytest.raises(ParleyError, match="needs a key for each of 2 messages, but none"):
                build(spec, [30]).encode(torch.ones(2, 30))
            with pytest.raises(ParleyError, match="2 messages, but 3 were given"):
                build(spec, [30]).keyed(keys(3)).encode(torch.ones(2, 30))


class TestInANeighbourhood:
    """The keys are the step's and the agents': placements draw alike."""

    @pytest.mark.parametrize("spec", ["randomk:0.2", "qsgd:4", "topk:0.2"])
    def test_neighbours_see_what_the_sender_sees(self, spec: str) -> None:
        hood = small.hood(graphs.ring(4))
        x_AD = torch.randn(4, hood.task.size, dtype=torch.float64)
        hood = hood.at(5)
        codec = hood.keyed(build(spec, hood.sizes))
        seen_AD = codec.round_trip(x_AD)
        flow = hood.exchange(x_AD, build(spec, hood.sizes))
        got_ID = torch.cat(list(flow))
        senders = [
            hood.transport.topology.edges[e][0] for r in hood.transport.edges.incoming_of for e in r
        ]
        assert torch.equal(got_ID, seen_AD[senders])
        length = 32 + codec.message_bytes(torch.float64)
        assert hood.transport.sent["models"].tolist() == [2 * length] * 4

    def test_choices_change_with_step_agent_and_stream(self) -> None:
        hood = small.hood(graphs.ring(4))
        codec = build("randomk:0.2", hood.sizes)
        ones_AD = torch.ones(4, hood.task.size, dtype=torch.float64)

        def drawn(step: int, stream: int = 0) -> Tensor:
            return hood.at(step).keyed(codec, stream).round_trip(ones_AD)

        first = drawn(0)
        assert torch.equal(first, drawn(0))
        assert not torch.equal(first[0], first[1])
        assert not torch.equal(first, drawn(1))
        assert not torch.equal(first, drawn(0, stream=1))

    def test_compressed_replies_draw_by_edge(self) -> None:
        hood = small.hood(graphs.ring(4))
        g_ID = torch.ones(8, hood.task.size, dtype=torch.float64)
        e_ID = hood.zeros_I()
        flow = hood.compress(hood.stored(g_ID), e_ID, build("randomk:0.2", hood.sizes))
        sent_ID = torch.cat(list(flow))
        assert torch.equal(sent_ID + flow.errors, g_ID)
        assert len({tuple(row.tolist()) for row in sent_ID}) == 8


@settings(max_examples=30)
@given(st.integers(1, 3000), st.sampled_from([0.001, 0.01, 0.07, 0.5, 1.0]))
def test_sparse_messages_of_any_size(size: int, fraction: float) -> None:
    m_ED = torch.randn(1, size, generator=torch.Generator().manual_seed(size))
    make: list[Callable[[], Codec]] = [
        lambda: build(f"topk:{fraction}", [size]),
        lambda: build(f"randomk:{fraction}", [size]).keyed(keys(1)),
    ]
    for codec in (m() for m in make):
        count = int(codec.round_trip(m_ED).count_nonzero())
        assert count == max(1, math.ceil(size * fraction - 1e-6))
        assert codec.message_bytes(m_ED.dtype) <= Dense(size).message_bytes(m_ED.dtype) + max(
            8, -(-size // 8)
        )


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=30)
@given(data=st.data(), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_any_bytes_are_decoded_or_refused(spec: str, data: st.DataObject, sizes: list[int]) -> None:
    """A peer can send anything of the right length: it never raises but by a refusal in words."""
    codec = build(spec, sizes)
    length = codec.message_bytes(torch.float32)
    wire = data.draw(st.binary(min_size=2 * length, max_size=2 * length))
    wire_EB = torch.frombuffer(bytearray(wire), dtype=torch.uint8).view(2, length)
    try:
        assert codec.decode(wire_EB, torch.float32).shape == (2, sum(sizes))
    except ParleyError as error:
        assert spec.startswith("topk") and re.search("positions|marks", str(error))
