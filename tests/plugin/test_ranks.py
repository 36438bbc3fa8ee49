"""Tests with `ranks=`: launched, measured in lockstep, and ended with one line when a rank dies, hangs or fails."""

import gzip
import json
import os
import re
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest
from plugin.project import NOT_JUDGED, SHORT, Project

pytestmark = pytest.mark.long

STEPS = """
    import os
    import signal
    import time
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist

    HERE = Path(__file__).parent
    OF_THIS_MACHINE = ("0100007F:", "00000000000000000000000001000000:")


    def open_to_others():
        # Where this process or the one that started it listens, other than on the loopback interface.
        own = [each for pid in (os.getpid(), os.getppid()) for each in Path(f"/proc/{pid}/fd").iterdir()]
        sockets = {os.readlink(each) for each in own if os.path.lexists(each)}
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for _, address, _, state, *_, inode in (line.split()[:10] for line in open(table).readlines()[1:]):
                if state == "0A" and f"socket:[{inode}]" in sockets and not address.startswith(OF_THIS_MACHINE):
                    yield address


    @pytest.fixture
    def step(perf):
        # The group is there when fixtures run.
        total = torch.zeros(64)
        (HERE / f"pid-{perf.rank}-{os.getpid()}").touch()
        for address in open_to_others():
            (HERE / f"open-{address}").touch()

        def run(number=[0]):
            number[0] += 1
            dist.all_reduce(total)
            return number[0]

        return run
"""
FAILING = (
    STEPS
    + """
    @pytest.mark.perf(ranks=2)
    def test_killed(perf, step):
        def killed():
            if perf.rank == 1 and step() == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            elif perf.rank == 0:
                step()

        perf(killed)


    @pytest.mark.perf(ranks=2)
    def test_hangs(perf, step):
        def hangs():
            if step() == 5 and perf.rank == 1:
                time.sleep(600)

        perf(hangs)


    @pytest.mark.perf(ranks=2)
    def test_raises(perf, step):
        if perf.rank == 1:
            raise ValueError("this shard is empty")
        perf(step)


    @pytest.mark.perf(ranks=2)
    def test_only_the_first_measures(perf, step):
        if perf.rank == 0:
            perf(step)


    @pytest.mark.perf(ranks=2, backend="nccl")
    def test_without_its_backend(perf, step):
        perf(step)


    @pytest.mark.perf(ranks=2)
    def test_skipped(perf, step):
        pytest.skip("not here")
"""
)


def is_alive(pid):
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids(project):
    return {int(path.name.rpartition("-")[2]) for path in project.root.glob("pid-*")}


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """Every way to fail, in one run; how long each test took, and its message."""
    project = Project(tmp_path_factory.mktemp("failing") / "project", "perf_rank_timeout = 5")
    project.write("test_step.py", FAILING)
    finished = project.run("--perf", *NOT_JUDGED, "--perf-json=run.json", "--durations=0", "-rA")
    return project, finished, " ".join(finished.output.split())


def test_a_dead_rank_is_named_with_its_signal_and_its_step(failed):
    _, _, said = failed
    assert "rank 1 of 2 was killed by SIGKILL in the warm-up steps, after 4 steps" in said


def test_a_hanging_rank_is_told_from_those_that_wait_for_it(failed):
    _, _, said = failed
    assert re.search(
        r"rank 1 of 2 made no progress for 5 s \(--perf-rank-timeout\) in the warm-up steps, after 4 steps: it is at "
        r"test_step\.py:\d+ in hangs; rank 0 of 2 waits in a collective at test_step\.py:\d+ in \w+",
        said,
    ), said


def test_a_rank_that_raises_is_the_failure_and_not_those_that_wait(failed):
    _, finished, said = failed
    assert "ValueError: this shard is empty" in said
    assert "rank 1 of 2 failed outside of perf(...); rank 0 of 2 waits for the other ranks" in said
    assert "Connection closed" not in finished.output


