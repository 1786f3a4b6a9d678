"""Codecs: what is lost is bounded, unbiased or kept for later; every rank goes on with the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.ranks import Ranks

from p3.codecs import CODECS, BFloat16, Codec, Float16, OneBit, Qsgd, TopK
from p3.codecs.codec import Bytes, Floats, State
from p3.codecs.qsgd import BUCKET, LEVELS
from p3.coding import Coder
from p3.slicing import Parameter, make_plan

WORKERS = 3
gradients = arrays.arrays(np.float32, st.integers(1, 1200), elements=st.floats(-1e3, 1e3, width=32))


def state(seed: int = 0) -> State:
    return State(np.random.default_rng(seed))


def pushed(codec: Codec, values: Floats, kept: State) -> Floats:
    data = codec.encode_push(values, kept)
    assert data.nbytes == codec.push_bytes(len(values))
    return codec.decode_push(data, len(values))


@given(gradients, st.sampled_from(sorted(CODECS)))
def test_sizes_follow_from_lengths_and_inputs_stay(values: Floats, name: str) -> None:
    codec, before = CODECS[name], values.copy()
    kept = state()
    for _ in range(2):
        pushed(codec, values, kept)
        data = codec.encode_sum(values, WORKERS, kept)
        assert data.nbytes == codec.sum_bytes(len(values), WORKERS)
        assert codec.decode_sum(data, len(values), WORKERS).shape == values.shape
    assert np.array_equal(values, before)


@given(gradients)
def test_halves_are_rounded_to_nearest(values: Floats) -> None:
    smallest = 2.0**-24
    for codec, bits in ((Float16(), 11), (BFloat16(), 8)):
        error = np.abs(pushed(codec, values, state()) - values)
        assert (error <= np.abs(values) * 2.0**-bits + smallest).all()


def test_halves_keep_what_is_no_number() -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 1e30, 0.0], dtype=np.float32)
    for codec in (Float16(), BFloat16()):
        found = pushed(codec, odd, state())
        assert np.isnan(found[0])
        assert (found[1:3] == odd[1:3]).all()
        assert np.isfinite(found[3:]).all()


@given(gradients)
def test_qsgd_is_within_a_level(values: Floats) -> None:
    error = np.abs(pushed(Qsgd(), values, state()) - values)
    for start in range(0, len(values), BUCKET):
        part = slice(start, start + BUCKET)
        level = np.abs(values[part]).max() / LEVELS
        assert (error[part] <= level * 1.001).all()


@settings(max_examples=10)
@given(st.integers(0, 99))
def test_qsgd_is_unbiased(seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal(300).astype(np.float32)
    kept, draws = state(seed), 400
    mean = np.mean([pushed(Qsgd(), values, kept) for _ in range(draws)], axis=0)
    level = np.abs(values).max() / LEVELS
    # A rounding's standard deviation is half a level at most.
    assert (np.abs(mean - values) < 6 * level / 2 / draws**0.5).all()


@given(st.lists(st.integers(0, 2**16), min_size=1, max_size=8), st.integers(1, 300))
def test_what_is_lost_is_kept_and_sent_later(seeds: list[int], numel: int) -> None:
    for codec, name in ((OneBit(), "error"), (TopK(momentum=0.0), "gathered")):
        kept = state()
        given, sent = np.zeros(numel), np.zeros(numel)
        for seed in seeds:
            values = np.random.default_rng(seed).standard_normal(numel).astype(np.float32)
            given += values
            sent += pushed(codec, values, kept)
        assert np.allclose(given, sent + kept.kept[name], atol=1e-4)


def test_topk_corrects_momentum_and_masks_what_it_sent() -> None:
    codec, kept = TopK(ratio=0.25, momentum=0.5), state()
    assert pushed(codec, np.array([4, 1, 0, 0], np.float32), kept).tolist() == [4, 0, 0, 0]
    # Element 1 has gathered 1 + (0.5 + 1); element 0's momentum is forgotten.
    assert pushed(codec, np.array([1, 1, 0, 0], np.float32), kept).tolist() == [0, 2.5, 0, 0]
    assert pushed(codec, np.zeros(4, np.float32), kept).tolist() == [1.5, 0, 0, 0]


@given(gradients)
def test_a_sum_of_sparse_pushes_travels_exactly(values: Floats) -> None:
    codec = TopK(ratio=0.1)
    total = sum(pushed(codec, np.roll(values, shift), state()) for shift in range(WORKERS))
    assert isinstance(total, np.ndarray)
    data = codec.encode_sum(total, WORKERS, state())
    assert np.array_equal(codec.decode_sum(data, len(total), WORKERS), total)


def test_places_beyond_the_slice_are_refused() -> None:
    data: Bytes = np.array([7, 0], np.uint32).view(np.uint8)
    with pytest.raises(ValueError, match="element 7 of 5"):
        TopK().decode_push(data, 5)


def test_every_slice_has_its_own_error_and_flags_travel_as_they_are() -> None:
    parameters = [Parameter(f"p{i}", 900, kind, 4, i) for i, kind in enumerate(["float32"] * 2)]
    parameters.append(Parameter("p2", 900, "int32", 4, 2))
    plan = make_plan(parameters, WORKERS, 900)
    coder = Coder(plan, 0, OneBit())
    alone = Coder(plan, 0, OneBit())
    for piece, size in zip(plan.slices, coder.push_bytes(), strict=True):
        payload = np.random.default_rng(piece.index).bytes(piece.payload_bytes)
        whole: Bytes = (np.frombuffer(payload, np.uint8) & 0x3F).astype(np.uint8)
        data = coder.encode_push(piece.index, whole)
        assert data.nbytes == size
        assert np.array_equal(data, alone.encode_push(piece.index, whole))
        back = np.empty_like(whole)
        coder.decode_push(piece.index, data, back)
        end = piece.numel * piece.itemsize
        assert np.array_equal(back[end:], whole[end:])
        assert np.array_equal(back, whole) == (piece.dtype == "int32")
        alone = Coder(plan, 0, OneBit())  # what other slices lost makes no difference


SHARE = {"fp16": 0.5, "bf16": 0.5, "qsgd8": 0.26, "1bit": 0.04, "topk": 0.05}
"""Of the bytes of none, at most, presence flags aside."""
CLOSE = {"none": 2e-5, "fp16": 2e-3, "bf16": 2e-2, "qsgd8": 5e-2}


def test_training_with_every_codec(ranks: Ranks) -> None:
    results = ranks.run("every_codec")
    for name in ("none", *CODECS):
        found = [result[name] for result in results]
        assert len({one["digest"] for one in found}) == 1
        assert all(one["distance"] < CLOSE.get(name, 1.0) for one in found)
        assert all(one["losses"][1] < one["losses"][0] for one in found)
        plain = sum(result["none"]["sent"] for result in results)
        assert sum(one["sent"] for one in found) < plain * (SHARE.get(name, 1.0) + 0.01)


def test_where_a_codec_cannot_be(ranks: Ranks) -> None:
    for said in ranks.run("refused_codecs"):
        assert "choose one of none, fp16" in said["unknown"]
        assert "has no codecs" in said["groups"]
        assert "sends parameters" in said["update"]
