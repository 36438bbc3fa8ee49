"""Parts of the hour on a machine with a GPU go on where they were stopped."""

import json
import math
import subprocess
from types import SimpleNamespace

import pytest
from gpu import hour as module
from gpu.__main__ import recorded
from gpu.hour import Hour, Item


@pytest.fixture
def hour(tmp_path, monkeypatch):
    monkeypatch.setattr(Hour, "device", lambda self: "a device")
    return Hour(tmp_path, stand_in=False)


def test_what_is_done_is_not_run_again_and_what_failed_or_is_left_is(hour, capsys):
    ran, left = [], iter([60, 15, 0])

    def noted(name, **found):
        return Item(name, lambda _: ran.append(name) or found)

    def in_pieces(_):
        ran.append("pieces")
        still = next(left)
        return {"ok": still == 0, "left": still}

    items = noted("good", ok=True), noted("bad", ok=False), Item("in pieces", in_pieces)
    assert [hour.part(2, iter(items)) for _ in range(3)] == [False] * 3
    assert ran == ["good", "bad", "pieces", "bad", "pieces", "bad", "pieces"]
    said = capsys.readouterr().out
    assert "in pieces: 60 left, run the same command again" in said
    assert "in pieces: 15 left, run the same command again" in said
    assert json.loads((hour.out / "part-2/in-pieces.json").read_text())["ok"]
    table = (hour.out / "summary.md").read_text()
    assert "| 2 | bad | **failed** |" in table
    assert "| 2 | in pieces | ok |" in table


def test_what_runs_when_the_time_is_over_is_cut_off_and_begins_anew(hour, monkeypatch, capsys):
    # The part ends a tenth of a second after its first item has begun.
    now = iter([0.0, 479.9, 479.9, 479.9, 480.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(now)))
    items = [Item(name, lambda hour: {"ok": hour.run("-c", "while True: pass")[0] == 0}) for name in ("long", "next")]
    assert not hour.part(1, iter(items))
    said = capsys.readouterr().out
    assert "long: cut off, the part's time is over; run the same command again" in said
    assert "next: not begun" in said
    assert list((hour.out / "part-1").iterdir()) == []


def test_a_program_without_an_end_ends_by_itself(hour):
    assert math.isinf(hour.ends)
    assert hour.run("-c", "print(1)") == (0, "1\n")
    with pytest.raises(subprocess.TimeoutExpired):
        Hour(hour.out, stand_in=False, ends=0.0).run("-c", "while True: pass")


@pytest.mark.long
def test_traces_of_two_processes_are_recorded_and_read(tmp_path):
    found = recorded(Hour(tmp_path, stand_in=True), "streams", "streams")
    assert found["ok"], found
    assert found["device events"] > 0
    assert sorted(file.name for file in (tmp_path / "traces").iterdir()) == ["streams-0.json", "streams-1.json"]
