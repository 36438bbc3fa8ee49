"""Baselines on disk: what is written, what is left alone, and what people are told."""

import errno
import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from making import TEST, counted, invalid, record, rows, timed

from pytest_perfdl.baseline import files
from pytest_perfdl.baseline.files import Store
from pytest_perfdl.baseline.text import append, dump
from pytest_perfdl.model.errors import BaselineError
from pytest_perfdl.model.record import Call, Key

SLUG = "cpu-epyc-8c-1t"
RECORD = record({"step_time": timed(41_230_000), "ops": counted(3)}, rows=rows(mm=(2, 100)))
WHERE = f"baselines/{SLUG}/tests/perf/test_gpt/test_step[bf16]"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path, "baselines")


def tree(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in Path(root).rglob("*") if path.is_file()}


def refused(act, *says):
    with pytest.raises(BaselineError) as error:
        act()
    text = str(error.value)
    assert "\n" not in text
    for part in says:
        assert part in text
    return text


def with_digests(saved, exemplars):
    return replace(saved, exemplars={call: hashlib.sha256(data).hexdigest() for call, data in exemplars.items()})


def fwd_bwd():
    return record(calls=tuple(Call(name, {"ops": counted(1)}, (), (1,)) for name in ("fwd", "bwd", "")))


def test_a_baseline_that_lies_under_another_key_now_goes_with_its_traces(store):
    kept, moved = record(), record(key=Key("old-key", {}))
    store.save(kept, {"": b"trace"})
    written = store.save(moved, {"": b"trace"})
    assert sorted(store.remove(moved.test, "old-key")) == sorted(written)
    assert not any(path.exists() for path in written)
    assert store.load(kept.test, kept.key.slug) is not None
    assert store.remove(moved.test, "old-key") == ()


def test_what_was_saved_is_loaded(store, tmp_path):
    assert store.save(RECORD, {"": b"trace"}) == (
        tmp_path / f"{WHERE}.trace.json.gz",
        tmp_path / f"{WHERE}.json",
    )
    saved = with_digests(RECORD, {"": b"trace"})
    assert store.load(TEST, SLUG) == saved
    assert store.path(TEST, SLUG) == tmp_path / f"{WHERE}.json"
    assert tree(tmp_path) == {f"{WHERE}.json": dump(saved), f"{WHERE}.trace.json.gz": b"trace"}


def test_nothing_saved_is_nothing_loaded(store):
    assert store.load(TEST, SLUG) is None
    assert store.others(TEST, SLUG) == ()
    assert store.exemplars(TEST, SLUG) == ({}, ())


def test_an_absolute_folder_is_taken_as_it_is(tmp_path):
    store = Store(tmp_path / "project", str(tmp_path / "elsewhere"))
    store.save(RECORD, {})
    assert (tmp_path / "elsewhere" / SLUG).is_dir()
    (store.path(TEST, SLUG)).write_text("{")
    refused(lambda: store.load(TEST, SLUG), str(tmp_path / "elsewhere"))


def test_saving_what_was_loaded_writes_nothing(store, tmp_path):
    store.save(replace(RECORD, calls=(replace(RECORD.calls[0], series={"t": timed(1234.5678)}),)), {"": b"trace"})
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    inodes = {path: path.stat().st_ino for path in tmp_path.rglob("*")}
    assert store.save(store.load(TEST, SLUG), {"": b"trace"}) == ()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*")} == inodes


def test_only_what_changed_is_written(store, tmp_path):
    store.save(RECORD, {"": b"trace"})
    assert store.save(replace(RECORD, test_hash="new"), {"": b"trace"}) == (tmp_path / f"{WHERE}.json",)
    assert set(store.save(replace(RECORD, test_hash="new"), {"": b"other"})) == {
        tmp_path / f"{WHERE}.trace.json.gz",
        tmp_path / f"{WHERE}.json",
    }


def test_exemplars_are_found_by_call(store, tmp_path):
    store.save(fwd_bwd(), {"fwd": b"f", "": b"u"})
    found = {"fwd": tmp_path / f"{WHERE}.fwd.trace.json.gz", "": tmp_path / f"{WHERE}.trace.json.gz"}
    assert store.exemplars(TEST, SLUG) == (found, ())


def test_a_trace_of_another_day_is_no_exemplar(store, tmp_path):
    store.save(fwd_bwd(), {"fwd": b"f", "bwd": b"b"})
    other = tmp_path / f"{WHERE}.fwd.trace.json.gz"
    other.write_bytes(b"of another day")
    assert store.exemplars(TEST, SLUG) == ({"bwd": tmp_path / f"{WHERE}.bwd.trace.json.gz"}, (other,))


