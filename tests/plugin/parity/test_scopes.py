"""Fixtures of every scope; and a doctest in a module of perf tests.

>>> pytestmark.name
'perf'
"""

import pytest
from steps import step

pytestmark = pytest.mark.perf


@pytest.fixture(scope="session")
def session_wide():
    print("session begins")
    return ["session"]


@pytest.fixture(params=[2.5, None], ids=["2.5", "ü[x]/y z"])
def number(request):
    return request.param


@pytest.fixture
def chain(resource, session_wide):
    return [*session_wide, resource]


def setup_function(function):
    print("setup_function", function.__name__)


def teardown_function(function):
    print("teardown_function", function.__name__)


def test_function_scope(perf, chain):
    assert perf(step, 4) == 8
    assert chain == ["session", "resource"]


@pytest.mark.usefixtures("resource")
def test_usefixtures(perf):
    perf(step)


def test_parametrized_fixture(number):
    raise ValueError(number)


@pytest.mark.parametrize("text", ["", "a::b[c]", "100%\té"])
def test_odd_ids(text):
    pytest.skip(f"got {text!r}")


@pytest.mark.parametrize(("left", "right"), [(1, 1), pytest.param(1, 2, marks=pytest.mark.xfail(reason="differ"))])
def test_marks_on_parameters(perf, left, right):
    assert left == right
    perf(step)


class TestClassScope:
    @pytest.fixture(scope="class")
    def wide(self):
        print("class fixture")
        yield 5
        print("class fixture ends")

    @pytest.fixture(autouse=True)
    def always(self):
        print("always")

    @classmethod
    def setup_class(cls):
        print("setup_class")
        cls.built = True

    @classmethod
    def teardown_class(cls):
        print("teardown_class")

    def setup_method(self, method):
        print("setup_method", method.__name__)
        self.mine = 1

    def teardown_method(self):
        print("teardown_method")

    def test_method(self, perf, wide):
        perf(step, wide)
        assert (self.built, self.mine, wide) == (True, 1, 5)
        print("body")


class TestOuter:
    class TestInner:
        def test_nested_class(self):
            assert {"a": 1, "b": 2} == {"a": 1, "b": 3}
