"""The line of the user's code that runs, with the lines that led to it, through whatever Python does with frames."""

import importlib.util
import sys
import threading

import pytest

from pytest_perfdl.measure import memory_pass
from pytest_perfdl.measure.memory_pass import LINE, NO_PLACE, LineRanges

SOURCE = '''
import asyncio
import json
import threading

import torch

log = []
mark = log.append
"""Both are of C, so that they are no frames."""


def leaf():
    mark("leaf")


def outer():
    mark("before")
    leaf()
    leaf()
    mark("after")


def loop():
    for _ in range(3):
        mark("loop")


def several_lines():
    return len(
        [
            leaf(),
            leaf(),
        ]
    )


def count(name):
    mark(f"{name} begins")
    yield 1
    mark(f"{name} goes on")
    yield 2
    mark(f"{name} ends")


def interleaved():
    first = count("one")
    second = count("two")
    next(first)
    next(second)
    next(first)  # again
    next(second)  # again
    mark("resumed")
    list(first)
    mark("done")


def through():
    yield from count("inner")


def delegated():
    for _ in through():
        mark("between")


def patient():
    try:
        yield 1
    except KeyError:
        mark("thrown")
        yield 2
    finally:
        mark("closed")


def thrown():
    one = patient()
    next(one)
    one.throw(KeyError("x"))
    mark("after throw")
    one.close()
    mark("after close")


def dropped():
    one = patient()
    next(one)
    del one
    mark("after del")


def fails():
    mark("fails")
    raise ValueError("x")


def passes_on():
    try:
        fails()
    finally:
        mark("finally")


def catches():
    try:
        passes_on()
    except ValueError:
        mark("caught")
    mark("after")


def down(depth):
    if depth:
        down(depth - 1)
    mark(f"depth {depth}")


def listed():
    return [leaf() for _ in range(2)]


def lazily():
    return list(leaf() for _ in range(2))


def hooked():
    json.loads('[{"a": 1}]', object_hook=hook)
    mark("after hook")


def hook(found):
    mark("hook")
    return found


def sorts():
    return sorted([2, 1], key=lambda each: mark("key") or each)


def local():
    def inside():
        mark("inside")

    inside()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, x):
        mark("forward")
        return self.weight * x


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x):
        return self.net(x)


def calls_modules():
    net = Outer()
    net(torch.ones(8))


def calls(function):
    mark("before")
    function()
    mark("after")


def nested(function):
    calls(function)
    mark("done")


async def waits(name):
    mark(f"{name} begins")
    await asyncio.sleep(0)
    mark(f"{name} ends")


async def gathers():
    await asyncio.gather(waits("one"), waits("two"))
    mark("gathered")


def runs():
    asyncio.run(gathers())


def in_a_thread():
    other = threading.Thread(target=leaf)
    other.start()
    other.join()
    mark("joined")


def allocates():
    first = torch.empty(256)
    second = torch.empty(512)
    return first, second
'''
MODULE = "lines_under_test"
INLINED = sys.version_info >= (3, 12)
"""Whether a comprehension is no frame (PEP 709)."""


def no_user(function):
    """The function, as if Python had made it up: it has no lines of its own, as torch's ranges have none."""
    function.__code__ = function.__code__.replace(co_filename="<test>")
    return function


class Module:
    """The module of `SOURCE`, and what its ranges were when it called `mark`."""

    def __init__(self, folder):
        path = folder / f"{MODULE}.py"
        path.write_text(SOURCE)
        spec = importlib.util.spec_from_file_location(MODULE, path)
        self.code = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.code)
        self.log = self.code.log
        self.ranges = LineRanges()
        self.ranges._range = self.range

    @no_user
    def range(self, name):
        assert name.startswith(LINE)
        return Range(int(name[len(LINE) :]), self.log)

    def run(self, name, *args):
        """Marks in the order of time, each with the lines of the innermost open range."""
        tracer = sys.gettrace()
        self.ranges.start()
        try:
            getattr(self.code, name)(*args)
        finally:
            self.ranges.stop()
        assert sys.gettrace() is tracer
        return self.seen()

    def seen(self):
        opened, found = [], []
        for each in self.log:
            if isinstance(each, str):
                found.append((each, self.ranges.lines(opened[-1].place if opened else NO_PLACE)))
            elif each[0] == "open":
                opened.append(each[1])
            else:
                assert opened.pop() is each[1], "ranges are inside one another"
        assert not opened
        self.log.clear()
        return found


