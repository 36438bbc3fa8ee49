"""What is read of the kernel's files, from files as they may be."""

import os
import threading

import pytest

from pytest_perfdl.machine import proc


def written(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_nothing_is_known_of_another_system(tmp_path):
    known = (proc.memory, proc.processors, proc.processor_times, proc.throttle_counts)
    assert not any(each(tmp_path) for each in known)
    assert (proc.swapped_pages(tmp_path), proc.clock_mhz(tmp_path), proc.process(tmp_path)) == (None, None, None)
    assert not [*proc.processes(tmp_path), *proc.control_groups("cpu", tmp_path)]


def test_sizes_are_bytes_and_other_lines_are_left_out(tmp_path):
    written(tmp_path, {"proc/meminfo": "MemTotal:  8 kB\nHugePages_Free: 2\nodd\nempty:\nword: much\n"})
    assert proc.memory(tmp_path) == {"MemTotal": 8192, "HugePages_Free": 2048}


@pytest.mark.parametrize(
    ("lines", "folders"),
    [
        ("0::/user/job\n", ["user/job", "user", ""]),
        ("0::/../../user/job\n", ["user/job", "user", ""]),
        ("4:cpu,cpuacct:/job\n3:memory:/other\n", ["cpu,cpuacct/job", "cpu,cpuacct"]),
        ("4:cpuacct,cpu:/job\n0::/\n", ["cpu,cpuacct/job", "cpu,cpuacct", ""]),
        ("3:memory:/job\n", []),
    ],
)
def test_groups_come_from_the_own_one_outwards(tmp_path, lines, folders):
    top = tmp_path / "sys/fs/cgroup"
    for name in ("user/job", "cpu,cpuacct/job", "memory/job"):
        (top / name).mkdir(parents=True)
    written(tmp_path, {"proc/self/cgroup": lines})
    found = list(proc.control_groups("cpu", tmp_path))
    assert [each.folder for each in found] == [top / name for name in folders]
    assert {each.is_unified for each in found} <= {"0::" in lines} or len(folders) == 3


@pytest.mark.skipif(not proc.read(proc.ROOT / "proc/self/stat"), reason="Linux only")
def test_the_own_process_is_one_of_all():
    own = dict(proc.processes())[os.getpid()]
    assert (own.group, own.state) == (os.getpgrp(), "R")
    assert os.getpid() == proc.tasks()[0]


@pytest.mark.skipif(not proc.read(proc.ROOT / "proc/self/stat"), reason="Linux only")
def test_the_first_thread_is_first_though_its_number_is_not_the_least(monkeypatch):
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        *others, last = sorted(proc.tasks())
        monkeypatch.setattr(proc.os, "getpid", lambda: last)
        assert others
        assert proc.tasks() == [last, *others]
    finally:
        done.set()
        thread.join()
