"""Arrays and bulks: the same bytes seen two ways."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.actors.arrays import from_bulk, to_bulk
from milepost.messages.bulk import ITEM_BYTES, Bulk

NUMPY_DTYPES = sorted(set(ITEM_BYTES) - {"bfloat16"})


@given(
    dtype=st.sampled_from(NUMPY_DTYPES),
    shape=st.lists(st.integers(0, 4), max_size=3),
    seed=st.integers(0, 9),
)
def test_every_dtype_and_shape_comes_back_bit_for_bit(
    dtype: str, shape: list[int], seed: int
) -> None:
    """Scalars, empty arrays and every travelling dtype survive, byte for byte."""
    raw = np.random.default_rng(seed).bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize)
    if dtype == "bool":
        raw = bytes(byte & 1 for byte in raw)
    array = np.frombuffer(raw, dtype=dtype).reshape(shape)
    back = from_bulk(to_bulk(array))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_an_array_in_the_other_byte_order_is_refused() -> None:
    """Its name says int32 all the same: 1 would arrive as 16,777,216."""
    with pytest.raises(ValueError, match=r"dtype >i4 is not little-endian"):
        to_bulk(np.arange(3, dtype=">i4"))


def test_the_buffer_is_shared_not_copied() -> None:
    """A 60 MiB payload must not be copied on its way into or out of a message."""
    array = np.arange(16, dtype=np.int32)
    bulk = to_bulk(array)
    array[3] = 99
    assert from_bulk(bulk)[3] == 99


def test_what_comes_out_cannot_be_written() -> None:
    """The buffer may belong to another process's shared memory."""
    view = from_bulk(to_bulk(np.zeros(4, dtype=np.float32)))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_bfloat16_travels_as_bits_of_uint16() -> None:
    """NumPy has no bfloat16; its name on the wire stays true all the same."""
    bits = np.array([0x3F80, 0xC000], dtype=np.uint16)
    bulk = to_bulk(bits, "bfloat16")
    assert bulk.dtype == "bfloat16"
    assert from_bulk(bulk).tolist() == bits.tolist()


def test_a_strided_array_is_refused() -> None:
    """Sending a transposed view would silently send other numbers."""
    with pytest.raises(ValueError, match="not C-contiguous"):
        to_bulk(np.zeros((4, 4), dtype=np.float32).T)


@pytest.mark.parametrize(
    ("dtype", "shape", "size", "words"),
    [
        ("int31", (1,), 4, "unknown bulk dtype 'int31'"),
        ("int32", (-1,), 4, "negative size"),
        ("int32", (2,), 4, "needs 8 bytes, the buffer has 4"),
    ],
)
def test_a_bulk_that_lies_about_itself_is_refused(
    dtype: str, shape: tuple[int, ...], size: int, words: str
) -> None:
    """Shape and bytes must agree before anyone computes with them."""
    with pytest.raises(ValueError, match=words):
        Bulk(dtype, shape, bytes(size))
