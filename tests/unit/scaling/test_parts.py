"""How each part of a step grows: operators and idle time of the tests of a run file, by hand."""

import pytest
from making import record, timed

from pytest_perfdl.model.errors import ScalingError
from pytest_perfdl.model.record import Call, Finding, Row
from pytest_perfdl.scaling.choose import doublings
from pytest_perfdl.scaling.points import members_of
from pytest_perfdl.scaling.saved import parts_of

SIZES = (2, 4, 8, 16)


def rows_at(size):
    """A product that is linear in the size, one that is quadratic, idle time, a trifle, and one that comes and goes."""
    return (
        Row("operator", "aten::mm", 2, (1000 * size + 4000, 1010 * size + 4040)),
        Row("operator", "aten::bmm", 1, (100 * size**2, 101 * size**2)),
        Row("idle", "Python and host", 0, (10_000, 10_000)),
        Row("operator", "aten::view", 1, (90, 90)),
        *((Row("operator", "aten::cat", 1, (2000, 2000)),) if size != 4 else ()),
    )


def measured(size, *, name="", rows=None, profiled=None, integrity=()):
    rows = rows_at(size) if rows is None else rows
    profiled = profiled or tuple(sum(row.ns[at] for row in rows) for at in range(2))
    call = Call(name, {"step_time": timed(1e4 * size, 1e4 * size)}, rows, profiled)
    test = f"test_a[batch={size}]"
    return record(calls=(call,), test=test, integrity=integrity)


def read_parts(*records, **more):
    return parts_of(members_of(records), **more)


def test_each_part_has_its_share_and_its_model():
    found = read_parts(*(measured(size) for size in SIZES))
    assert found.at == {"batch": 16}
    # Records hold times to four digits.
    mm, bmm, idle = 20_100, 25_730, 10_000
    whole = mm + bmm + idle + 90 + 2000
    assert found.ns == pytest.approx(whole, rel=2e-3)
    assert [(part.kind, part.name) for part in found.parts] == [
        ("operator", "aten::bmm"),
        ("operator", "aten::mm"),
        ("idle", "Python and host"),
    ]
    assert [part.share for part in found.parts] == pytest.approx([ns / whole for ns in (bmm, mm, idle)], rel=2e-3)
    assert found.elsewhere == pytest.approx((2000 + 90) / whole, rel=2e-2)
    bmm, mm, idle = found.parts
    (square,) = bmm.fit.coefficients
    assert (square.name, square.value) == ("per batch^2", pytest.approx(100.5, rel=1e-3))
    assert {each.name: each.value for each in mm.fit.coefficients} == pytest.approx(
        {"constant": 4020, "per batch": 1005}, rel=2e-3
    )
    assert doublings(bmm.fit, bmm.points) == pytest.approx({"batch": 4})
    assert doublings(idle.fit, idle.points) == pytest.approx({"batch": 1})
    assert all(part.fit.loo_mape < 2e-3 for part in found.parts)


def test_parts_are_those_of_the_metrics_call():
    records = [measured(size, name="forward") for size in SIZES]
    assert len(read_parts(*records, metric="forward.step_time").parts) == 3
    with pytest.raises(ScalingError, match=r"^test_a\[batch=2\] has no profiled step$"):
        read_parts(*records)
    with pytest.raises(ScalingError, match=r"has no profiled step of backward$"):
        read_parts(*records, metric="backward.step_time")


def test_a_step_that_was_not_profiled_has_no_parts():
    with pytest.raises(ScalingError, match=r"test_a\[batch=2\] has no profiled step"):
        read_parts(*(measured(size, rows=(), profiled=(0, 0)) for size in SIZES))


@pytest.mark.parametrize(("level", "used"), [("invalid", False), ("note", True)])
def test_a_record_whose_profile_was_damaged_has_no_parts(level, used):
    finding = Finding(level, "missing-work", "2 of 50 kernel launches (4.0%) lack device events")
    members = [measured(size, integrity=(finding,) if size == 8 else ()) for size in SIZES]
    if used:
        assert len(read_parts(*members).parts) == 3
    else:
        with pytest.raises(ScalingError, match=r"test_a\[batch=8\]: its parts cannot be used: 2 of 50 kernel launches"):
            read_parts(*members)


def test_two_sizes_are_too_few():
    with pytest.raises(ScalingError, match=r"^2 configurations measured, but at least 3 are needed"):
        read_parts(measured(2), measured(4))


def test_where_no_part_is_everywhere_all_is_elsewhere():
    tests = [measured(size, rows=(Row("operator", f"aten::op{size}", 1, (size, size)),)) for size in SIZES]
    found = read_parts(*tests)
    assert (found.parts, found.elsewhere) == ((), 1)
