"""A test that runs in a worker, seen from the orchestrating process."""

from types import SimpleNamespace

import pytest

from pytest_perfdl.model.errors import WorkerDied
from pytest_perfdl.workers.channel import PhaseReport, Unlike
from pytest_perfdl.workers.remote_test import RemoteTest


def remote(*messages):
    """A test whose worker sends these messages and then ends with exit code 0."""
    sent = iter((*messages, None))
    return RemoteTest(SimpleNamespace(), SimpleNamespace(receive=lambda: next(sent)), int, forward=False)


def phase(name):
    return PhaseReport(name, "passed", {}, (), ())


@pytest.mark.parametrize(
    ("messages", "during"),
    [((), "setup"), ((phase("setup"),), "call"), ((phase("setup"), phase("call")), "teardown")],
)
@pytest.mark.parametrize("serve", [RemoteTest.finish, RemoteTest.advance])
def test_a_process_that_ends_before_its_test_has_died(messages, during, serve):
    with pytest.raises(WorkerDied, match=f"^the worker process exited during the test's {during} phase$"):
        serve(remote(*messages))


@pytest.mark.parametrize("last", [phase("teardown"), Unlike("of other modules")])
def test_a_process_that_has_ended_its_test_or_is_to_be_started_anew_has_not(last):
    test = remote(phase("setup"), last)
    test.finish()
    assert test.over
