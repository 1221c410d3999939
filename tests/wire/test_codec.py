"""What travels: lengths, exactness, and that nothing is lost between sent and held back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from parley.compute import kernels
from parley.wire.codec import Codec, Dense, ScaledSign, pack_bits, unpack_signs

DTYPES = [torch.float32, torch.float64]


@st.composite
def messages(draw: st.DrawFn) -> tuple[Tensor, tuple[int, ...]]:
    """Some messages of up to 70 entries, and a split of the entries into segments."""
    sizes = draw(st.lists(st.integers(1, 14), min_size=1, max_size=5))
    rows, seed = draw(st.integers(0, 4)), draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, sum(sizes))
    magnitude = 10.0 ** torch.randint(-6, 7, shape, generator=generator)
    m_ED = magnitude * torch.randn(shape, generator=generator, dtype=torch.float64)
    m_ED[torch.rand(shape, generator=generator) < 0.1] = draw(st.sampled_from([0.0, -0.0, 1.0]))
    return m_ED.to(draw(st.sampled_from(DTYPES))), tuple(sizes)


def codecs(size: int, sizes: tuple[int, ...]) -> list[Codec]:
    return [Dense(size), ScaledSign((size,)), ScaledSign(sizes)]


@given(messages())
def test_every_message_has_the_announced_length(case: tuple[Tensor, tuple[int, ...]]) -> None:
    m_ED, sizes = case
    for codec in codecs(m_ED.shape[1], sizes):
        wire_EB = codec.encode(m_ED)
        assert wire_EB.dtype is torch.uint8
        assert wire_EB.shape == (len(m_ED), codec.message_bytes(m_ED.dtype))
        decoded = codec.decode(wire_EB, m_ED.dtype)
        assert decoded.shape == m_ED.shape
        assert decoded.dtype is m_ED.dtype


@given(messages())
def test_what_is_taken_out_of_a_value_is_what_the_message_says(
    case: tuple[Tensor, tuple[int, ...]],
) -> None:
    """`take` leaves the error, and over several steps nothing is lost on the way: what a receiver
    has added up and the last error are all that was to be sent."""
    m_ED, sizes = case
    for codec in codecs(m_ED.shape[1], sizes):
        e_ED, sent_ED, all_ED = torch.zeros_like(m_ED), torch.zeros_like(m_ED), m_ED.double() * 0
        size_ED = m_ED.abs().double()
        for step in range(4):
            now_ED = m_ED.roll(step, 1)  # another message in each step
            p_ED = e_ED.add_(now_ED).clone()
            wire_EB = codec.take(e_ED)
            assert torch.equal(wire_EB, codec.encode(p_ED))
            assert torch.equal(e_ED, p_ED - codec.decode(wire_EB, p_ED.dtype))
            sent_ED += codec.decode(wire_EB, p_ED.dtype)
            all_ED += now_ED.double()
            size_ED += now_ED.abs().double() + sent_ED.abs().double() + e_ED.abs().double()
        left_ED = sent_ED.double() + e_ED.double() - all_ED
        assert (left_ED.abs() <= 4 * torch.finfo(m_ED.dtype).eps * size_ED).all()


@given(messages())
def test_one_bit_per_entry_leaves_what_the_papers_say(
    case: tuple[Tensor, tuple[int, ...]],
) -> None:
    """‖m - C(m)‖² = ‖m‖² - ‖m‖₁²/d in each segment, so it contracts by δ = ‖m‖₁² / (d ‖m‖²)."""
    m_ED, sizes = case
    m_ED = m_ED.double()
    left_ED = m_ED - ScaledSign(sizes).round_trip(m_ED)
    for left_Ed, m_Ed in zip(left_ED.split(sizes, 1), m_ED.split(sizes, 1), strict=True):
        square_E = m_Ed.square().sum(1)
        expected_E = square_E - m_Ed.abs().sum(1).square() / m_Ed.shape[1]
        assert ((left_Ed.square().sum(1) - expected_E).abs() <= 1e-12 * square_E).all()


def test_one_bit_per_entry_by_hand() -> None:
    m_ED = torch.tensor([[1.0, -2.0, 0.0, 5.0, -3.0, 1.0]])
    assert ScaledSign((6,)).round_trip(m_ED).tolist() == [[2.0, -2.0, 2.0, 2.0, -2.0, 2.0]]
    assert ScaledSign((3, 3)).round_trip(m_ED).tolist() == [[1.0, -1.0, 1.0, 3.0, -3.0, 3.0]]
    assert ScaledSign((3, 3)).take(error_ED := m_ED.clone()).shape == (1, 2 * 4 + 1)
    assert error_ED.tolist() == [[0.0, -1.0, -1.0, 2.0, 0.0, -2.0]]


@given(messages())
def test_dense_is_exact_to_the_bit(case: tuple[Tensor, tuple[int, ...]]) -> None:
    m_ED, _ = case
    wire_EB = Dense(m_ED.shape[1]).encode(m_ED)
    assert torch.equal(
        Dense(m_ED.shape[1]).decode(wire_EB, m_ED.dtype).view(torch.uint8), m_ED.view(torch.uint8)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_dense_carries_what_is_no_number(dtype: torch.dtype) -> None:
    m_ED = torch.tensor([[float("nan"), float("inf"), -float("inf"), -0.0, 1e-40]], dtype=dtype)
    got = Dense(5).round_trip(m_ED)
    assert torch.equal(got.view(torch.uint8), m_ED.view(torch.uint8))


@given(messages())
def test_every_entry_is_its_sign_times_the_scale(case: tuple[Tensor, tuple[int, ...]]) -> None:
    """The scale is the segment's mean magnitude; zero counts as positive."""
    m_ED, sizes = case
    for split in [(m_ED.shape[1],), sizes]:
        got_ED = ScaledSign(split).round_trip(m_ED)
        parts = zip(got_ED.split(split, 1), m_ED.split(split, 1), strict=True)
        for got, original in parts:
            scale = original.abs().mean(1, keepdim=True)
            assert torch.equal(got >= 0, (original >= 0) | (scale == 0))
            assert torch.equal(got.abs(), got[:, :1].abs().expand_as(got))  # one scale for all
            if got.dtype == torch.float64 or not kernels.available():
                assert torch.equal(got.abs(), scale.expand_as(got))
            else:  # the kernels add up in another order
                torch.testing.assert_close(got.abs(), scale.expand_as(got))


