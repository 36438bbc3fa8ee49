"""Which files a process is seen to read: each case in a process of its own, since an audit hook stays."""

import json
import subprocess
import sys
import textwrap

import pytest

BEGIN = """
import json, os, sys
from pathlib import Path
from pytest_perfdl.workers.files_read import Reads
reads = Reads(sys.argv[1])
os.chdir(sys.argv[1])
"""
END = """
print(json.dumps(sorted(os.path.relpath(each, os.path.realpath(sys.argv[1])) for each in reads.files())))
"""


@pytest.fixture
def seen(tmp_path):
    """The files below a folder that some code is seen to read."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (folder / name).write_text("some")
    (tmp_path / "outside.txt").write_text("some")

    def run(code, folder=folder):
        text = BEGIN + textwrap.dedent(code) + END
        done = subprocess.run([sys.executable, "-c", text, str(folder)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_nothing(seen):
    assert seen("open('../outside.txt').read(); Path('a.txt').exists(); os.listdir()") == []


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
