import pytest
from steps import step

pytestmark = pytest.mark.perf


@pytest.mark.skip(reason="never")
def test_skip(perf):
    raise AssertionError("not reached")


@pytest.mark.skipif("1 < 2", reason="always")
def test_skipif(perf):
    raise AssertionError("not reached")


def test_importorskip():
    pytest.importorskip("a_module_that_does_not_exist")


def test_dynamic_skip(perf):
    perf(step)
    pytest.skip("seen enough")


def test_skip_in_fixture(unavailable):
    raise AssertionError("not reached")


def test_assertion(perf, resource):
    values = [perf(step, number) for number in (1,)]
    print("values", values)
    assert values == [2, 3], "the values differ"


def test_chained_exception():
    try:
        {}["key"]
    except KeyError as error:
        raise RuntimeError("no configuration") from error


def test_fail_without_traceback():
    pytest.fail("just the message", pytrace=False)


def test_raising_step(perf):
    def step_that_raises(number):
        print("in the step")
        return 1 // number

    perf(step_that_raises, 0)


def test_setup_error(broken):
    raise AssertionError("not reached")


def test_teardown_error(perf, breaks_later):
    perf(step)


def test_call_and_teardown_error(breaks_later):
    print("failing")
    assert step() == 3


def test_unknown_fixture(no_such_fixture):
    raise AssertionError("not reached")


class TestBroken:
    @classmethod
    def setup_class(cls):
        raise ValueError("no class today")

    def test_setup_class_error(self):
        raise AssertionError("not reached")