@pytest.mark.skipif(not kernels.available(), reason=kernels.reason())
@given(messages())
def test_compiled_kernels_write_the_same_messages(
    case: tuple[Tensor, tuple[int, ...]],
) -> None:
    m_ED, sizes = case
    m_ED = m_ED.float()
    codec = ScaledSign(sizes)
    wire_EB, error_ED = codec.encode(m_ED), m_ED.clone()
    taken_EB = codec.take(error_ED)
    values_ED = codec.decode(wire_EB, torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "available", lambda: False)
        plain_EB = codec.encode(m_ED)
        plain_ED = codec.decode(wire_EB, torch.float32)
    scales = 4 * len(sizes)
    assert torch.equal(wire_EB[:, scales:], plain_EB[:, scales:])
    assert torch.equal(values_ED, plain_ED)
    assert torch.equal(taken_EB, wire_EB)
    assert torch.equal(error_ED, m_ED - values_ED)


@given(messages())
def test_a_message_does_not_depend_on_its_company(case: tuple[Tensor, tuple[int, ...]]) -> None:
    """Or placements would differ: they encode different edges together."""
    m_ED, sizes = case
    for codec in codecs(m_ED.shape[1], sizes):
        wire_EB = codec.encode(m_ED)
        for row, message_B in zip(m_ED, wire_EB, strict=True):
            assert torch.equal(codec.encode(row[None])[0], message_B)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", range(1, 71))
def test_packing_is_undone_by_unpacking(size: int, dtype: torch.dtype) -> None:
    bits_ED = torch.rand(3, size, generator=torch.Generator().manual_seed(size)) < 0.5
    packed_EB = pack_bits(bits_ED)
    assert packed_EB.shape == (3, -(-size // 8))
    signs_ED = unpack_signs(packed_EB, size, dtype)
    assert signs_ED.dtype is dtype
    assert torch.equal(signs_ED, torch.where(bits_ED, 1.0, -1.0).to(dtype))


def test_bits_stand_in_the_order_of_the_entries() -> None:
    """The format on the wire, spelled out: the first entry is the lowest bit."""
    for bit in range(8):
        bits = torch.zeros(1, 8, dtype=torch.bool)
        bits[0, bit] = True
        assert pack_bits(bits).tolist() == [[1 << bit]]
    every = torch.arange(256, dtype=torch.uint8)[:, None]
    assert torch.equal(pack_bits(unpack_signs(every, 8, torch.float32) > 0), every)


@pytest.mark.parametrize("dtype, scale_bytes", [(torch.float32, 4), (torch.float64, 8)])
def test_packed_length(dtype: torch.dtype, scale_bytes: int) -> None:
    for size in range(1, 71):
        assert ScaledSign((size,)).message_bytes(dtype) == scale_bytes + (size + 7) // 8
    lenet = (450, 6, 2400, 16, 48_000, 120, 10_080, 84, 540, 10)
    assert ScaledSign(lenet).message_bytes(dtype) == 10 * scale_bytes + 7714


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_views_that_are_not_contiguous(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    m_DE = torch.randn(13, 4, generator=generator)
    for codec in codecs(13, (5, 8)):
        assert torch.equal(codec.encode(m_DE.T), codec.encode(m_DE.T.contiguous()))
        wire_EB = codec.encode(m_DE.T)
        behind_header = torch.cat([torch.zeros(4, 32, dtype=torch.uint8), wire_EB], 1)[:, 32:]
        if isinstance(codec, ScaledSign):
            assert torch.equal(
                codec.decode(behind_header, m_DE.dtype), codec.decode(wire_EB, m_DE.dtype)
            )
