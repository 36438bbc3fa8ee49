"""Baselines in a remote store: on each kind of service the same."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
import s3_server
from making import COMMIT, TEST, counted, record, timed

from pytest_perfdl.baseline import objects
from pytest_perfdl.baseline.append import append
from pytest_perfdl.baseline.objects import Objects, Update, ancestors, heads, is_url, nearest
from pytest_perfdl.baseline.remote import opened
from pytest_perfdl.cli import main, prune
from pytest_perfdl.cli.collecting import Collected
from pytest_perfdl.model.errors import BaselineError
from pytest_perfdl.model.record import Code, Key, Occasion

SLUG = "cpu-epyc-8c-1t"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def s3():
    """An S3-compatible server of this process, with a bucket."""
    for module in s3_server.NEEDED:
        pytest.importorskip(module, reason=s3_server.INSTALL)
    with s3_server.s3_server() as bucket:
        yield bucket


@pytest.fixture
def store_of(request, tmp_path, monkeypatch):
    """The URL of an empty store of a kind."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:8]

    def url_of(kind):
        if kind == "file":
            return f"file://{tmp_path}/remote [x]"
        return f"memory://{name}" if kind == "memory" else f"{request.getfixturevalue('s3')}/{name}"

    return url_of


@pytest.fixture(params=["memory", "file", "s3"])
def url(request, store_of):
    return store_of(request.param)


@pytest.fixture(params=["file", "s3"])
def lasting(request, store_of):
    """A store that commands take, since it outlives a process."""
    return store_of(request.param)


@pytest.fixture
def another(tmp_path, monkeypatch):
    """Open a store as another machine does, with a cache of its own."""

    def machine(url, name):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        return opened(tmp_path, url)

    return machine


def measured(day, time=12.0, digit="a", test=TEST, key=SLUG):
    return record(
        {"step_time": timed(time), "ops": counted(3)},
        test=test,
        key=Key(key, {}),
        occasions=(Occasion(1, f"2026-05-{day:02}T10:00:00Z", COMMIT, None, (100 + day,)),),
        code=Code({"src/step.py": digit * 12}),
    )


def adds(new):
    return lambda there: new if there is None else append(there, new)


def days(store):
    return [int(occasion.date[8:10]) for occasion in store.load(TEST, SLUG).occasions]


def test_what_one_machine_saved_another_one_loads(url, another):
    first, second = another(url, "a"), another(url, "b")
    first.check_writable()
    made = replace(measured(1), test="tests/test a.py::test_x[1/2 % é]")
    first.save(made, {"": b"trace"})
    first.save(measured(1), {})
    second.fetch()
    loaded = second.load(made.test, SLUG)
    assert loaded == first.load(made.test, SLUG) is not None
    found, others = second.exemplars(made.test, SLUG)
    assert ({call: path.read_bytes() for call, path in found.items()}, others) == ({"": b"trace"}, ())
    assert second.shown(second.path(TEST, SLUG)) == f"{url}/{SLUG}/tests/perf/test_gpt/test_step[bf16].json"
    assert first.save(first.load(TEST, SLUG), {}) == ()
    second.remove(made.test, SLUG)
    first.fetch()
    assert first.load(made.test, SLUG) is None
    assert first.load(TEST, SLUG) is not None


def test_updates_that_did_not_see_each_other_are_joined(url, another, monkeypatch):
    first, second = another(url, "a"), another(url, "b")
    first.save(measured(1), {})
    before = first.objects.listing()
    second.fetch()
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "listing", lambda self, below="": before)
        first.save(measured(2), {}, adds(measured(2)))
        second.save(measured(3), {}, adds(measured(3)))
    assert len(heads(first.objects.listing().updates[_name(first)])) == 2
    for store in (first, second, another(url, "c")):
        store.fetch()
        assert days(store) == [1, 2, 3]
        assert store.notes == ()
    first.save(measured(4), {}, adds(measured(4)))
    assert len(heads(first.objects.listing().updates[_name(first)])) == 1
    second.fetch()
    assert days(second) == [1, 2, 3, 4]


def _name(store):
    return store.path(TEST, SLUG).relative_to(store.base).as_posix()


def conflict(url, another, monkeypatch):
    first, second = another(url, "a"), another(url, "b")
    first.save(measured(1), {})
    before = first.objects.listing()
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "listing", lambda self, below="": before)
        first.save(measured(3, digit="b"), {})
        second.save(measured(2, digit="c"), {})
    return first, second


