import pytest
from steps import step

pytestmark = pytest.mark.perf


@pytest.mark.xfail(reason="known")
def test_plain_fails():
    assert step() == 3


@pytest.mark.xfail(strict=True, reason="known")
def test_strict_fails():
    assert step() == 3


@pytest.mark.xfail(reason="thought to be known")
def test_plain_passes(perf):
    perf(step)


@pytest.mark.xfail(strict=True, reason="thought to be known")
def test_strict_passes(perf):
    perf(step)


@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
def test_raises_matching():
    return 1 // 0


@pytest.mark.xfail(raises=(KeyError, IndexError))
def test_raises_not_matching():
    return 1 // 0


@pytest.mark.xfail(raises=ZeroDivisionError)
def test_raises_in_step(perf):
    perf(lambda: 1 // 0)


@pytest.mark.xfail(run=False, reason="crashes")
def test_not_run():
    raise AssertionError("not reached")


@pytest.mark.xfail("1 < 2", reason="condition holds")
def test_condition_holds():
    assert step() == 3


@pytest.mark.xfail("1 > 2", reason="condition does not hold")
def test_condition_does_not_hold():
    assert step() == 3


@pytest.mark.xfail(reason="known")
def test_setup_error(broken):
    raise AssertionError("not reached")


@pytest.mark.xfail(reason="known")
def test_teardown_error(perf, breaks_later):
    perf(step)


def test_dynamic():
    pytest.xfail("known since now")


def test_applymarker(request):
    request.applymarker(pytest.mark.xfail(reason="applied"))
    assert step() == 3


def test_add_marker_then_passes(perf, request):
    perf(step)
    request.node.add_marker(pytest.mark.xfail(reason="added", strict=True))


@pytest.fixture
def marks(request):
    request.applymarker(pytest.mark.xfail(reason="marked by a fixture", raises=AssertionError))


def test_marked_by_fixture(marks):
    assert step() == 3


def test_marked_by_fixture_then_passes(perf, marks):
    perf(step)


@pytest.mark.xfail(reason="known")
def test_skips():
    pytest.skip("skipped all the same")