def test_a_trace_that_the_record_does_not_name_is_no_exemplar(store, tmp_path):
    store.save(RECORD, {"": b"trace"})
    store.path(TEST, SLUG).write_bytes(dump(RECORD))
    assert b"exemplars" not in dump(RECORD)
    assert store.exemplars(TEST, SLUG) == ({}, (tmp_path / f"{WHERE}.trace.json.gz",))


def test_a_save_that_was_killed_between_its_files_is_told_by_the_digest(store, monkeypatch):
    store.save(RECORD, {"": b"trace"})
    replaced = Path.replace

    def killed(self, target):
        if target.name.endswith("].json"):
            raise KeyboardInterrupt
        return replaced(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store.save(replace(RECORD, test_hash="new"), {"": b"new"})
    found, others = store.exemplars(TEST, SLUG)
    assert (found, [file.name for file in others]) == ({}, ["test_step[bf16].trace.json.gz"])


LITTER = (".perfdl-0123456789abcdef.tmp", ".perfdl-ffffffffffffffff.tmp")
STRANGERS = (
    ".perfdl-x.tmp",
    ".perfdl-0123456789abcdef.tmp.txt",
    "perfdl-0123456789abcdef.tmp",
    ".perfdl-0123456789ABCDEF.tmp",
)


@pytest.mark.parametrize("act", [lambda store: store.save(RECORD, {}), Store.sweep], ids=["save", "sweep"])
def test_what_a_killed_writer_left_is_removed_and_nothing_else(store, tmp_path, act):
    store.save(RECORD, {})
    folder = store.path(TEST, SLUG).parent
    for name in (*LITTER, *STRANGERS):
        (folder / name).write_text("")
    (folder / ".perfdl-aaaaaaaaaaaaaaaa.tmp").mkdir()
    (tmp_path / LITTER[0]).write_text("not among the baselines")
    before = set(tree(tmp_path))
    act(store)
    assert before - set(tree(tmp_path)) == {(folder / name).relative_to(tmp_path).as_posix() for name in LITTER}
    assert (folder / ".perfdl-aaaaaaaaaaaaaaaa.tmp").is_dir()


def test_nothing_is_swept_through_a_link(store, tmp_path):
    store.save(RECORD, {})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / LITTER[0]).write_text("mine")
    (store.base / "link").symlink_to(outside)
    (store.base / "again").symlink_to(store.base)
    store.sweep()
    assert (outside / LITTER[0]).read_text() == "mine"


def test_what_a_living_writer_has_is_left_alone(store, tmp_path, monkeypatch):
    store.save(RECORD, {})
    folder = store.path(TEST, SLUG).parent
    (folder / LITTER[0]).write_text("")
    monkeypatch.setattr(files, "_SECONDS", 0)
    with files.locked(folder) as held:
        assert held
        store.sweep()
        refused(lambda: store.save(RECORD, {}), "cannot be written: another process has locked the file")
    assert (folder / LITTER[0]).exists()


@pytest.mark.parametrize(
    "act",
    [lambda store: store.save(RECORD, {}), lambda store: store.write(store.key_folder(SLUG) / "machine.json", b"{}")],
    ids=["save", "write"],
)
def test_a_session_that_starts_leaves_what_another_one_writes(store, monkeypatch, act):
    replaced = Path.replace

    def sweep_first(self, target):
        Store(store.root, store.folder).sweep()
        return replaced(self, target)

    monkeypatch.setattr(files, "_SECONDS", 0)
    monkeypatch.setattr(Path, "replace", sweep_first)
    act(store)
    (written,) = tree(store.base)
    assert written.endswith(".json")


def test_writers_at_once_lose_nothing(store):
    """Each joins its repeat to what is there when it writes, not to what was there when it began."""

    def join(number):
        mine = replace(RECORD, occasions=(replace(RECORD.occasions[0], date=f"2026-05-{number:02}"),))
        store.save(mine, {"": b"trace"}, lambda there: mine if there is None else append(there, mine))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(join, range(1, 25)))
    found = store.load(TEST, SLUG)
    assert sorted(occasion.date for occasion in found.occasions) == [f"2026-05-{number:02}" for number in range(1, 25)]
    assert found.repeats == 24
    assert len(found.metrics()["step_time"].values) == 24