def test_updates_that_contradict_each_other_are_shown_until_one_follows_both(lasting, another, monkeypatch, capsys):
    first, second = conflict(lasting, another, monkeypatch)
    for store in (first, second, another(lasting, "c")):
        store.fetch()
        assert days(store) == [3]
        (note,) = store.notes
        assert "\n" not in note
        assert f"{SLUG}/tests/perf/test_gpt/test_step[bf16].json has 2 updates that contradict each other" in note
        assert note.endswith("record the baseline again with pytest --perf-update=all")
    assert main(["list", "--dir", lasting]) == 0
    assert "2 updates that contradict each other" in capsys.readouterr().err
    second.save(measured(4, digit="d"), {})
    first.fetch()
    assert (days(first), first.notes) == ([4], ())


def test_a_removal_does_not_undo_an_update_that_it_did_not_see(url, another, monkeypatch):
    first, second = another(url, "a"), another(url, "b")
    first.save(measured(1), {})
    before = first.objects.listing()
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "listing", lambda self, below="": before)
        first.save(measured(2), {})
        second.remove(TEST, SLUG)
    first.fetch()
    assert days(first) == [2]


def test_an_object_that_is_incomplete_is_as_none(lasting, another, capsys):
    first = another(lasting, "a")
    first.save(measured(1), {})
    ((update,),) = first.objects.listing().updates.values()
    whole = first.objects.read(update.path)
    name = f"{update.path.rpartition('/')[0]}/{'f' * 24}.{update.id}.json"
    for size in (0, 1, len(whole) // 2):
        first.objects.write(name, whole[:size])
        for store in (first, another(lasting, f"machine-{size}")):
            store.fetch()
            assert days(store) == [1]
            assert store.leftovers() == (
                f"{lasting}/{name} is incomplete, and is ignored: if no writer is at it, delete the object",
            )
    assert main(["baseline", "verify", "--dir", lasting]) == 1
    assert "is incomplete" in capsys.readouterr().out


def test_what_is_no_object_of_ours_is_left_alone(url, another):
    first = another(url, "a")
    first.save(measured(1), {})
    for name in ("README.md", f"x/{'a' * 24}.txt", f"{SLUG}/tests/perf/test_gpt/test_step[bf16].json"):
        first.objects.write(name, b"mine")
    assert list(first.objects.listing().updates) == [_name(first)]


def test_commands_work_on_a_remote_store(lasting, another, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(prune, "collect", lambda *_: Collected())
    another(lasting, "a").save(measured(1), {"": b"trace"})
    for command, says in (
        (["list", "--dir", lasting], "1 baseline"),
        (["show", "--dir", lasting, "test_step"], f"{lasting}/{SLUG}/tests/perf/test_gpt/test_step[bf16].json"),
        (["baseline", "rename", "--dir", lasting, "tests/perf", "perf"], "renamed  "),
        (["baseline", "verify", "--dir", lasting], "1 baseline verified"),
        (["baseline", "migrate", "--check", "--dir", lasting], "0 baselines of 1 would change"),
        (["prune", "--dir", lasting, "--all", "--apply"], "deleted  perf/test_gpt.py::test_step[bf16]"),
    ):
        code = main(command)
        printed = capsys.readouterr()
        assert code == 0, printed.err
        assert says in " ".join(printed.out.split("\n"))
    assert main(["list", "--dir", lasting]) == 3
    assert f"no baselines in {lasting}" in capsys.readouterr().out


def test_compact_deletes_what_later_updates_replaced(lasting, another, capsys, monkeypatch):
    store = another(lasting, "a")
    for day in (1, 2, 3):
        store.save(measured(day), {"": b"trace of %d" % day})
    assert main(["baseline", "compact", "--dir", lasting]) == 3
    monkeypatch.setattr(objects, "_days", lambda about: 40.0)
    assert main(["baseline", "compact", "--dir", lasting]) == 0
    assert len(store.objects.listing().updates[_name(store)]) == 3
    assert main(["baseline", "compact", "--dir", lasting, "--apply"]) == 0
    listing = store.objects.listing()
    assert [len(listing.updates[_name(store)]), len(listing.traces)] == [1, 1]
    other = another(lasting, "b")
    assert days(other) == [3]
    assert list(other.exemplars(TEST, SLUG)[0]) == [""]


def test_a_writer_that_names_a_deleted_update_loses_nothing(url, another, monkeypatch):
    first, second = another(url, "a"), another(url, "b")
    first.save(measured(1), {})
    second.fetch()
    before = second.objects.listing()
    first.save(measured(2), {}, adds(measured(2)))
    with monkeypatch.context() as patch:
        patch.setattr(Objects, "listing", lambda self, below="": before)
        second.save(measured(3), {}, adds(measured(3)))
    (old,) = (each for each in before.updates[_name(first)])
    first.objects.delete(old.path)
    first.fetch()
    assert days(first) == [1, 2, 3]


def test_rates_of_a_machine_are_stored_too(url, another):
    first = another(url, "a")
    first.write(first.key_folder(SLUG) / "machine.json", b'{"date": "2026-05-01"}')
    second = another(url, "b")
    assert (second.key_folder(SLUG) / "machine.json").read_bytes() == b'{"date": "2026-05-01"}'


# What goes wrong


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    "error, says",
    [
        (PermissionError("Access Denied"), "not permitted (PermissionError: Access Denied): set credentials"),
        (ConnectionRefusedError("refused"), "no connection (ConnectionRefusedError: refused): check the network"),
        (TimeoutError(), "no connection (TimeoutError): check the network"),
        (type("EndpointConnectionError", (Exception,), {})("a\nb"), "no connection (EndpointConnectionError: a): "),
        (type("NoCredentialsError", (Exception,), {})("Unable"), "not permitted (NoCredentialsError: Unable): "),
        (ValueError("token=abcdef&x"), "failed (ValueError: ***): check the address"),
        (OSError("https://me:pw@host/x"), "failed (OSError: https://***@host/x): check the address"),
    ],
)
@pytest.mark.parametrize("act", ["read", "write"])
def test_an_error_of_the_service_is_one_line(cache, tmp_path, monkeypatch, error, says, act):
    from fsspec.implementations.memory import MemoryFileSystem

    store = opened(tmp_path, "memory://failing")

    def fail(*_, **__):
        raise error

    for name in ("find", "pipe_file"):
        monkeypatch.setattr(MemoryFileSystem, name, fail)
    with pytest.raises(BaselineError) as found:
        store.fetch() if act == "read" else store.check_writable()
    text = str(found.value)
    assert text.startswith("memory://failing")
    assert says in text
    assert "\n" not in text


def test_an_update_that_did_not_reach_the_store_is_not_in_the_copy(cache, tmp_path, monkeypatch):
    store = opened(tmp_path, f"file://{tmp_path}/remote")
    store.save(measured(1), {})

    def fail(*_):
        raise BaselineError("no connection")

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "write", fail)
        with pytest.raises(BaselineError):
            store.save(measured(2), {})
    again = opened(tmp_path, f"file://{tmp_path}/remote")
    assert days(again) == [1]


