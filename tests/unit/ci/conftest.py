import pytest

from unit.ci.fake_github import FakeGitHub, running


@pytest.fixture
def github():
    with running(FakeGitHub()) as served:
        yield served
