"""Perf tests among others."""

import unittest

import pytest
from steps import step


def test_ordinary():
    print("ordinary")


def test_ordinary_failure():
    assert step() == 3


@pytest.mark.perf
def test_bare():
    step()


class TestCase(unittest.TestCase):
    def test_unittest(self):
        assert step() == 2


class TestPlain:
    @pytest.mark.perf(steps=4, tags=("class",))
    def test_marked_method(self, perf):
        for _ in perf.steps([1, 2]):
            step()

    def test_unmarked_method_with_the_fixture(self, perf):
        while perf.step():
            step()
