"""What is part of a test's definition, as files that are edited: either every edit is seen, or none is."""

import re
from pathlib import Path

import pytest

from pytest_perfdl.workers.definition import definition

ROOT = Path("/project")
FILES = {
    "conftest.py": """
import pytest

SIZE = 3
UNUSED = 1


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(SEED)


SEED = 1


@pytest.fixture
def data(batch):
    return [SIZE] * batch


@pytest.fixture
def batch():
    return 1


@pytest.fixture
def other():
    return 1
""",
    "tests/common.py": """
import pytest

WIDTH = 4
DEPTH = 5


def shape():
    return WIDTH


@pytest.fixture
def wide():
    return DEPTH
""",
    "tests/test_step.py": '''
"""Says what it is."""
import pytest
import tests.common as common
from demo import work, another
from tests.common import *

BATCH = 64
LIMITS = {"step_time": "3%"}
SHAPES = {"small": 1}
SHAPES["small"] = 2
quick = pytest.mark.perf(limits=LIMITS)


@pytest.fixture
def batch(batch):
    return BATCH * batch


def made(data):
    return helper(data)


def helper(data):
    return data


@pytest.mark.perf(limits=LIMITS)
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("shape", ["small"], ids=["one"])
def test_step(perf, data, n, shape):
    """A step."""
    # It is measured.
    perf(lambda: work(made(data), common.shape(), SHAPES[shape]))


@quick
@pytest.mark.usefixtures("wide")
def test_marked(perf, request):
    request.getfixturevalue("other")


@pytest.mark.perf
def test_given(perf, data):
    perf(step, made(data), setup=prepare)
    perf.compare(common.shape, Scaled)


def test_imports(perf):
    import tests.common as shapes

    perf(shapes.shape)


def step(data):
    return inner(data) * SCALE


def inner(data):
    return shared(data)


def prepare():
    return shared([0])


def shared(data):
    return data + []


class Scaled:
    def __init__(self):
        self.scale = SCALE


SCALE = 2


class Base:
    LENGTH = 2

    def size(self):
        return self.LENGTH


class TestOf(Base):
    DEEP = 3
    WIDE = 4

    def setup_method(self):
        self.x = 1

    def test_method(self, perf):
        perf(self.size, self.DEEP)

    def test_other(self, perf):
        perf(self.WIDE)


class TestCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.layers = 12

    async def asyncSetUp(self):
        self.width = 34

    @pytest.fixture(autouse=True)
    def _perf(self, perf):
        self.perf = perf

    def test_method(self):
        self.perf(layer, self.layers)


def layer(count):
    return 56 * count
''',
}
STEP = ("test_step",)
GIVEN = ("test_given",)


def forms(files, *path, root=ROOT):
    places = {root / name: text.encode() for name, text in files.items()}
    *owners, function = path
    found = definition(root / "tests/test_step.py", owners, function, root, places.get)
    return None if found is None else (found.forms, found.hash)


def edited(file, before, after):
    assert FILES[file].count(before) == 1, before
    return {**FILES, file: FILES[file].replace(before, after)}


TEST = "tests/test_step.py"