class Range:
    @no_user
    def __init__(self, place, log):
        self.place = place
        self._log = log

    @no_user
    def __enter__(self):
        self._log.append(("open", self))

    @no_user
    def __exit__(self, *args):
        self._log.append(("close", self))


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(memory_pass, "_SHOWN", {})
    yield Module(tmp_path)
    assert not sys.modules.get(MODULE)


def at(text, function, *, nth=0):
    """The line of a function that holds a text."""
    numbers = [number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line]
    if sys.version_info < (3, 11):
        function = function.rpartition(".")[2]
    return f"{MODULE}.py({numbers[nth]}): {function}"


LEAF = at('mark("leaf")', "leaf")


def test_lines_of_the_source_are_found():
    assert at('mark("leaf")', "leaf") == f"{MODULE}.py(14): leaf"


def test_nested_calls(module):
    first = SOURCE.splitlines().index("    leaf()") + 1
    assert module.run("outer") == [
        ("before", (at('mark("before")', "outer"),)),
        ("leaf", (LEAF, f"{MODULE}.py({first}): outer")),
        ("leaf", (LEAF, f"{MODULE}.py({first + 1}): outer")),
        ("after", (at('mark("after")', "outer"),)),
    ]


def test_a_line_of_a_loop_is_one_place(module):
    tracer_log = []
    made = module.range
    module.ranges._range = lambda name: tracer_log.append(name) or made(name)
    assert module.run("loop") == [("loop", (at('mark("loop")', "loop"),))] * 3
    assert len(set(tracer_log)) == 2
    assert len(tracer_log) >= 6


def test_a_line_that_another_led_to_is_another_place(module):
    found = module.run("outer") + module.run("leaf")
    assert len({lines for mark, lines in found if mark == "leaf"}) == 3


def test_the_lines_of_one_expression(module):
    inside = SOURCE.splitlines().index("            leaf(),") + 1
    assert module.run("several_lines") == [
        ("leaf", (LEAF, f"{MODULE}.py({line}): several_lines")) for line in (inside, inside + 1)
    ]


def test_generators_belong_to_the_line_that_resumes_them(module):
    begins, goes_on, ends = (at(f"{{name}} {part}", "count") for part in ("begins", "goes on", "ends"))
    assert module.run("interleaved") == [
        ("one begins", (begins, at("next(first)", "interleaved"))),
        ("two begins", (begins, at("next(second)", "interleaved"))),
        ("one goes on", (goes_on, at("next(first)  # again", "interleaved"))),
        ("two goes on", (goes_on, at("next(second)  # again", "interleaved"))),
        ("resumed", (at('mark("resumed")', "interleaved"),)),
        ("one ends", (ends, at("list(first)", "interleaved"))),
        ("done", (at('mark("done")', "interleaved"),)),
    ]


def test_yield_from(module):
    found = module.run("delegated")
    assert [mark for mark, _ in found] == ["inner begins", "between", "inner goes on", "between", "inner ends"]
    around = (at("yield from", "through"), at("in through()", "delegated"))
    between = (at('mark("between")', "delegated"),)
    assert found[1][1] == found[3][1] == between
    assert found[0][1] == (at("{name} begins", "count"), *around)
    # A resumed frame has no line until it reaches another one: the innermost that is known is its caller's.
    for (_, lines), part in ((found[2], "goes on"), (found[4], "ends")):
        assert lines[0] == at(f"{{name}} {part}", "count")
        assert lines[-1] == around[-1]


def test_a_generator_that_something_is_thrown_into(module):
    assert module.run("thrown") == [
        ("thrown", (at('mark("thrown")', "patient"), at("one.throw", "thrown"))),
        ("after throw", (at('mark("after throw")', "thrown"),)),
        ("closed", (at('mark("closed")', "patient"), at("one.close", "thrown"))),
        ("after close", (at('mark("after close")', "thrown"),)),
    ]


def test_a_generator_that_is_dropped(module):
    assert module.run("dropped") == [
        ("closed", (at('mark("closed")', "patient"), at("del one", "dropped"))),
        ("after del", (at('mark("after del")', "dropped"),)),
    ]