def test_ranks_must_make_the_same_calls(failed):
    _, _, said = failed
    assert "rank 0 of 2 called perf(...), but rank 1 of 2 ended its call phase" in said


def test_a_missing_backend_is_one_line(failed):
    _, _, said = failed
    assert "backend='nccl' needs CUDA, which is not available: use backend='gloo'" in said


def test_a_skip_is_a_skip(failed):
    _, finished, _ = failed
    assert finished.summary() == "4 failed, 1 skipped, 1 error"


def test_nothing_is_left_of_any_of_them(failed):
    project, _, _ = failed
    assert len(pids(project)) >= 10
    assert not [pid for pid in pids(project) if is_alive(pid)]


PASSING = (
    STEPS
    + """
    @pytest.mark.perf(ranks=2)
    def test_reduces(perf, step):
        kept = []

        def reduces():
            if perf.rank == 1:
                kept.append(torch.ones(8))  # what one rank has to look at longer, all do
            step()

        perf(reduces, items=8)
        perf.metric("group_size", perf.group.size())
        assert perf.world_size in (1, 2) and 0 <= perf.rank < perf.world_size


    @pytest.mark.perf(ranks=[1, 2, 3])
    def test_scales(perf, step):
        perf(step)
        assert perf.world_size == 1 or dist.get_world_size() == perf.world_size
"""
)


def test_a_smoke_run_is_a_group_of_one_process(tmp_path):
    project = Project(tmp_path / "project")
    project.write("test_step.py", PASSING)
    finished = project.run()
    assert finished.code == 0, finished.output
    assert finished.summary().startswith("4 passed")
    assert {path.name.split("-")[1] for path in project.root.glob("pid-*")} == {"0"}
    assert not [path.name for path in project.root.glob("open-*")]


def test_ranks_are_measured_together_and_counted(tmp_path):
    project = Project(tmp_path / "project")
    project.write("test_step.py", PASSING)
    tests = [f"test_step.py::{name}" for name in ("test_reduces", "test_scales[ranks=3]")]
    recorded = project.run("--perf-update", *SHORT, "--perf-repeats=1", *tests)
    assert recorded.code == 0, recorded.output
    # Whoever reaches a store of torch's can change what the ranks read there, and run code in its launcher.
    assert not [path.name for path in project.root.glob("open-*")]
    compared = project.run("--perf", *NOT_JUDGED, "--perf-json=run.json", "-k", "reduces")
    assert compared.code == 0, compared.output

    (test,) = json.loads((project.root / "run.json").read_text())["tests"]
    assert (test["ranks"], test["verdict"] in ("unchanged", "inconclusive", "suspect")) == (2, True)
    assert test["record"]["plan"]["ranks"] == 2
    metrics = {name: each["new"] for name, each in test["metrics"].items()}
    # Each of two ranks reduces 64 floats once a step; the barriers between blocks are no part of it.
    assert (metrics["collectives"], metrics["collective_bytes"]) == (2, 2 * 256)
    assert metrics["group_size"] == 2
    # Items of both ranks.
    assert metrics["throughput"] == pytest.approx(16e9 / metrics["block_time"], rel=0.01)
    (times,) = test["rank_times"]
    assert [len(times["new"][name]) for name in ("ranks", "waits_ns")] == [2, 2]
    (three,) = project.root.glob("baselines/*/test_step/test_scales*3*.json")
    stored = json.loads(three.read_text())
    assert stored["plan"]["ranks"] == 3
    notes = [finding["message"] for finding in stored["integrity"] if finding["code"] == "oversubscribed"]
    cores = len(os.sched_getaffinity(0))
    assert notes == ([f"3 ranks share {cores} CPUs, so their times include waiting for a CPU"] if cores < 3 else [])


