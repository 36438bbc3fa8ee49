"""The clocks: no other module reads time, patches of `time` do not reach them, and a clock that is not the system's is
named."""

import ast
import datetime
import sys
import time
from pathlib import Path

import pytest

import pytest_perfdl
from pytest_perfdl.measure import program, timed_pass
from pytest_perfdl.measure.program import Program
from pytest_perfdl.system import clocks
from pytest_perfdl.system.clocks import Moment
from unit.measure.answers import Conversation

READERS = (
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time_ns",
    "sleep",
)


def reads_time(path):
    """Lines of a module that read a clock of Python's own."""
    for node in ast.walk(ast.parse(path.read_text())):
        imported = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        imported += [node.module] if isinstance(node, ast.ImportFrom) else []
        dated = isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today") and "date" in ast.dump(node)
        if "time" in imported or dated:
            yield f"{path}:{node.lineno}"


@pytest.mark.long
def test_no_other_module_reads_a_clock(tmp_path):
    root = Path(pytest_perfdl.__file__).parent
    own = root / "system/clocks.py"
    assert list(reads_time(own)), "what is looked for is found"
    (tmp_path / "dated.py").write_text("import datetime\nday = datetime.datetime.now()\n")
    assert list(reads_time(tmp_path / "dated.py")) == [f"{tmp_path / 'dated.py'}:2"]

    assert [line for path in root.rglob("*.py") if path != own for line in reads_time(path)] == []


def test_clocks_that_a_fixture_freezes_in_all_modules_go_on(monkeypatch):
    real = {id(getattr(time, name)) for name in READERS}
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in real:
                monkeypatch.setattr(module, name, lambda *_: -1)
    assert time.perf_counter_ns() == time.time() == -1

    assert clocks.perf_counter_ns() > 0
    assert min(clocks.monotonic(), clocks.process_time(), clocks.process_time_ns(), clocks.time_ns()) > 0
    assert timed_pass.perf_counter_ns() > 0
    assert program.perf_counter_ns() > 0
    assert clocks.sleep(0) is None
    assert clocks.today().year > 1970


def test_the_date_is_the_systems():
    assert abs(clocks.utc_now() - datetime.datetime.now(datetime.timezone.utc)) < datetime.timedelta(minutes=1)


def at(own_s, kernel_s, *, took_s=0.0):
    return Moment(own_s, own_s + took_s, kernel_s)


@pytest.mark.parametrize(
    "own_s, kernel_s, told",
    [
        (5.0, 5.0, ""),
        # Two percent, and two ticks of 10 ms.
        (5.119, 5.0, ""),
        (5.121, 5.0, "counted 5.12 s of 5.00 s"),
        (4.881, 5.0, ""),
        (4.879, 5.0, "counted 4.88 s of 5.00 s"),
        (0.0, 0.02, ""),
        (0.0, 5.0, "counted 0.00 s of 5.00 s"),
        (353.0, 0.9, "counted 353.00 s of 0.90 s"),
        (5.0, None, ""),
    ],
)
def test_two_clocks_that_do_not_agree(own_s, kernel_s, told):
    began = at(100.0, None if kernel_s is None else 1000.0)
    ended = at(100.0 + own_s, None if kernel_s is None else 1000.0 + kernel_s)

    found = ended.disagreement(began)

    assert told in found
    assert bool(found) is bool(told)


def test_what_passes_while_the_kernel_is_asked_is_no_disagreement():
    assert at(101.0, 1003.0, took_s=2.0).disagreement(at(100.0, 1000.0)) == ""
    assert at(103.0, 1001.0).disagreement(at(100.0, 1000.0, took_s=2.0)) == ""


def test_a_call_that_another_clock_timed_is_invalid(monkeypatch):
    moments = iter([at(1.0, 10.0), at(1.5, 15.0)])
    monkeypatch.setattr(clocks.Moment, "now", lambda: next(moments))
    conversation = Conversation()

    list(Program(conversation).steps())

    (found,) = conversation.answers[0].findings
    assert (found.level, found.code) == ("invalid", "clock")
    assert found.message.startswith("time.perf_counter_ns counted 0.50 s of 5.00 s (/proc/uptime): a patch or")


def test_a_preloaded_library_is_suspected(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/faketime/libfaketime.so.1")
    assert "(LD_PRELOAD is set)" in at(1.5, 15.0).disagreement(at(1.0, 10.0))