def test_exemplars_of_the_replaced_record_are_removed(store, tmp_path):
    store.save(fwd_bwd(), {"fwd": b"f", "bwd": b"b", "": b"u"})
    stale = [tmp_path / f"{WHERE}.fwd.trace.json.gz", tmp_path / f"{WHERE}.trace.json.gz"]
    changed = store.save(replace(fwd_bwd(), test_hash="new"), {"bwd": b"b"})
    assert set(changed) == {*stale, tmp_path / f"{WHERE}.json"}
    assert set(tree(tmp_path)) == {f"{WHERE}.json", f"{WHERE}.bwd.trace.json.gz"}


def test_a_save_touches_no_other_file(store, tmp_path):
    """Neither other tests, keys and parameters, nor what people put beside their baselines."""
    others = [
        replace(RECORD, test=TEST.replace("bf16", "bf16-x")),
        replace(RECORD, test=TEST.replace("[bf16]", "")),
        replace(RECORD, test=TEST.replace("test_step", "test_step2")),
        replace(RECORD, test=TEST.replace("test_gpt", "test_vit")),
        replace(RECORD, key=Key("gpu", {})),
        # A class of the function's name, as no Python module can have it.
        replace(RECORD, test="tests/perf/test_gpt.py::test_b"),
        replace(RECORD, test="tests/perf/test_gpt.py::test_b::fwd"),
    ]
    for other in others:
        store.save(other, {"": b"its trace"})
    folder = tmp_path / WHERE
    (folder.parent / "README.md").write_text("mine")
    (folder.parent / "test_step.trace.json").write_text("mine")
    before = tree(tmp_path)
    store.save(RECORD, {"": b"trace"})
    store.save(replace(RECORD, test_hash="new"), {})
    store.save(replace(RECORD, test="tests/perf/test_gpt.py::test_b"), {"": b"its trace"})
    after = tree(tmp_path)
    assert after.pop(f"{WHERE}.json")
    assert after == before


def test_others_are_the_same_test_under_other_keys(store, tmp_path):
    for slug in ("gpu-b", "cpu-A", SLUG):
        store.save(replace(RECORD, key=Key(slug, {})), {})
    store.save(replace(RECORD, key=Key("gpu-c", {}), test="t/other.py::test"), {})
    (tmp_path / "baselines" / "README.md").write_text("not a key")
    assert [other.key.slug for other in store.others(TEST, SLUG)] == ["cpu-A", "gpu-b"]
    assert [other.key.slug for other in store.others(TEST, "gpu-b")] == ["cpu-A", SLUG]


@pytest.mark.parametrize("content, says", [
    (b"", "is damaged at line 1, column 1 (byte 0)"),
    (dump(RECORD)[:-3], "is damaged at line"),
    (dump(RECORD).replace(b'"timed"', b'"timid"'), "is malformed (calls[0].metrics[...].kind: invalid enum"),
    (dump(replace(RECORD, test="t/a.py::b")), "contains a baseline of t/a.py::b with machine ID"),
    (dump(replace(RECORD, key=Key("gpu", {}))),
     (f"contains a baseline of {TEST} with machine ID gpu, "
      "which belongs in another file")),
])  # fmt: skip
def test_a_file_that_is_no_baseline_of_this_test_is_named(store, content, says):
    path = store.path(TEST, SLUG)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    for act in (store.load, lambda test, slug: store.others(test, "another-key"), store.exemplars):
        refused(
            lambda act=act: act(TEST, SLUG),
            f"{WHERE}.json {says}",
            "restore the file from git, or record the baseline again with pytest --perf-update=all",
        )


def test_a_file_of_another_version_asks_for_that_version_or_a_measurement(store):
    store.save(RECORD, {})
    path = store.path(TEST, SLUG)
    path.write_bytes(path.read_bytes().replace(b'"schema": 1', b'"schema": 7'))
    text = refused(lambda: store.load(TEST, SLUG), f"{WHERE}.json was written by another version of pytest-perfdl")
    assert text.endswith("use that version, or measure again")


def test_a_damaged_baseline_can_be_saved_over(store):
    store.save(RECORD, {"": b"trace"})
    store.path(TEST, SLUG).write_text("{")
    store.save(RECORD, {"": b"trace"})
    assert store.load(TEST, SLUG) == with_digests(RECORD, {"": b"trace"})


def test_an_invalid_measurement_is_never_a_baseline(store, tmp_path):
    broken = replace(RECORD, integrity=(invalid("steps differ"),))
    refused(lambda: store.save(broken, {}), f"{WHERE}.json was not written: the measurement is invalid (steps differ)")
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("change", [{"context": {"clock": float("nan")}}, {"occasions": ()}])
def test_what_could_not_be_read_again_is_not_written(store, tmp_path, change):
    refused(lambda: store.save(replace(RECORD, **change), {}), "not written: the record ")
    assert tree(tmp_path) == {}