SLOW_RANK = """
    import time

    import pytest
    import torch
    import torch.distributed as dist


    def work(rank):
        time.sleep(0.01)


    @pytest.mark.perf(ranks=2)
    def test_step(perf):
        total = torch.zeros(64)

        def step():
            work(perf.rank)
            dist.all_reduce(total)

        perf(step)


    @pytest.mark.perf(ranks=2)
    def test_alternatives(perf):
        total = torch.zeros(64)

        def twice():
            dist.all_reduce(total)
            time.sleep(0.02)

        def once():
            dist.all_reduce(total)
            time.sleep(0.002)

        perf.compare(twice, once).assert_faster(by="20%")
"""


def test_a_slow_rank_is_the_cause_and_not_the_others_waiting(tmp_path):
    project = Project(tmp_path / "project")
    # One round is to be enough for a suspect: the cause of what is undecided is not asked for.
    project.write("conftest.py", "from pytest_perfdl.run import confirmation\n\nconfirmation.LEAST_ROUNDS = 1\n")
    project.write("test_step.py", SLOW_RANK)
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Two equal ranks"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *command], cwd=project.root, check=True)
    project.write("test_step.py", SLOW_RANK.replace("sleep(0.01)", "sleep(0.01 + 0.02 * rank)"))
    # What is slow is in the test file, of which each side is to run its own.
    own = ("-o", "perf_against_tests=own")
    finished = project.run("--perf-against=HEAD", *own, *SHORT, "--perf-budget=1", "--perf-json=run.json")
    assert "INTERNALERROR" not in finished.output

    alternatives, step = json.loads((project.root / "run.json").read_text())["tests"]
    if step["id"].endswith("alternatives"):
        alternatives, step = step, alternatives
    # A budget of a second holds as many rounds as there must be, which are too few for certainty.
    assert alternatives["verdict"] in ("unchanged", "inconclusive"), finished.output
    assert (step["verdict"], step["ranks"]) == ("suspect", 2), finished.output
    assert "the ranks of a process group are launched together" in step["rounds"]
    assert step["blame"][0]["rank"] == 1
    (compared,) = step["rank_times"]
    assert (compared["rank"], compared["cause"]) == (1, "host")
    # Rank 0 waits for rank 1 by what that takes longer: 20 ms, or less where other work delays rank 0.
    assert compared["new"]["waits_ns"][0][1] > compared["base"]["waits_ns"][0][1]
    assert "rank 1 of 2: longer time in Python" in " ".join(finished.output.split())

    # Both sides were measured, so that the report shows a step of both ranks of each, on one clock.
    (traces,) = step["traces"]
    for role in ("base_ranks", "ranks"):
        merged = json.loads(gzip.decompress((project.root / "perf-report" / traces[role]).read_bytes()))
        events = [one for one in merged["traceEvents"] if one["ph"] == "X"]
        steps = [(one["pid"], one["name"]) for one in events if one["name"].startswith("ProfilerStep#")]
        assert [pid for pid, _ in sorted(steps)] == [0, 1]
        assert len({name for _, name in steps}) == 1
        # Each reduces once a step, and no rank is done before the other has started.
        reduces = [one for one in events if one["name"] == "gloo:all_reduce"]
        assert sorted(one["pid"] for one in reduces) == [0, 1]
        assert max(one["ts"] for one in reduces) < min(one["ts"] + one["dur"] for one in reduces)
    # Rank 0 waits for rank 1, which sleeps 20 ms longer.
    waits = [(one["pid"], one["name"]) for one in events if one.get("cat") == "wait" and one["dur"] > 10_000]
    assert waits == [(0, "wait for rank 1")]


