import pytest
from steps import step

pytestmark = [pytest.mark.perf, pytest.mark.skipif(pytest.version_tuple < (9,), reason="subtests came with pytest 9")]


def test_passing(perf, subtests):
    for number in range(2):
        with subtests.test("doubled", number=number):
            assert step(number) == 2 * number
    perf(step)


def test_failing(perf, subtests):
    for number in range(3):
        with subtests.test(number=number):
            print("number", number)
            assert number != 1
    with subtests.test("outer"), subtests.test("inner"):
        raise ValueError("nested")
    perf(step)


def test_failing_like_its_subtest(subtests):
    with subtests.test("fails first"):
        raise ValueError("inner")
    raise AssertionError("outer")


def test_skipping(perf, subtests):
    with subtests.test("skips"):
        pytest.skip("not this one")
    with subtests.test("expected"):
        pytest.xfail("known")
    perf(step)