def fails_with(number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number, says", [
    (errno.ENOSPC, "No space left on device: free disk space and record again"),
    (errno.EROFS, "Read-only file system: make this path writable, or choose another directory with --perf-dir"),
    (errno.EACCES, "Permission denied: make this path writable"),
    (errno.EIO, "cannot be written: Input/output error"),
])  # fmt: skip
def test_a_disk_that_refuses_leaves_the_old_files_whole(store, tmp_path, monkeypatch, number, says):
    store.save(RECORD, {"": b"trace"})
    before = tree(tmp_path)
    monkeypatch.setattr(files.os, "fsync", fails_with(number))
    refused(
        lambda: store.save(replace(RECORD, test_hash="new"), {"": b"new"}), f"{WHERE}.json cannot be written: ", says
    )
    assert tree(tmp_path) == before


def test_an_interrupted_write_leaves_no_litter(store, tmp_path, monkeypatch):
    store.save(RECORD, {})
    before = tree(tmp_path)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.save(replace(RECORD, test_hash="new"), {})
    assert tree(tmp_path) == before


def test_a_disk_that_is_full_for_the_second_file_leaves_both_as_they_were(store, tmp_path, monkeypatch):
    store.save(RECORD, {"": b"trace"})
    before, works, calls = tree(tmp_path), files.os.fsync, []

    def second_fails(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        works(descriptor)

    monkeypatch.setattr(files.os, "fsync", second_fails)
    refused(lambda: store.save(replace(RECORD, test_hash="new"), {"": b"new"}), "No space left on device")
    assert len(calls) == 2
    assert tree(tmp_path) == before


def test_the_record_is_put_in_place_after_its_exemplars(store, monkeypatch):
    order = []
    replaced = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: order.append(target.name) or replaced(self, target))
    store.save(RECORD, {"": b"trace"})
    assert order == ["test_step[bf16].trace.json.gz", "test_step[bf16].json"]


def test_a_baseline_is_as_readable_as_other_files(store, tmp_path):
    (tmp_path / "plain").write_text("")
    store.save(RECORD, {})
    assert stat.S_IMODE(store.path(TEST, SLUG).stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_file_in_the_place_of_a_folder_is_named(store, tmp_path):
    (tmp_path / "baselines").write_text("mine")
    for act in (store.check_writable, lambda: store.save(RECORD, {})):
        refused(act, "baselines", "cannot be written", "another file or directory has this name")
    assert store.load(TEST, SLUG) is None
    assert (tmp_path / "baselines").read_text() == "mine"


def test_a_folder_in_the_place_of_a_file_is_named(store):
    store.path(TEST, SLUG).mkdir(parents=True)
    refused(lambda: store.load(TEST, SLUG), f"{WHERE}.json cannot be read: Is a directory: another")
    refused(lambda: store.save(RECORD, {}), f"{WHERE}.json cannot be written: Is a directory: another")


def test_checking_leaves_nothing_behind(store, tmp_path):
    store.check_writable()
    assert list(tmp_path.iterdir()) == []
    store.save(RECORD, {})
    before = tree(tmp_path)
    store.check_writable()
    assert tree(tmp_path) == before


def test_a_folder_that_cannot_be_written_is_found_before_measuring(store, monkeypatch):
    monkeypatch.setattr(Path, "touch", fails_with(errno.EROFS))
    refused(
        store.check_writable, "baselines cannot be written: Read-only file system: make this path writable, or choose"
    )


def test_a_folder_that_cannot_be_listed_is_named(store, tmp_path, monkeypatch):
    (tmp_path / "baselines").mkdir()
    monkeypatch.setattr(Path, "iterdir", fails_with(errno.EACCES))
    refused(lambda: store.others(TEST, SLUG), "baselines cannot be read: Permission denied")


def test_what_a_repeat_took_is_known_from_the_newest_baseline_of_any_key(store, tmp_path):
    made = record()

    def taken(date, seconds):
        return replace(made, occasions=(replace(made.occasions[0], date=date, seconds=seconds),))

    assert store.repeat_seconds([TEST])[TEST] is None
    store.save(taken("2026-05-01T10:00:00Z", None), {})
    assert store.repeat_seconds([TEST])[TEST] is None
    store.save(taken("2026-05-01T10:00:00Z", 9.5), {})
    elsewhere = replace(taken("2026-05-02T10:00:00Z", 4.2), key=Key("gpu-h100", {}))
    store.save(elsewhere, {})
    assert store.repeat_seconds([TEST])[TEST] == 4.2
    store.path(TEST, "gpu-h100").write_text("damaged")
    assert store.repeat_seconds([TEST])[TEST] == 9.5