@pytest.mark.parametrize("url", ["ftp://me:secret@host/x", "https://host/x?X-Amz-Signature=secret"])
def test_credentials_in_an_address_are_refused_and_not_printed(url, cache, tmp_path, capsys):
    assert main(["list", "--dir", url]) == 2
    said = capsys.readouterr().err
    assert "contains credentials or a query" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    "url, says",
    [
        ("http://127.0.0.1:1/x", "http://127.0.0.1:1/x cannot be written, and a web server does not list its files"),
        ("https://host/x", "https://host/x cannot be written"),
        ("s3://", "s3:// names no bucket: expected an address such as s3://bucket/baselines"),
        ("s3:///", "s3:/// names no bucket"),
    ],
)
def test_an_address_that_is_no_store_is_not_an_empty_store(url, says, cache, capsys):
    assert main(["list", "--dir", url]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_memory_is_lost_with_the_process_and_refused(cache, tmp_path, capsys, monkeypatch):
    says = (
        "memory://x is in the memory of this process, and is lost with it: choose a directory or another URL with "
        "--perf-dir\n"
    )
    assert main(["list", "--dir", "memory://x"]) == 2
    (tmp_path / "pytest.ini").write_text("[pytest]\nperf_dir = memory://x\n")
    monkeypatch.chdir(tmp_path)
    assert main(["list"]) == 2
    assert capsys.readouterr().err == f"perfdl list: {says}" * 2


@pytest.mark.parametrize("protocol, package", [("gs", "gcsfs"), ("az", "adlfs")])
def test_a_backend_that_is_missing_is_named(protocol, package, cache, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["list", "--dir", f"{protocol}://bucket/x"]) == 2
    assert capsys.readouterr().err == (
        f"perfdl list: {protocol}://bucket/x needs a package that is not installed: pip install {package}\n"
    )


def test_an_unknown_protocol_is_one_line(cache, tmp_path, capsys):
    assert main(["list", "--dir", "nonsense://x"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "nonsense" in said


def test_without_permission_or_bucket(s3, cache, tmp_path, capsys):
    assert main(["baseline", "rename", "--dir", "s3://no-such-bucket/x", "a", "b"]) == 3
    with pytest.raises(BaselineError, match=r"s3://no-such-bucket/x/pytest-perfdl.json cannot be written: not found"):
        opened(tmp_path, "s3://no-such-bucket/x").check_writable()


def test_offline(s3, cache, tmp_path, monkeypatch):
    """A port at which nothing listens."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(BaselineError) as found:
        opened(tmp_path, "s3://bucket/offline")
    s3fs.S3FileSystem.clear_instance_cache()
    text = str(found.value)
    assert text.startswith("s3://bucket/offline cannot be read: no connection (")
    assert "\n" not in text
    assert "secret" not in text


# Names


def test_what_is_an_address():
    assert all(map(is_url, ("s3://b/x", "gs://b", "hf://datasets/me/x", "memory://x", "file:///x")))
    assert not any(map(is_url, ("baselines", "/abs", "c:/x", "c:\\x", "x://y"[1:])))


def test_heads_and_bases_of_crossed_histories():
    history = {"s": "", "a": "s", "b": "s", "c": "ab", "d": "ab", "e": "x"}
    updates = {own: Update(own, tuple(parents), own) for own, parents in history.items()}
    assert [each.id for each in heads(list(updates.values()))] == ["c", "d", "e"]
    common = ancestors(updates, "c") & ancestors(updates, "d")
    assert [each.id for each in nearest(updates, common)] == ["a", "b"]


# Processes

WRITER = """
    import sys
    from dataclasses import replace
    from pathlib import Path
    sys.path[:0] = [{tests!r}]
    from making import COMMIT, TEST, counted, record, timed
    from pytest_perfdl.baseline.append import append
    from pytest_perfdl.baseline.remote import opened
    from pytest_perfdl.model.record import Code, Key, Occasion

    folder, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    for number in range(count):
        made = record(
            {{"step_time": timed(12.0), "ops": counted(3)}},
            occasions=(Occasion(1, f"2026-05-01T10:00:00Z {{who}} {{number}}", COMMIT, None),),
            code=Code({{"src/step.py": "a" * 12}}),
        )
        traces = {{"": f"trace {{who}} {{number}}".encode()}}
        opened(Path.cwd(), folder).save(made, traces, lambda there: made if there is None else append(there, made))
        print(number, flush=True)
"""


def start(folder, who, count, cache):
    source = textwrap.dedent(WRITER).format(tests=str(ROOT / "tests"))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.Popen(
        [sys.executable, "-c", source, folder, who, str(count)],
        env=environment | {"XDG_CACHE_HOME": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("kind", ["folder", "file", "s3"])
@pytest.mark.parametrize("machines", [1, 2])
def test_two_processes_lose_no_update(kind, machines, tmp_path, request, monkeypatch):
    if kind == "folder" and machines == 2:
        pytest.skip("a folder has one machine")
    folder = {"folder": str(tmp_path / "baselines"), "file": f"file://{tmp_path}/remote"}.get(kind)
    folder = folder or f"{request.getfixturevalue('s3')}/race-{machines}"
    count = 4 if kind == "s3" else 10
    running = [start(folder, who, count, tmp_path / f"cache-{number % machines}") for number, who in enumerate("ab")]
    for each in running:
        each.communicate()
        assert each.returncode == 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "reader"))
    store = opened(tmp_path, folder)
    found = store.load(TEST, SLUG)
    assert {occasion.date[21:] for occasion in found.occasions} == {
        f"{who} {number}" for who in "ab" for number in range(count)
    }
    assert found.repeats == 2 * count
    assert store.notes == ()


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_killed_writer_leaves_the_old_or_the_new_baseline(kind, tmp_path, monkeypatch):
    folder = str(tmp_path / "baselines") if kind == "folder" else f"file://{tmp_path}/remote"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    draw = random.Random(7)
    known = 0
    for number in range(5):
        writer = start(folder, str(number), 1000, tmp_path / "cache")
        written = int(writer.stdout.readline()) + 1
        time.sleep(draw.uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        written += len(writer.communicate()[0].split())
        found = opened(tmp_path, folder).load(TEST, SLUG)
        # The last update may have been written, and not said any more.
        assert found.repeats - known - written in (0, 1)
        known = found.repeats