def test_exceptions(module):
    calls, passes = at("passes_on()", "catches", nth=1), at("fails()", "passes_on", nth=1)
    assert module.run("catches") == [
        ("fails", (at('mark("fails")', "fails"), passes, calls)),
        ("finally", (at('mark("finally")', "passes_on"), calls)),
        ("caught", (at('mark("caught")', "catches"),)),
        ("after", (at('mark("after")', "catches", nth=1),)),
    ]


def test_an_exception_that_nobody_catches(module):
    with pytest.raises(ValueError, match="x"):
        module.run("passes_on")
    assert module.ranges._stack == []
    assert [mark for mark, _ in module.seen()] == ["fails", "finally"]
    assert module.run("leaf") == [("leaf", (LEAF,))], "no range was left"


def test_recursion(module):
    calls, marks = at("down(depth - 1)", "down"), at('mark(f"depth', "down")
    assert module.run("down", 3) == [(f"depth {depth}", (marks, *[calls] * (3 - depth))) for depth in range(4)]


@pytest.mark.parametrize("name", ["listed", "lazily"])
def test_comprehensions(module, name):
    """The line that it is written in is its own."""
    found = module.run(name)
    assert len(found) == 2
    line = at("[leaf() for" if name == "listed" else "list(leaf() for", name)
    for mark, lines in found:
        assert mark == "leaf"
        assert (lines[0], lines[-1]) == (LEAF, line)
        number = line.partition(":")[0]
        assert all(each.startswith(number) for each in lines[1:])
        assert len(lines) == (2 if INLINED and name == "listed" else 3)


def test_python_s_library_in_between(module):
    loads = at("json.loads", "hooked")
    assert module.run("hooked") == [
        ("hook", (at('mark("hook")', "hook"), loads)),
        ("after hook", (at('mark("after hook")', "hooked"),)),
    ]


def test_a_lambda_that_c_calls(module):
    line = at("sorted(", "sorts")
    assert module.run("sorts") == [("key", (line.replace(": sorts", ": <lambda>"), line))] * 2


def test_a_local_function_has_its_own_name(module):
    assert module.run("local") == [("inside", (at('mark("inside")', "inside"), at("inside()", "local", nth=1)))]


def test_modules_of_torch_in_between(module):
    assert module.run("calls_modules") == [
        (
            "forward",
            (
                at('mark("forward")', "Net.forward"),
                at("return self.net(x)", "Outer.forward"),
                at("net(torch.ones(8))", "calls_modules"),
            ),
        )
    ]


def test_coroutines(module):
    found = module.run("runs")
    assert [mark for mark, _ in found] == ["one begins", "two begins", "one ends", "two ends", "gathered"]
    line = at("asyncio.run", "runs")
    for mark, lines in found[:4]:
        assert lines == (at(f"{{name}} {mark.partition(' ')[2]}", "waits", nth=-1), line)
    assert found[4][1] == (at('mark("gathered")', "gathers"), line)


def test_another_thread_has_no_lines(module):
    assert [mark for mark, _ in module.run("in_a_thread")] == ["leaf", "joined"]
    tracer = []
    other = threading.Thread(target=lambda: tracer.append(sys.gettrace()))
    module.ranges.start()
    other.start()
    other.join()
    module.ranges.stop()
    assert tracer == [None]


@pytest.mark.parametrize(
    "path",
    [
        "/home/me/.venv/lib/python3.11/site-packages/lightning/trainer.py",
        "/usr/lib/python3/dist-packages/lightning/trainer.py",
        "<string>",
        "<frozen importlib._bootstrap>",
        threading.__file__,
        sys.modules[LineRanges.__module__].__file__,
    ],
)
def test_frames_that_are_not_the_user_s(module, path):
    """What they do belongs to the line that called them."""
    scope = {"mark": module.log.append, "leaf": module.code.leaf}
    exec(compile("def call():\n    mark('installed')\n    leaf()\n", path, "exec"), scope)
    line = at("    function()", "calls")
    assert module.run("calls", scope["call"]) == [
        ("before", (at('mark("before")', "calls", nth=1),)),
        ("installed", (line,)),
        ("leaf", (LEAF, line)),
        ("after", (at('mark("after")', "calls", nth=2),)),
    ]


