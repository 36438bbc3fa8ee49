import argparse
import ast
import hashlib
import importlib.util
import inspect
import tarfile
import textwrap
from types import FunctionType, SimpleNamespace

from pytest_perfdl.workers.identity import test_hash as hash_of

FILE = '''import functools


def plain(perf):
    # said
    perf(step)  # kept

    done()
    # behind


@functools.wraps(
    plain
)
def wrapped(perf): plain(perf)


def mark(*marks):
    return lambda function: function


class TestOf:
    @mark(1)

    @mark(
        2,
    )
    async def method(self, perf):
        """Says
        more."""
        perf(step)

    def reaches_left(self):
        return """
left
"""

    if True:
        def inner(self): return 1


LAMBDA = lambda perf: perf(step)
exec("def made(perf): perf(step)")
'''


def searched(function):
    """The rule, slowly: `inspect` looks for each function in its file."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
        definition = ast.parse(source).body[0]
    except (OSError, SyntaxError):
        text = function.__qualname__
    else:
        lines = source.splitlines()[definition.lineno - 1 :]
        text = "\n".join(line.rstrip() for line in lines if line.strip() and not line.strip().startswith("#"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hashed(function):
    return hash_of(SimpleNamespace(function=function))


def functions(module):
    for value in vars(module).values():
        if isinstance(value, type):
            yield from functions(value)
        elif isinstance(value, FunctionType):
            yield value


def module_of(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_kinds_of_functions(tmp_path):
    path = tmp_path / "kinds.py"
    path.write_text(FILE)
    found = [*functions(module_of(path))]
    assert len(found) == 8
    assert [hashed(each) for each in found] == [searched(each) for each in found]


def test_what_is_hashed(tmp_path):
    path = tmp_path / "kinds.py"
    path.write_text(FILE)
    module = module_of(path)
    expected = "def plain(perf):\n    perf(step)  # kept\n    done()"
    assert hashed(module.plain) == hashed(module.wrapped) == hashlib.sha256(expected.encode()).hexdigest()[:16]
    method = 'async def method(self, perf):\n    """Says\n    more."""\n    perf(step)'
    assert hashed(module.TestOf.method) == hashlib.sha256(method.encode()).hexdigest()[:16]
    assert hashed(module.TestOf.reaches_left) == hashlib.sha256(b"TestOf.reaches_left").hexdigest()[:16]
    assert hashed(module.made) == hashlib.sha256(b"made").hexdigest()[:16]


def test_files_that_are_written_anew(tmp_path):
    path = tmp_path / "kinds.py"
    path.write_text("def test(perf): perf(one)\n")
    before = hashed(module_of(path).test)
    path.write_text("import torch\n\n\ndef test(perf): perf(two_)\n")
    assert hashed(module_of(path).test) != before
    # Of another size: Python takes a file of the same second and size for the one that it has bytecode of.
    path.write_text("import torch\n\n\n\n\ndef test(perf): perf(one)\n")
    assert hashed(module_of(path).test) == before


def test_functions_of_the_standard_library():
    found = [*functions(argparse), *functions(tarfile)]
    assert len(found) > 200
    assert [each.__qualname__ for each in found if hashed(each) != searched(each)] == []
