"""A test whose steps cannot end in time says so after its second step, with settings that work."""

import re

import pytest
from plugin.project import Project

TEST = """
    import time

    def step(at=[]):
        at.append(1)
        with open("steps", "w") as file:
            file.write(f"{len(at)}\\n")
        time.sleep(0.3)

    def test_speed_of_step(perf):
        perf(step)
"""
LIMITED = ("--perf", "--perf-fail-on=invalid", "--perf-budget=2400", "--perf-memory=off")


@pytest.mark.long
def test_the_settings_that_it_suggests_work(tmp_path):
    project = Project(tmp_path / "project")
    project.write("test_speed.py", TEST)
    stopped = project.run(*LIMITED, "--perf-timeout=15")
    said = " ".join(stopped.output.split())

    assert stopped.code == 1, stopped.output
    assert re.search(r"one step takes 30\d.\d ms; 63 steps need 19 s, more than --perf-timeout=15", said)
    assert project.note("steps") == ["2"]
    assert "Stack at timeout" not in said
    fewer, longer = re.search(r"add ((?:--perf-[a-z]+=\d+ ?)+), or set (--perf-timeout=\d+)", said).groups()
    for settings in (["--perf-timeout=15", *fewer.split()], [longer]):
        finished = project.run(*LIMITED, *settings)
        assert finished.code == 0, finished.output


@pytest.mark.long
def test_a_step_that_hangs_is_shown_by_its_own_frames(tmp_path):
    project = Project(tmp_path / "project")
    project.write("test_speed.py", TEST.replace("0.3", "600"))
    # Of a forked process, the stack would also have what forked it.
    hung = project.run(*LIMITED, "--perf-timeout=8", cold=True, CI="true")

    assert hung.code == 1
    assert ("the test did not finish within 8 s (--perf-timeout) at test_speed.py:8 in step") in " ".join(
        hung.output.split()
    )
    # On CI, pytest's short summary repeats the whole message of a failure.
    assert hung.output.count("Stack at timeout:") == 1
    _, _, stack = hung.output.partition("Stack at timeout:")
    frames = [line.split()[-1] for line in stack.splitlines() if line.startswith('  File "')]
    assert frames == ["step", "test_speed_of_step"]
    assert "/pluggy/" not in hung.output
