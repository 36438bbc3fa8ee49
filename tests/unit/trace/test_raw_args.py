"""Arguments of many rows: found by their text, and decoded block by block."""

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pytest_perfdl.trace.arrays import sorted_by
from unit.trace.chrome import trace, x


class Numbered(msgspec.Struct):
    number: int = -1


def test_rows_are_found_by_what_their_text_contains():
    found = trace(
        x("a", 0, 1, first=1),
        x("b", 1, 1, second=1, first=1),
        x("c", 2, 1),
        x("d", 3, 1, third="second"),
        x("e", 4, 1, other=1, second=2),
    )
    rows = [4, 3, 2, 1, 0, 1]
    assert found.raw_args.containing(rows, (b'"second":',)).tolist() == [True, False, False, True, False, True]
    assert found.raw_args.containing(rows, (b'"second"', b'"first"')).tolist() == [True, True, False, True, True, True]
    assert found.raw_args.containing(rows, (b'"none"',)).tolist() == [False] * 6
    many = trace(*(x("a", at, 1, number=at) for at in range(300))).raw_args
    assert np.flatnonzero(many.containing(range(300), (b'{"number": 257}', b"9}"))).tolist() == [
        *range(9, 257, 10),
        257,
        *range(259, 300, 10),
    ]
    assert found.raw_args.containing(np.zeros(0, dtype=np.intp), (b'"first"',)).tolist() == []


def test_blocks_hold_all_rows_in_their_order():
    count = 10_000
    found = trace(*(x("a", at, 1, number="odd" if at == 5_000 else at) for at in range(count)))
    rows = np.arange(count)[::-1]
    blocks = list(found.args_by_block(rows, Numbered))
    assert len(blocks) > 1
    assert [row for block, _ in blocks for row in block.tolist()] == rows.tolist()
    decoded = [args.number for _, block in blocks for args in block]
    assert decoded == [-1 if row == 5_000 else row for row in rows.tolist()]
    assert found.decode_args(rows, Numbered) == [args for _, block in blocks for args in block]
    assert list(found.args_by_block([], Numbered)) == []


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), max_size=20))
def test_two_keys_sort_as_numpy_sorts_them(pairs):
    first, second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    assert sorted_by(first, second).tolist() == np.lexsort((second, first)).tolist()
