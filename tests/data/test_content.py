"""The content digest: blind to how a table is cut, sensitive to all else."""

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.data.content import ContentDigest, of_table

IMAGES = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
SCHEMA = pa.schema([("t", pa.string()), ("n", pa.int64()), ("f", pa.float64()), ("b", pa.bool_()), ("i", IMAGES)])

ROW = st.fixed_dictionaries(
    {
        "t": st.none() | st.text(max_size=4),
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(allow_nan=False),
        "b": st.none() | st.booleans(),
        "i": st.none()
        | st.lists(
            st.none()
            | st.fixed_dictionaries(
                {"bytes": st.none() | st.binary(max_size=3), "path": st.none() | st.text(max_size=2)}
            ),
            max_size=2,
        ),
    }
)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@settings(deadline=None, max_examples=60)
@given(st.lists(ROW, max_size=8), st.lists(st.integers(0, 8), max_size=4))
def test_the_cut_does_not_count(rows: list[dict[str, Any]], cuts: list[int]) -> None:
    whole = table(rows)
    digest = ContentDigest(SCHEMA)
    for start, end in itertools.pairwise([0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]):
        for batch in whole.slice(start, end - start).to_batches():
            digest.update(batch)
    assert digest.hexdigest() == of_table(whole)
    assert digest.rows == len(rows)


@settings(deadline=None, max_examples=60)
@given(st.lists(ROW, max_size=5), st.lists(ROW, max_size=5))
def test_other_rows_have_another_digest(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> None:
    same = repr(table(one).to_pylist()) == repr(table(two).to_pylist())  # repr tells -0.0 from 0.0, as the digest does
    assert (of_table(table(one)) == of_table(table(two))) == same


@pytest.mark.parametrize("cut", [1, 3, 9])
def test_the_cut_does_not_count_where_nothing_is_missing(cut: int) -> None:
    rows = [
        {"t": f"text {i}", "n": i, "f": i / 2, "b": i % 3 == 0, "i": [{"bytes": b"x" * i, "path": "p"}] * (i % 3)}
        for i in range(10)
    ]
    whole = table(rows)
    digest = ContentDigest(SCHEMA)
    for start in range(0, 10, cut):
        for batch in whole.slice(start, cut).to_batches():
            digest.update(batch)
    assert digest.hexdigest() == of_table(whole)


@pytest.mark.parametrize(
    "other", [[[1], [2]], [[], [1, 2]], [None, [1, 2]], [[1, 2]], [[1, 2], None], [[1, None], [2]]]
)
def test_where_lists_end_counts(other: list[Any]) -> None:
    type_ = pa.list_(pa.int64())
    assert of_table(pa.table({"x": pa.array(other, type_)})) != of_table(pa.table({"x": pa.array([[1, 2], []], type_)}))


BASE = [{"t": "ab", "n": 1}, {"t": "c", "n": 2}, {"t": None, "n": None}]


@pytest.mark.parametrize(
    "other",
    [
        pa.table({"t": ["a", "bc", None], "n": [1, 2, None]}),  # the same letters, cut elsewhere
        pa.table({"t": ["ab", "c", ""], "n": [1, 2, None]}),  # empty is not missing
        pa.table({"t": ["ab", "c", None], "n": [1, 2, 0]}),
        pa.table({"t": ["ab", None, "c"], "n": [1, None, 2]}),  # another order
        pa.table({"t": ["ab", "c"], "n": [1, 2]}),
        pa.table({"u": ["ab", "c", None], "n": [1, 2, None]}),  # a name
        pa.table({"n": [1, 2, None], "t": ["ab", "c", None]}),  # the order of the columns
        pa.table({"t": ["ab", "c", None], "n": pa.array([1, 2, None], pa.int32())}),  # types
        pa.table({"t": pa.array(["ab", "c", None], pa.large_string()), "n": [1, 2, None]}),
        pa.table({"t": pa.array([b"ab", b"c", None], pa.binary()), "n": [1, 2, None]}),
        pa.table({"t": ["ab", "c", None], "n": [1, 2, None], "x": pa.nulls(3, pa.int8())}),
    ],
)
def test_every_cell_name_and_type_counts(other: pa.Table) -> None:
    base = pa.Table.from_pylist(BASE, schema=pa.schema([("t", pa.string()), ("n", pa.int64())]))
    assert of_table(other) != of_table(base)


def test_what_lies_below_a_missing_cell_does_not_count() -> None:
    mask = pa.array([False, True]).to_numpy(zero_copy_only=False)
    one = pa.table({"t": pa.array(["a", "b"], mask=mask), "n": pa.array([1, 2], mask=mask)})
    assert of_table(one) == of_table(pa.table({"t": ["a", None], "n": [1, None]}))
    valid, offsets, data = pa.py_buffer(b"\x01"), pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"ab")
    below = pa.Array.from_buffers(pa.string(), 2, [valid, offsets, data])
    assert below.to_pylist() == ["a", None]
    assert of_table(pa.table({"t": below})) == of_table(pa.table({"t": ["a", None]}))


def test_a_batch_of_another_schema_or_type_is_refused() -> None:
    with pytest.raises(TypeError, match="for a digest of schema"):
        ContentDigest(SCHEMA).update(pa.RecordBatch.from_pydict({"t": ["a"]}))
    with pytest.raises(TypeError, match="no content digest is defined for columns of type date32"):
        ContentDigest(pa.schema([("d", pa.date32())]))
