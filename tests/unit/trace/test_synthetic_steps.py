"""The known figures of made traces, against a naive reading of their files: links by correlation, steps by time."""

import json
import random

import pytest

from unit.trace.data.synthetic_steps import SHAPES, drawn, make

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def found(text):
    """Walls, kernel times and counts by step, from the text alone."""
    rows, begun = [], {}
    for row in json.loads(text)["traceEvents"]:
        if row["ph"] == "B":
            begun.setdefault(row["tid"], []).append(row)
        elif row["ph"] == "E":
            start = begun[row["tid"]].pop()
            rows.append({**start, "dur": round(row["ts"] - start["ts"], 3)})
        elif row["ph"] == "X":
            rows.append(row)
    for row in rows:
        row["start"] = round(row["ts"] * 1000)
        row["end"] = row["start"] + round(row["dur"] * 1000)
    steps = [row for row in rows if row["cat"] == "user_annotation" and "ProfilerStep#" in row["name"]]
    bounds = {int(row["name"].split("#")[1]): (row["start"], row["end"]) for row in steps}

    def step_at(moment):
        return next((number for number, (start, end) in bounds.items() if start <= moment < end), None)

    calls = {row["args"]["correlation"]: row for row in rows if row["cat"] == "cuda_runtime"}
    device = [row for row in rows if row["cat"] in DEVICE]
    for row in device:
        call = calls.get(row["args"]["correlation"])
        row["step"] = None if call is None else step_at(call["start"])
    last = {
        number: max([end, *(row["end"] for row in device if row["step"] == number)])
        for number, (_, end) in bounds.items()
    }
    walls = {}
    for number, (start, end) in bounds.items():
        if not device:
            walls[number] = end - start
        elif number - 1 in bounds:
            walls[number] = last[number] - last[number - 1]
        else:
            # Sessions lie a second and more apart.
            carried = [
                row["end"] for row in device if row["step"] is None and start - 5e8 < row["start"] < last[number]
            ]
            walls[number] = last[number] - max([start, *carried])
    kernels = [row for row in device if row["cat"] == "kernel"]
    launches = [row for row in calls.values() if "Launch" in row["name"]]
    operators = [row for row in rows if row["cat"] == "cpu_op"]
    return {
        "walls": walls,
        "kernel_ns": {n: sum(row["end"] - row["start"] for row in kernels if row["step"] == n) for n in bounds},
        "kernels": {n: sum(row["step"] == n for row in kernels) for n in bounds},
        "operators": {n: sum(step_at(row["start"]) == n for row in operators) for n in bounds},
        "launches": {n: sum(step_at(row["start"]) == n for row in launches) for n in bounds},
        "total_ns": sum(row["end"] - row["start"] for row in kernels),
    }


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_what_is_known_of_a_made_trace_is_what_a_naive_reading_finds(shape):
    for seed in range(6):
        made = make(drawn(shape, random.Random(seed)), seed)
        read = found(made.text())
        assert {name: getattr(made.truth, name) for name in read} == read


def test_a_pipelined_job_begins_with_work_that_no_call_in_the_file_launched():
    shape = next(shape for shape in SHAPES if shape.name == "pipelined")
    made = make(shape, 1)
    carried = [row for row in made.rows if row["cat"] in DEVICE and row["_step"] is None]
    calls = {row["args"]["correlation"] for row in made.rows if row["cat"] == "cuda_runtime"}
    assert carried
    assert not calls & {row["args"]["correlation"] for row in carried}
    # The device is the slower one: once it runs, its steps are equally long, and the first window is one of them.
    walls = list(made.truth.walls.values())
    assert max(walls) / min(walls) < 1.05


def test_the_same_seed_makes_the_same_file():
    shape = drawn(SHAPES[3], random.Random(3))
    assert make(shape, 5).text() == make(shape, 5).text() != make(shape, 6).text()
