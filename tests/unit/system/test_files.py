"""Files are written whole, and all of them or none."""

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_perfdl.system import files
from pytest_perfdl.system.files import changed, replacing, write_files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_differs_is_written_and_the_rest_left_alone(tmp_path):
    same, other, new = (tmp_path / name for name in ("same", "other", "new"))
    same.write_bytes(b"1")
    other.write_bytes(b"1")
    before = same.stat().st_ino
    differing = changed({same: b"1", other: b"2", new: b"3"})
    assert list(differing) == [other, new]
    write_files(differing, flush=True)
    assert [path.read_bytes() for path in (same, other, new)] == [b"1", b"2", b"3"]
    assert same.stat().st_ino == before
    assert names(tmp_path) == ["new", "other", "same"]


def test_they_are_as_readable_as_any_file_of_the_user(tmp_path):
    mask = os.umask(0o027)
    try:
        write_files({tmp_path / "made": b"1"})
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o640


def test_of_several_all_stay_as_they_were_where_one_cannot_be_written(tmp_path):
    first = tmp_path / "first"
    first.write_bytes(b"old")
    with pytest.raises(OSError) as caught:
        write_files({first: b"new", tmp_path / "missing" / "second": b"new"})
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, str(tmp_path / "missing" / "second"))
    assert first.read_bytes() == b"old"
    assert names(tmp_path) == ["first"]


def test_a_full_disk_names_the_file_that_was_meant(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError) as caught:
        write_files({tmp_path / "made": b"1"}, flush=True)
    assert caught.value.filename == str(tmp_path / "made")
    assert names(tmp_path) == []


def test_names_of_temporary_files_are_told_from_all_others():
    assert files.TEMPORARY.fullmatch(files.temporary_name())
    assert not files.TEMPORARY.fullmatch(".perfdl-notes.tmp")
    assert files.temporary_name() != files.temporary_name()


def test_what_is_not_in_memory_at_once_takes_its_place_when_it_is_complete(tmp_path):
    path = tmp_path / "big"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"1")
        file.flush()
        assert path.read_bytes() == b"old"
        file.write(b"2")
    assert path.read_bytes() == b"12"
    assert names(tmp_path) == ["big"]


def test_what_is_not_completed_leaves_what_was_there(tmp_path):
    path = tmp_path / "big"
    path.write_bytes(b"old")

    def fail():
        with replacing(path) as file:
            file.write(b"1")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as raised:
        fail()
    assert raised.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["big"]


def test_the_file_that_has_no_folder_is_named(tmp_path):
    path = tmp_path / "absent" / "big"
    with pytest.raises(FileNotFoundError) as raised, replacing(path):
        pass
    assert raised.value.filename == str(path)


@pytest.mark.parametrize("write", ["write_files", "replacing"])
def test_a_pipe_is_written_to_and_stays(tmp_path, write):
    pipe, beside = tmp_path / "pipe", tmp_path / "beside"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    if write == "write_files":
        write_files({pipe: b"text", beside: b"more"})
        assert beside.read_bytes() == b"more"
    else:
        with replacing(pipe) as file:
            file.write(b"text")
    reader.join(10)
    assert read == [b"text"]
    assert pipe.is_fifo()


def test_what_stands_for_a_descriptor_is_written_to(tmp_path):
    """Where stdout is a file, `/dev/stdout` is one, too: it must not be replaced."""
    text = (
        "from pathlib import Path; from pytest_perfdl.system.files import *; write_files({Path('/dev/stdout'): b'x'})"
    )
    done = tmp_path / "done"
    with done.open("wb") as file:
        subprocess.run([sys.executable, "-c", text], stdout=file, check=True)
    assert done.read_bytes() == b"x"
    assert Path("/dev/stdout").is_symlink()