@pytest.mark.parametrize(
    ("path", "file", "before", "after"),
    [
        (STEP, TEST, "perf(lambda: work(", "perf(lambda: 1 + work("),
        (STEP, TEST, "BATCH = 64", "BATCH = 32"),
        (STEP, TEST, "return helper(data)", "return helper(data[:1])"),
        (STEP, TEST, "    return data\n", "    return data[:1]\n"),
        (STEP, TEST, 'SHAPES["small"] = 2', 'SHAPES["small"] = 1'),
        (STEP, TEST, 'ids=["one"]', 'ids=["one"], indirect=True'),
        (STEP, TEST, "from demo import work, another", "from demo import another as work"),
        (STEP, TEST, "return BATCH * batch", "return batch"),
        (STEP, "conftest.py", "SIZE = 3", "SIZE = 2"),
        (STEP, "conftest.py", "SEED = 1", "SEED = 2"),
        (STEP, "conftest.py", "def batch():\n    return 1", "def batch():\n    return 2"),
        (STEP, "tests/common.py", "WIDTH = 4", "WIDTH = 2"),
        (("test_marked",), "tests/common.py", "DEPTH = 5", "DEPTH = 1"),
        (("test_marked",), "conftest.py", "def other():\n    return 1", "def other():\n    return 2"),
        (("TestOf", "test_method"), TEST, "LENGTH = 2", "LENGTH = 1"),
        (("TestOf", "test_method"), TEST, "DEEP = 3", "DEEP = 1"),
        (("TestOf", "test_method"), TEST, "self.x = 1", "self.x = 2"),
        (("TestCase", "test_method"), TEST, "layers = 12", "layers = 13"),
        (("TestCase", "test_method"), TEST, "width = 34", "width = 35"),
        (("TestCase", "test_method"), TEST, "self.perf(layer, self.layers)", "self.perf(layer, 1)"),
        (STEP, TEST, "import pytest\n", "import pytest\ntorch.set_num_threads(2)\n"),
        (GIVEN, TEST, "perf(step, made(data)", "perf(inner, made(data)"),
        (GIVEN, TEST, "perf(step, made(data)", "perf(lambda data: step(data), made(data)"),
        (GIVEN, TEST, "SCALE = 2", "SCALE = 1"),
        (GIVEN, TEST, "return helper(data)", "return helper(data[:1])"),
        (GIVEN, TEST, "return data + []", "return data + data"),
        (GIVEN, "tests/common.py", "WIDTH = 4", "WIDTH = 2"),
        (("test_imports",), "tests/common.py", "WIDTH = 4", "WIDTH = 2"),
        (STEP, "conftest.py", "import pytest\n", "import pytest\ntorch.set_default_dtype(torch.float64)\n"),
        (STEP, "conftest.py", "UNUSED = 1", "def pytest_generate_tests(metafunc): metafunc.parametrize('k', [1])"),
        (STEP, "conftest.py", "UNUSED = 1", "@pytest.fixture(autouse=True)\ndef slow(): torch.ones(1)"),
    ],
)
def test_what_a_test_measures_by_is_part_of_it(path, file, before, after):
    assert forms(edited(file, before, after), *path) != forms(FILES, *path)


@pytest.mark.parametrize(
    ("path", "file", "before", "after"),
    [
        (STEP, TEST, "# It is measured.", "# It is timed."),
        (STEP, TEST, '"""A step."""', '"""The step."""'),
        (STEP, TEST, '"""Says what it is."""', ""),
        (STEP, TEST, "def made(data):\n    return helper(data)", "def made(data: list) -> list: return helper( data )"),
        (STEP, TEST, '"step_time": "3%"', '"step_time": "5%"'),
        (STEP, TEST, "[1, 2]", "[1, 2, 3]"),
        (STEP, TEST, "from demo import work, another", "from demo import more, work"),
        (STEP, TEST, "    DEEP = 3", "    DEEP = 4"),
        (STEP, "conftest.py", "UNUSED = 1", "UNUSED = 2"),
        (STEP, "conftest.py", "def other():\n    return 1", "def other():\n    return 2"),
        (STEP, "tests/common.py", "DEPTH = 5", "DEPTH = 6"),
        (("test_marked",), TEST, "BATCH = 64", "BATCH = 32"),
        (("test_marked",), TEST, '"step_time": "3%"', '"step_time": "5%"'),
        (("TestOf", "test_method"), TEST, "WIDE = 4", "WIDE = 5"),
        (("TestOf", "test_method"), TEST, "perf(self.WIDE)", "perf(self.WIDE, 2)"),
        (("TestOf", "test_method"), TEST, "return self.LENGTH", "return self.LENGTH + 0"),
        (GIVEN, TEST, "return inner(data) * SCALE", "inner(data)\n    return inner(data) * SCALE"),
        (("TestCase", "test_method"), TEST, "return 56 * count", "return 57 * count"),
        (GIVEN, TEST, "return shared(data)", "return shared(shared(data))"),
        (GIVEN, TEST, "self.scale = SCALE", "self.scale = SCALE + 1"),
        (GIVEN, "tests/common.py", "return WIDTH", "return WIDTH + 0"),
        (("test_imports",), "tests/common.py", "return WIDTH", "return WIDTH + 0"),
    ],
)
def test_what_it_does_not_use_is_not(path, file, before, after):
    assert forms(edited(file, before, after), *path) == forms(FILES, *path)


