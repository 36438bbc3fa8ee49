"""Which files a process is seen to read: each case in a process of its own, since an audit hook stays."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap

import pytest

BEGIN = """
import json, os, sys
from pathlib import Path
from pytest_perfdl.workers.files_read import Reads
reads = Reads(sys.argv[1], watch=len(sys.argv) > 2)
os.chdir(sys.argv[1])
"""
END = """
found = sorted(os.path.relpath(each, os.path.realpath(sys.argv[1])) for each in reads.files())
print("", json.dumps(found), sep=os.linesep)
"""


@pytest.fixture
def seen(tmp_path):
    """The files below a folder that some code is seen to read."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (folder / name).write_text("some")
    (tmp_path / "outside.txt").write_text("some")

    def run(code, folder=folder, *, watch=False, **variables):
        text = BEGIN + textwrap.dedent(code) + END
        command = [sys.executable, "-c", text, str(folder), *(["watch"] if watch else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_nothing(seen):
    assert seen("open('../outside.txt').read(); Path('a.txt').exists(); os.listdir()") == []


def test_walks_over_all_objects_are_counted(seen):
    """Frozen objects would be left out of them, so steps that walk are measured with nothing frozen."""
    code = "import gc; gc.get_objects(); gc.get_referrers(code := []); gc.get_count(); id(code)"
    assert seen(f"{code}\nopen('abc'[reads.object_walks] + '.txt').read()") == ["c.txt"]


def test_a_walk_of_this_package_is_none_of_the_steps(seen):
    code = "from pytest_perfdl.measure.memory_pass import held_storages; held_storages()"
    assert seen(f"{code}\nopen('abc'[reads.object_walks] + '.txt').read()") == ["a.txt"]


def test_code_that_is_run_from_other_folders(seen, tmp_path):
    """Without being a module: by `runpy`, or by `exec` of a file."""
    (tmp_path / "outside.py").write_text("1")
    code = "import runpy; runpy.run_path('../outside.py'); reads.files = reads.elsewhere"
    found = seen(code)
    assert "../outside.py" in found
    assert any(".so" in each for each in found)
    assert not {"../outside.txt", "a.txt"}.intersection(found)


@pytest.mark.parametrize(
    "code",
    [
        "open('a.txt').read()",
        "open(Path('a.txt').absolute(), 'rb').read()",
        "open(b'a.txt', 'rb').read()",
        "os.close(os.open('a.txt', os.O_RDONLY))",
        "import numpy; numpy.memmap('a.txt', dtype='u1', mode='r')",
    ],
    ids=["relative", "absolute", "bytes", "descriptor", "mapped"],
)
def test_files_that_are_opened(seen, code):
    assert seen(code) == ["a.txt"]


def test_files_that_are_opened_while_a_module_is_loaded(seen, tmp_path):
    for name, text in (
        ("folder/own_code", "import some_lib"),
        ("site-packages/some_lib", "open('a.txt'); import more_lib"),
        ("site-packages/more_lib", "open('b.txt')\ntry: open('gone.txt')\nexcept OSError: pass"),
    ):
        (tmp_path / f"{name}.py").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    code = """
        sys.path += [".", "../site-packages"]
        # The test's own code has read the file in the same way already.
        open("a.txt"), open("c.txt")
        import own_code
        open("c.txt")
        found = {(name, Path(file).name) for name, file in reads.at_import() if name != "own_code"}
        assert found == {("some_lib", "a.txt"), ("some_lib", "b.txt"), ("more_lib", "b.txt")}, found
    """
    assert seen(code)


def test_what_the_process_writes_itself_is_not_read(seen):
    code = """
    Path("new.txt").write_text("some")
    Path("new.txt").read_text()
    open("b.txt", "a").close()
    open("b.txt").close()
    open("c.txt", "r+").close()
    open("a.txt").close()
    """
    assert seen(code) == ["a.txt"]


def test_forked_children_are_seen_too(seen):
    code = """
    if not os.fork():
        open("a.txt").close()
        open("b.txt", "w").close()
        os._exit(0)
    os.wait()
    open("b.txt").close()
    """
    assert seen(code) == ["a.txt"]


def test_a_child_that_closes_everything_writes_nowhere(seen, tmp_path):
    code = """
    victim = Path("../victim.txt")
    if not os.fork():
        os.closerange(3, 64)
        held = [os.open(victim, os.O_RDWR | os.O_CREAT) for _ in range(20)]
        open("a.txt").close()
        os._exit(0)
    os.wait()
    """
    assert seen(code) == []
    assert (tmp_path / "victim.txt").read_text() == ""


@pytest.mark.long
def test_a_folder_behind_a_link(seen, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert seen("open('a.txt').close()", tmp_path / "link") == ["a.txt"]
    assert seen(f"open({str(tmp_path / 'link' / 'b.txt')!r}).close()", tmp_path / "link") == ["b.txt"]


def test_odd_names_raise_nothing(seen):
    code = """
    for name in ("no such file", b"\\xff", "\\0", 10**6):
        try:
            open(name)
        except (OSError, ValueError):
            pass
    """
    assert seen(code) == ["no such file", "\udcff"]


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """A library of C without anything in it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("library") / "w.so"
    subprocess.run([compiler, "-shared", "-x", "c", "-o", path, "/dev/null"], check=True)
    return path


@pytest.mark.parametrize(
    "code",
    [
        "import ctypes; ctypes.CDLL('./w.so')",
        "import ctypes; handle = ctypes.CDLL('./w.so')._handle; import _ctypes; _ctypes.dlclose(handle)",
        "import ctypes; ctypes.PyDLL(Path('w.so').absolute())",
    ],
    ids=["loaded", "closed again", "for Python"],
)
def test_libraries(seen, tmp_path, library, code):
    shutil.copy(library, tmp_path / "folder/w.so")
    assert seen(code) == ["w.so"]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells what is mapped")
def test_what_compiled_code_maps(seen, tmp_path, library):
    # The dynamic linker opens what a library needs; no event tells of it.
    shutil.copy(library, tmp_path / "folder/w.so")
    built = tmp_path / "folder/needs.so"
    subprocess.run(
        ["cc", "-shared", "-x", "c", "-o", built, "/dev/null", "-x", "none", "-Wl,--no-as-needed", "w.so"],
        cwd=tmp_path / "folder",
        check=True,
    )
    assert seen("import ctypes; ctypes.CDLL('./needs.so')", LD_LIBRARY_PATH=str(tmp_path / "folder")) == [
        "needs.so",
        "w.so",
    ]


@pytest.mark.parametrize("name", ["'a.db'", "Path('a.db')", "'file:a.db?mode=ro', uri=True"])
def test_databases(seen, tmp_path, name):
    sqlite3.connect(tmp_path / "folder/a.db").execute("create table t (x)").connection.close()
    code = f"import sqlite3; sqlite3.connect({name}).execute('select * from t')"
    assert seen(code) == ["a.db"]


@pytest.fixture
def unnoted(seen):
    """The files that some code opens without our noting them."""
    return lambda code, **variables: seen(f"{code}\nreads.files = reads.unnoted", watch=True, **variables)


needs_inotify = pytest.mark.skipif(sys.platform != "linux", reason="Linux tells what is opened")


@needs_inotify
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("open('a.txt').read()", []),
        ("import subprocess; subprocess.run(['cat', 'a.txt'], check=True)", ["a.txt"]),
        ("import torch; torch.from_file('a.txt', size=4, dtype=torch.uint8)", ["a.txt"]),
        ("import subprocess; subprocess.run(['cat', 'deep/er/d.txt'], check=True)", ["deep/er/d.txt"]),
        ("import subprocess; subprocess.run(['ls', '-R', '.'], check=True)", []),
        ("import subprocess; subprocess.run(['cat', '../outside.txt'], check=True)", []),
        ("import subprocess; subprocess.run(['cat', '.git/config'], check=True)", []),
        ("import subprocess; subprocess.run(['cat', 'env/lib.py'], check=True)", []),
        ("open('new.txt', 'w').close(); import subprocess; subprocess.run(['cat', 'new.txt'], check=True)", []),
    ],
    ids=["noted", "a started process", "C++", "deeper", "listed", "outside", "git's", "an environment", "written"],
)
def test_what_was_opened_without_being_noted(unnoted, tmp_path, code, expected):
    for name in ("deep/er/d.txt", ".git/config", "env/pyvenv.cfg", "env/lib.py"):
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("some")
    assert unnoted(code) == expected


@needs_inotify
@pytest.mark.parametrize(
    "code",
    [
        "import pytest_perfdl.workers.files_read as m; m._MOST = 1; [open(n).close() for n in ('a.txt', 'b.txt')]",
        "os.closerange(3, 64)",
        "reads._watch = m._FolderWatch('/nowhere')",
        "m._MOST_ENTRIES = 1; reads._watch = m._FolderWatch('.')",
        "m.sys.platform = 'darwin'; reads._watch = m._FolderWatch('.'); m.sys.platform = 'linux'",
    ],
    ids=["too many files", "closed", "no folder", "too many folders", "another system"],
)
def test_it_is_unknown_what_was_opened(seen, code):
    code = f"import pytest_perfdl.workers.files_read as m\n{code}\nunknown = reads.unnoted() is None\n"
    assert seen(f"{code}reads.files = lambda: {{str(unknown)}}", watch=True)[0].endswith("True")


@pytest.mark.long
@needs_inotify
def test_more_is_opened_than_the_system_keeps(seen):
    code = """
    import subprocess
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most <= 2**15:
        # Equal events in succession are one.
        subprocess.run([sys.executable, "-c", f"for i in range({most}): open('a.txt').close(); open('b.txt').close()"])
    reads.files = lambda: {str(reads.unnoted() is None or most > 2**15)}
    """
    assert seen(code, watch=True)[0].endswith("True")