def test_pytest_that_is_killed_leaves_no_rank(tmp_path):
    project = Project(tmp_path / "project", "perf_rank_timeout = 300")
    project.write("test_step.py", FAILING)
    running = project.start("--perf", *NOT_JUDGED, "-k", "hangs")
    deadline = time.monotonic() + 120
    while len(pids(project)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(pids(project)) == 2, running.output
    running.process.send_signal(signal.SIGKILL)
    running.process.wait()
    deadline = time.monotonic() + 10
    while any(map(is_alive, pids(project))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in pids(project) if is_alive(pid)]


def script(project, name, text):
    path = project.write(name, text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_launchers_on_two_nodes_meet(tmp_path):
    project = Project(tmp_path / "project")
    project.write("test_step.py", PASSING)
    # As srun does with two tasks: the same command twice.
    srun = script(project, "srun", '#!/bin/sh\n"$@" &\n"$@" &\nwait\n')
    finished = project.run(
        "--perf",
        *NOT_JUDGED,
        f"--perf-launch={srun}",
        "--perf-nodes=2",
        f"--perf-rendezvous=127.0.0.1:{free_port()}",
        "-k",
        "reduces",
    )
    assert finished.code == 0, finished.output
    assert {path.name.split("-")[1] for path in project.root.glob("pid-*")} == {"0", "1"}


@pytest.mark.parametrize(
    "options, message",
    [
        (["--perf-launch=no-such-command"], "--perf-launch: no-such-command cannot be started: No such file"),
        (
            ["--perf-launch={root}/three"],
            "the launcher started 3 ranks, but the test has ranks=2: --perf-launch must start one launcher on each of",
        ),
        (["--perf-launch={root}/killed"], "the launcher of the ranks was killed by SIGKILL before 2 ranks had started"),
        (["--perf-launch={root}/broken"], "the launcher of the ranks exited with code 7 before 2 ranks had started"),
        (["--perf-rendezvous=127.0.0.1:{port}"], "port {port} of 127.0.0.1 is in use: choose another one for"),
    ],
)
def test_a_launch_that_cannot_work_is_one_line(tmp_path, options, message):
    project = Project(tmp_path / "project", "perf_rank_timeout = 30")
    project.write("test_step.py", PASSING)
    script(
        project,
        "three",
        """\
        #!/usr/bin/env python3
        import os, sys
        os.execvp(sys.argv[1], [each.replace("per-node=2", "per-node=3") for each in sys.argv[1:]])
        """,
    )
    script(project, "killed", "#!/bin/sh\nkill -KILL $$\n")
    script(project, "broken", "#!/bin/sh\necho quota exceeded >&2\nexit 7\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        known = {"root": project.root, "port": taken.getsockname()[1]}
        finished = project.run("--perf", *NOT_JUDGED, *(each.format(**known) for each in options), "-k", "reduces")
    said = " ".join(finished.output.split())
    assert finished.code == 1
    assert message.format(**known) in said, said
    assert "Traceback" not in said
    assert ("quota exceeded" in said) == ("broken" in options[0])


@pytest.mark.parametrize(
    "marker, message",
    [
        ("ranks=0", "ranks= must be an integer of at least 1, got 0"),
        ("ranks=[1, 2]", "must be at least three different numbers above 0"),
        ("backend='gloo'", "backend= is the backend of a process group: set ranks= as well"),
        ("ranks=3", "ranks=3 cannot be divided among 2 nodes (--perf-nodes)"),
    ],
)
def test_marks_that_cannot_work_are_refused(inner, marker, message):
    inner.makepyfile(f"import pytest\n\n@pytest.mark.perf({marker})\ndef test_step(): pass")
    result = inner.runpytest("--perf", "--perf-launch=srun", "--perf-nodes=2", "--perf-rendezvous=a:29500")
    assert result.ret != 0
    assert message in " ".join(" ".join(result.outlines + result.errlines).split())


@pytest.mark.parametrize(
    "options, message",
    [
        (["--perf-rendezvous=nowhere"], "expected HOST:PORT, such as node0:29500"),
        (["--perf-nodes=2"], "several nodes also need --perf-launch"),
        (["--perf-launch='"], "No closing quotation"),
        (["--perf-rank-timeout=0"], "expected a number of seconds above 0"),
    ],
)
def test_options_that_cannot_work_are_refused(inner, options, message):
    inner.makepyfile("def test_step(): pass")
    result = inner.runpytest("--perf", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in " ".join(result.errlines)