@pytest.mark.parametrize(
    "entries, shown",
    [
        ([], "/home/me/project/pkg/train.py"),
        (["/home/me/project"], "pkg/train.py"),
        (["", "/home", "/home/me/project/", "/home/me"], "pkg/train.py"),
        (["/home/me/project/pkg", "/home/me/project"], "train.py"),
        (["/home/me/project/pk"], "/home/me/project/pkg/train.py"),
    ],
)
def test_paths_are_from_the_innermost_entry_of_sys_path(module, monkeypatch, entries, shown):
    monkeypatch.setattr(sys, "path", entries)
    scope = {"mark": module.log.append}
    exec(compile("def call():\n    mark('here')\n", "/home/me/project/pkg/train.py", "exec"), scope)
    _, (_, lines), _ = module.run("calls", scope["call"])
    assert lines[0] == f"{shown}(2): call"


# Start and stop


@pytest.mark.parametrize("times", [1, 2])
def test_stop_restores_the_earlier_tracer(module, times):
    def earlier(frame, event, arg):
        return None

    before = sys.gettrace()
    try:
        sys.settrace(earlier)
        module.ranges.start()
        assert sys.gettrace() is not earlier
        for _ in range(times):
            module.ranges.stop()
        assert sys.gettrace() is earlier
        # A later one is its owner's affair.
        sys.settrace(None)
        module.ranges.stop()
        assert sys.gettrace() is None
    finally:
        sys.settrace(before)


def test_stop_without_a_start_changes_nothing(module):
    before = sys.gettrace()
    module.ranges.stop()
    assert sys.gettrace() is before
    assert module.log == []


def test_stop_closes_what_is_open(module):
    """Frames that go on running open nothing."""
    tracer = sys.gettrace()
    module.ranges.start()
    module.code.nested(module.ranges.stop)
    assert sys.gettrace() is tracer
    found = module.seen()
    assert [(mark, bool(lines)) for mark, lines in found] == [("before", True), ("after", False), ("done", False)]


def test_it_can_start_again(module):
    """Also within a frame that it has followed before; the places are the same ones."""

    def again():
        module.ranges.stop()
        module.log.append("stopped")
        module.ranges.start()

    module.run("outer")
    first = module.ranges._places[:]
    assert module.run("outer")[0][1] == (at('mark("before")', "outer"),)
    assert module.ranges._places == first
    found = dict(module.run("nested", again))
    assert (found["stopped"], found["after"], found["done"]) == ((), (), ())
    assert module.run("leaf") == [("leaf", (LEAF,))]


def test_frames_from_before_the_start_are_not_followed(module):
    found = {}
    module.code.nested(module.ranges.start)
    module.ranges.stop()
    found = dict(module.seen())
    assert found == {"before": (), "after": (), "done": ()}


# In a profile


def allocations(root, around=()):
    """Sizes of the allocations in a profile, with the names of the ranges around them."""
    from torch._C._profiler import _EventType

    if root.tag == _EventType.Allocation and root.extra_fields.alloc_size > 0:
        yield root.extra_fields.alloc_size, tuple(name for name in around if name.startswith(LINE))
    for child in root.children:
        yield from allocations(child, (*around, root.name))


def test_an_allocation_in_a_profile_has_its_line(module):
    from torch.autograd.profiler import profile

    module.ranges = LineRanges()
    found = {}
    with profile(use_cpu=True, profile_memory=True) as profiler:
        module.ranges.start()
        kept = module.code.allocates()
        module.ranges.stop()
    for root in profiler.kineto_results.experimental_event_tree():
        for size, around in allocations(root):
            (number,) = (int(name[len(LINE) :]) for name in around)
            found[size] = module.ranges.lines(number)
    assert [tensor.nbytes for tensor in kept] == [1024, 2048]
    assert found == {
        1024: (at("torch.empty(256)", "allocates"),),
        2048: (at("torch.empty(512)", "allocates"),),
    }


def test_more_lines_than_are_told_of_end_the_tracing(module, monkeypatch):
    """What a long setup runs is not all kept; the tracer before is there again, and every range is closed."""
    monkeypatch.setattr(module.ranges, "_left", 3)
    numbers = []
    make = module.ranges._range
    monkeypatch.setattr(module.ranges, "_range", no_user(lambda name: numbers.append(name) or make(name)))
    module.run("nested", no_user(lambda: None))
    assert module.ranges.gave_up
    assert len(numbers) == 3