@pytest.mark.parametrize("call", ["benchmark", "benchmark.pedantic"])
def test_a_function_given_to_benchmark_is_under_test(call):
    given = edited(TEST, "perf(step, made(data), setup=prepare)", f"{call}(step, (made(data),))")
    slower = {**given, TEST: given[TEST].replace("return inner(data) * SCALE", "return 2 * inner(data) * SCALE")}
    other = {**given, TEST: given[TEST].replace("SCALE = 2", "SCALE = 1")}
    assert forms(slower, *GIVEN) == forms(given, *GIVEN) != forms(other, *GIVEN)


def test_a_fixture_that_moves_to_another_file_is_the_same():
    fixture = "@pytest.fixture\ndef batch(batch):\n    return BATCH * batch\n"
    moved = edited(TEST, fixture, "")
    moved = {**moved, TEST: moved[TEST].replace("BATCH = 64", "")}
    moved["tests/conftest.py"] = f"import pytest\nBATCH = 64\n{fixture}"
    assert forms(moved, *STEP) == forms(FILES, *STEP)


def test_the_code_under_test_is_not_part_of_it():
    beside = "from demo import work\n\n\ndef test_step(perf):\n    perf(work)\n"
    for folder in ("tests", "src/demo", "demo/perf"):
        texts = [{"tests/test_step.py": beside, f"{folder}/demo.py": f"work = {size}"} for size in (1, 2)]
        # The same name in a folder of tests is a helper of theirs.
        assert (forms(texts[0], *STEP) == forms(texts[1], *STEP)) == (folder != "tests")


def test_the_step_of_the_tutorial_is_code_under_test():
    text = (Path(__file__).parents[3] / "docs/tutorials/first-regression.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"(?s)```python\n(.*?)```", text) if "def test_" in block)
    (before, after), *_ = re.findall(r"(?m)^```diff\n-(.*)\n\+(.*)$", text)
    assert before in code
    kept, slower, removed = (
        forms({TEST: each}, "test_train_step")
        for each in (code, code.replace(before, after), code.replace(", items=64", ""))
    )
    assert kept == slower != removed


def test_a_file_without_the_test_has_no_definition():
    assert forms(FILES, "test_gone") is None
    assert forms(FILES, "TestOf", "test_gone") is None
    assert forms(FILES, "TestGone", "test_method") is None
    assert forms({}, *STEP) is None
    assert forms({TEST: "def test_step(:"}, *STEP) is None


@pytest.mark.parametrize(
    "text",
    [
        "from tests.test_step import test_step",
        "from .test_step import *\ntest_step = test_step",
        "import tests.test_step\ntest_step = tests.test_step.test_step",
        "class A(A): pass\ntest_step = A",
        "def test_step(test_step): test_step()",
        "import pytest\n@pytest.fixture\ndef a(a, test_step): pass\ndef test_step(a): a.a.a",
        "test_step = lambda perf: perf(test_step)",
        "pytest_plugins = ['tests.test_step', 3]\nfor test_step in []: pass",
        "def test_step(perf):\n    from . import test_step, gone\n    import os.path as p\n    p.join(test_step.x)",
    ],
)
def test_what_refers_to_itself_ends(text):
    found = forms({TEST: text, "tests/conftest.py": "from tests.test_step import *"}, *STEP)
    assert found is not None
