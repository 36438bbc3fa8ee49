"""Which commit holds the code of a baseline, by the content of the files that its test used."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace

import pytest
from making import record, timed

from pytest_perfdl.baseline import code as code_module
from pytest_perfdl.baseline.code import hashes, measured_code, present
from pytest_perfdl.baseline.recorded_commit import BaselineCode, code_of, few, having, pair_of
from pytest_perfdl.model.record import Code, Key, Occasion
from pytest_perfdl.system.git import FETCH_ALL, trouble

WITHOUT = ("baselines", "perf-report")
NAMES = ("code.py", "other.py", "pytest.ini")
"""What the tests of this repository load and read."""


class Repository:
    def __init__(self, root):
        self.root = root
        root.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.email", "author@example.org")
        self.git("config", "user.name", "Author")

    def git(self, *arguments):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        done = subprocess.run(["git", *arguments], cwd=self.root, env=clean, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def commit(self):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "some change")
        return self.head

    @property
    def head(self):
        return self.git("rev-parse", "HEAD")

    def measured(self, *names, **rest):
        return measured_code(self.root, names or NAMES, (), without=[self.root / each for each in WITHOUT], **rest)

    def recorded(self, *names, file="baselines/test.json", date="2026-01-01T00:00:00Z"):
        """A baseline of a test that uses some files, recorded on the working tree as it is, and its file."""
        used = self.measured(*names).code
        self.write(file, "\n".join(f"{name} {content}" for name, content in used.files.items()))
        occasion = Occasion(2, date, self.head, None)
        return replace(record({"step_time": timed(1.0, 2.0)}), occasions=(occasion,), code=used)

    def code(self, base, file="baselines/test.json", **rest):
        return code_of(base, self.root / file, self.root, **rest)

    def has(self, commit, base):
        """Whether a commit has the files of a baseline."""
        found = {name: self.git("rev-parse", f"{commit}:{name}")[:12] for name in base.code.files}
        return found == base.code.files


@pytest.fixture
def repository(tmp_path):
    made = Repository(tmp_path / "repository")
    made.write("code.py", "x = 1\n")
    made.write("other.py", "y = 1\n")
    made.write("pytest.ini", "[pytest]\n")
    made.commit()
    return made


@pytest.fixture
def changed(repository):
    """A commit on a branch changes the code and records the baseline on it, as pull requests do."""
    repository.git("checkout", "--quiet", "-b", "change")
    repository.write("code.py", "x = 2\n")
    base = repository.recorded()
    repository.commit()
    return base


def test_the_commit_that_carries_code_and_baseline(repository, changed):
    carries = repository.head
    repository.write("code.py", "x = 3\n")
    repository.commit()
    assert changed.occasions[-1].commit != carries, "it was recorded before the commit"
    assert repository.code(changed) == BaselineCode(carries, base=changed)


def test_the_newest_commit_that_has_the_files(repository, changed):
    repository.write("more.py", "that no test uses\n")
    newest = repository.commit()
    repository.write("other.py", "y = 2\n")
    repository.commit()
    repository.write("code.py", "x = 3\n")
    repository.commit()
    assert repository.code(changed).commit == newest


def test_a_merge_by_a_squash(repository, changed):
    repository.git("checkout", "--quiet", "main")
    repository.git("merge", "--quiet", "--squash", "change")
    repository.git("branch", "-D", "change")
    squashed = repository.commit()
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "--quiet", "--prune=now")
    repository.write("code.py", "x = 3\n")
    repository.commit()
    assert repository.code(changed).commit == squashed


def test_a_squash_onto_a_file_that_others_changed_takes_the_commit_that_carries_the_baseline_and_says_so(
    repository, changed
):
    repository.git("checkout", "--quiet", "main")
    repository.write("pytest.ini", "[pytest]\naddopts = -q\n")
    repository.commit()
    repository.git("merge", "--quiet", "--squash", "change")
    squashed = repository.commit()
    repository.write("code.py", "x = 3\n")
    repository.commit()
    found = repository.code(changed)
    assert found.commit == squashed
    assert found.note == (
        "no commit contains exactly the files that the baseline was recorded with; the comparison uses commit "
        f"{squashed[:9]}, which last changed the baseline file and differs in: pytest.ini"
    )
    repository.git("checkout", "--quiet", "HEAD~1")
    assert repository.code(changed).commit == squashed


def test_a_rebase(repository, changed):
    repository.git("checkout", "--quiet", "main")
    repository.write("more.py", "of somebody else\n")
    repository.commit()
    repository.git("checkout", "--quiet", "change")
    repository.git("rebase", "--quiet", "main")
    rebased = repository.head
    repository.git("reflog", "expire", "--expire=now", "--all")
    repository.git("gc", "--quiet", "--prune=now")
    repository.write("code.py", "x = 3\n")
    repository.commit()
    assert repository.code(changed).commit == rebased


@pytest.mark.parametrize("fast_forward", ["--ff", "--no-ff"])
def test_parallel_merges(repository, changed, fast_forward):
    """Another pull request changes another file that the test uses: each merge is a commit, the branch's too."""
    alone = repository.head
    repository.git("checkout", "--quiet", "-b", "another", "main")
    repository.write("other.py", "y = 2\n")
    repository.commit()
    repository.git("checkout", "--quiet", "main")
    for branch in ("change", "another"):
        repository.git("merge", "--quiet", fast_forward, "--no-edit", branch)
    found = repository.code(changed)
    assert (repository.has(found.commit, changed), found.note) == (True, "")
    assert found.commit == alone or fast_forward == "--no-ff"
    # Recorded on what only the merge of both has.
    base = repository.recorded()
    both = repository.commit()
    repository.write("code.py", "x = 4\n")
    repository.commit()
    assert repository.code(base).commit == both


def test_a_branch_whose_changes_the_merge_discarded(repository, changed):
    discarded = repository.head
    repository.git("checkout", "--quiet", "main")
    repository.git("merge", "--quiet", "--strategy=ours", "--no-edit", "change")
    assert repository.code(changed).commit == discarded


def test_what_was_the_main_line_where_a_merge_takes_the_branch(repository):
    base = repository.recorded()
    repository.write("more.py", "of somebody else\n")
    newest = repository.commit()
    repository.git("checkout", "--quiet", "-b", "change", "HEAD~1")
    repository.write("code.py", "x = 2\n")
    repository.commit()
    repository.git("checkout", "--quiet", "main")
    repository.git("merge", "--quiet", "--no-ff", "--no-edit", "change")
    assert repository.code(base).commit == newest


def test_two_pull_requests_that_touch_different_tests(repository):
    """Each records the baseline of its own test; both are merged by a squash, in whichever order."""
    for number, name in enumerate(("code.py", "other.py")):
        repository.git("checkout", "--quiet", "-b", f"change-{number}", "main")
        repository.write(name, f"z = {number}\n")
        repository.write(f"notes-{number}.txt", "that no test uses\n")
        base = repository.recorded(name, "pytest.ini", file=f"baselines/test-{number}.json")
        repository.commit()
        repository.git("checkout", "--quiet", "main")
        if number == 0:
            first = base
    merged = []
    for number in (1, 0):
        repository.git("merge", "--quiet", "--squash", f"change-{number}")
        merged.append(repository.commit())
    assert repository.code(base, "baselines/test-1.json").commit == merged[-1]
    assert repository.code(first, "baselines/test-0.json").commit == merged[-1]
    repository.write("other.py", "z = 3\n")
    assert repository.commit() == repository.code(first, "baselines/test-0.json").commit
    assert repository.code(base, "baselines/test-1.json").commit == merged[-1]


def test_a_stray_file_that_git_does_not_know(repository):
    repository.write("notes.txt", "of the user\n")
    base = repository.recorded()
    assert repository.code(base).commit == repository.head
    repository.write("code.py", "x = 2\n")
    base = repository.recorded()
    repository.git("add", "code.py", "baselines")
    repository.git("commit", "--quiet", "--message", "without the notes")
    assert repository.code(base).commit == repository.head


@pytest.mark.parametrize("edited", [False, True], ids=["moved", "moved and edited"])
def test_a_baseline_that_was_moved_later(repository, edited):
    text = "".join(f"line {number}\n" for number in range(30))
    repository.write("code.py", "x = 2\n")
    base = repository.recorded()
    repository.write("baselines/old/test.json", text)
    (repository.root / "baselines/test.json").unlink()
    carries = repository.commit()
    repository.write("code.py", "x = 3\n")
    repository.git("mv", "baselines/old/test.json", "baselines/test.json")
    if edited:
        repository.write("baselines/test.json", text.replace("line 3\n", "new key\n"))
    repository.commit()
    assert repository.code(base).commit == carries
    # A commit that only moves the file does not carry what was recorded.
    lost = replace(base, code=replace(base.code, files=base.code.files | {"code.py": "0" * 12}))
    assert repository.code(lost).commit == (repository.head if edited else carries)


def test_before_the_baseline_is_committed(repository):
    base = repository.recorded()
    assert repository.code(base).commit == repository.head
    repository.write("code.py", "x = 2\n")
    base = repository.recorded()
    assert repository.code(base) == BaselineCode(
        None,
        "no commit contains the code that the baseline was recorded with: commit the code together with the baseline",
        base=base,
    )
    repository.write("code.py", "x = 3\n")
    assert repository.code(base).reason == "no commit contains the code that the baseline was recorded with"
    # Not what an earlier baseline of the test was committed with.
    repository.commit()
    repository.write("code.py", "x = 4\n")
    base = repository.recorded()
    assert repository.code(base).commit is None


def test_commits_that_are_as_good_are_preferred(repository, changed):
    carries = repository.head
    repository.write("more.py", "that no test uses\n")
    assert repository.commit() == repository.code(changed).commit
    before = repository.git("rev-parse", "main")
    assert repository.code(changed, prefer=(before, carries)).commit == carries


@pytest.mark.long
def test_forty_tests_whose_baselines_name_twelve_commits_share_three(repository):
    """Every commit records some tests' baselines; the module that all of them load changes twice meanwhile."""
    wanted, named = [], set()
    for number in range(12):
        if number in (4, 8):
            repository.write("code.py", f"x = {number}\n")
        tests = range(number, 40, 12)
        for test in tests:
            repository.write(f"tests/test_{test}.py", f"{number}\n")
        bases = [repository.recorded("code.py", f"tests/test_{test}.py", file=f"b/{test}.json") for test in tests]
        named.add(repository.commit())
        wanted += [base.code.files for base in bases]
    assert (len(wanted), len(named)) == (40, 12)
    repository.write("code.py", "x = 99\n")
    repository.commit()
    chosen = few(repository.root, wanted)
    assert len(chosen) == 3
    served = [having(repository.root, files, chosen) for files in wanted]
    assert set(served) == set(chosen)
    # What an earlier run has checked out serves again, though newer commits are as good.
    repository.write("code.py", "x = 8\n")
    repository.commit()
    assert len(few(repository.root, wanted)) == 3
    assert few(repository.root, wanted, [*chosen, "0" * 40]) == chosen
    assert few(repository.root, [{"code.py": "0" * 12}]) == few(repository.root, []) == []


def test_one_older_commit_may_serve_tests_that_newer_ones_serve_apart(repository):
    bases = [repository.recorded(name) for name in ("code.py", "other.py", "pytest.ini")]
    first = repository.commit()
    for name in ("code.py", "other.py"):
        repository.write(name, "z = 1\n")
        repository.commit()
    assert few(repository.root, [base.code.files for base in bases]) == [first]


def test_a_submodule_counts_by_its_commit(repository, tmp_path):
    library = Repository(tmp_path / "library")
    library.write("lib.py", "a = 1\n")
    library.commit()
    repository.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library.root), "lib")
    base = repository.recorded("code.py", "lib/lib.py")
    assert base.code.files["lib"] == library.head[:12]
    assert "lib/lib.py" not in base.code.files
    added = repository.commit()
    library.write("lib.py", "a = 2\n")
    repository.git("-C", "lib", "fetch", "--quiet", str(library.root), library.commit())
    repository.git("-C", "lib", "checkout", "--quiet", "FETCH_HEAD")
    repository.commit()
    assert repository.code(base).commit == added


@pytest.mark.parametrize("name", ["lib.py", "new.py"])
def test_a_submodule_whose_files_are_not_its_commit_s_is_not_taken_for_it(repository, tmp_path, name):
    library = Repository(tmp_path / "library")
    library.write("lib.py", "a = 1\n")
    library.write("other.py", "a = 1\n")
    library.commit()
    repository.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library.root), "lib")
    used = ("code.py", "lib/lib.py", f"lib/{name}")
    repository.write("lib/other.py", "a = 2\n")
    if name == "lib.py":
        assert repository.measured(*used).code.is_complete
    repository.write(f"lib/{name}", "a = 2\n")
    found = repository.measured(*used).code
    assert "lib" not in found.files
    assert not found.is_complete


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_a_file_that_git_was_told_not_to_look_at_is_hashed(repository, flag):
    before = repository.measured().code.files["code.py"]
    repository.git("update-index", flag, "code.py")
    assert repository.measured().code.files["code.py"] == before
    repository.write("code.py", "edited = 1\n")
    assert repository.measured().code.files["code.py"] == hashes(repository.root, ["code.py"])["code.py"] != before
    assert present(repository.root, ["code.py"])["code.py"] != before


def test_a_shallow_clone_says_what_it_needs(repository, tmp_path):
    base = repository.recorded()
    for number in range(3):
        repository.write("code.py", f"y = {number}\n")
        repository.commit()
    clone = Repository.__new__(Repository)
    clone.root = tmp_path / "clone"
    repository.git("clone", "--quiet", "--depth=1", repository.root.as_uri(), str(clone.root))
    assert clone.code(base).reason == f"the clone is shallow: run {FETCH_ALL}"
    assert clone.code(repository.recorded()).commit == repository.head, "what is there will do"


def test_without_git_or_without_recorded_code(repository, tmp_path):
    base = repository.recorded()
    assert repository.code(replace(base, code=None)).reason == (
        "the baseline does not contain hashes of the recorded code"
    )
    (tmp_path / "plain").mkdir()
    for each in (base, replace(base, code=None)):
        found = code_of(each, tmp_path / "plain" / "test.json", tmp_path / "plain")
        assert found.reason == "the project is not in a git repository"


def test_a_repository_without_a_commit(tmp_path):
    made = Repository(tmp_path / "new")
    made.write("code.py", "x = 1\n")
    base = replace(record({"step_time": timed(1.0)}), code=made.measured("code.py").code)
    assert made.code(base).reason == "the repository has no commits"


@pytest.mark.long
@pytest.mark.parametrize("reachable", [True, False])
def test_a_baseline_under_any_key_supplies_the_commit(repository, reachable):
    def under(base, slug, date):
        return replace(base, key=Key(slug, {}), occasions=(replace(base.occasions[-1], date=date),))

    old = under(repository.recorded(), "machine-a", "2026-01-01T00:00:00Z")
    first = repository.commit()
    repository.write("code.py", "x = 2\n")
    new = under(repository.recorded(), "machine-b", "2026-02-01T00:00:00Z")
    second = repository.commit()
    lost = replace(old, key=Key("machine-c", {}), code=replace(old.code, files={"code.py": "0" * 12}))

    def pair(own, *others):
        folder = repository.root / "baselines"
        return pair_of(own, others, lambda base: folder / base.key.slug / "test.json", repository.root)

    assert (pair(old, new).commit, pair(old, new).base) == (first, old), "its own first"
    assert (pair(None, old, new).commit, pair(None, old, new).base) == (second, new), "else the newest"
    assert (pair(lost, old).commit, pair(lost, old).base) == (first, old), "that has a commit"
    nothing = pair(lost, replace(lost, code=None))
    assert (nothing.commit, nothing.base) == (None, lost)
    assert nothing.reason == "no commit contains the code that the baseline was recorded with"
    assert pair(None).reason == "no baseline"


def test_git_says_itself_why_it_does_not_work(repository, tmp_path, monkeypatch):
    base = repository.recorded()
    assert trouble(repository.root) == ""
    assert trouble(tmp_path) == ""
    # As where a container's user is not the one who checked out.
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    said = trouble(repository.root)
    assert said.startswith("detected dubious ownership in repository at ")
    assert said.endswith(f"git config --global --add safe.directory {repository.root}")
    assert repository.code(base).reason == said


# What is recorded


def test_files_count_as_they_are_on_disk(repository):
    assert repository.measured().code.files == {
        name: repository.git("rev-parse", f"HEAD:{name}")[:12] for name in sorted(NAMES)
    }
    repository.write("code.py", "x = 2\n")
    repository.git("add", "code.py")
    repository.write("code.py", "x = 3\n")
    found = repository.measured("code.py", "gone.py").code
    assert found.files == {"code.py": repository.git("hash-object", "code.py")[:12]}
    assert found.left_out == 0
    assert repository.git("status", "--porcelain") == "MM code.py", "the real index is not touched"


@pytest.mark.long
def test_files_that_changed_within_the_second_of_the_index(repository):
    """Same size, same second: git looks into the file then, unless its index seems to be younger than that."""
    path = repository.write("code.py", "x = 5\n")
    repository.git("add", "--all")
    path.write_text("x = 6\n")
    time.sleep(1.1)
    assert repository.measured("code.py").code.files["code.py"] == repository.git("hash-object", "code.py")[:12]


def test_line_ends_are_as_git_stores_them(repository):
    repository.write(".gitattributes", "*.py text\n")
    repository.commit()
    (repository.root / "code.py").write_bytes(b"x = 1\r\n")
    assert repository.measured("code.py").code.files["code.py"] == repository.git("rev-parse", "HEAD:code.py")[:12]


def test_what_is_no_code(repository):
    names = (
        *("baselines/test.json", "perf-report/index.html", "__pycache__/code.pyc", "code.pyc", ".git/config"),
        *("tests/__pycache__/x.py", ".pytest_cache/v/lastfailed"),
    )
    for name in names:
        if not name.startswith(".git/"):
            repository.write(name, "some")
    assert repository.measured(*names).code.files == {}
    repository.commit()
    assert repository.measured(*names, "code.py").code.files.keys() == {"code.py"}


def test_unknown_and_ignored_files(repository):
    repository.write(".gitignore", "*.log\nbuilt/\n")
    repository.commit()
    for name in ("helper.py", "run.log", "built/_C.so"):
        repository.write(name, "some")
    found = repository.measured("code.py", "helper.py", "run.log", "built/_C.so")
    assert found.code.files.keys() == {"code.py", "helper.py"}
    assert found.unknown == ("helper.py",)
    assert found.code.ignored == ("built/_C.so", "run.log")
    assert not found.code.is_complete
    assert repository.measured("code.py").code.is_complete


def test_names_that_no_record_can_hold_are_counted(repository):
    (repository.root / "\udcff.py").symlink_to("code.py")
    repository.write("a\nb.py", "")
    found = repository.measured("code.py", "\udcff.py", "a\nb.py").code
    assert (found.files.keys(), found.left_out) == ({"code.py"}, 2)


def test_too_many_files_and_too_large_ones_are_counted(repository, monkeypatch):
    for number in range(6):
        repository.write(f"data/{number}.bin", "some")
    monkeypatch.setattr(code_module, "MOST_FILES", 4)
    found = repository.measured("code.py", *(f"data/{number}.bin" for number in range(6))).code
    assert list(found.files) == ["code.py", "data/0.bin", "data/1.bin", "data/2.bin"], "code before data"
    assert (found.left_out, found.is_complete) == (3, False)
    monkeypatch.setattr(code_module, "MOST_BYTES", 10)
    repository.write("data/0.bin", "much more")
    assert hashes(repository.root, ["data/0.bin", "data/1.bin"]).keys() == {"data/1.bin"}
    assert repository.measured("data/0.bin", "data/1.bin").code.left_out == 1
    # What git knows already costs nothing.
    repository.commit()
    assert repository.measured("data/0.bin", "data/1.bin").code.left_out == 0


def test_code_that_changes_later_is_noticed(repository):
    repository.write("new.py", "a = 1\n")
    time.sleep(0.02)
    began = time.time_ns()
    commit = repository.head

    def changed():
        found = repository.measured("code.py", "new.py", "output.txt", commit=commit, since_ns=began)
        assert "output.txt" not in found.code.files
        return found.changed

    assert changed() == ()
    # What a run writes is no change of the code, nor is a file that is only touched.
    repository.write("output.txt", "1")
    os.utime(repository.write("code.py", "x = 1\n"), (1, 1))
    assert changed() == ()
    repository.write("code.py", "x = 2\n")
    assert changed() == ("code.py",)
    repository.git("commit", "--quiet", "--message", "meanwhile", "code.py")
    assert changed() == ("code.py",), "committing it does not undo it"
    repository.write("code.py", "x = 1\n")
    assert changed() == ()
    repository.write("new.py", "a = 2\n")
    assert changed() == ("new.py",)


def test_present_files_of_a_record(repository):
    base = repository.recorded()
    assert present(repository.root, base.code.files) == base.code.files
    (repository.root / "other.py").unlink()
    assert present(repository.root, base.code.files).keys() == {"code.py", "pytest.ini"}
    assert present(repository.root, Code({}).files) == {}


def test_files_that_were_opened_by_no_code_that_is_heard(repository):
    for name in ("data/a.h5", "data/b.h5", "code.py"):
        repository.write(name, "some")
    repository.write(".gitignore", "*.log\n")
    repository.commit()
    repository.write("run.log", "some")
    repository.write("notes.txt", "some")

    def found(*opened, **rest):
        code = repository.measured("code.py", unnoted=opened, **rest).code
        return sorted(code.files), code.ignored, code.left_out

    assert found("data/a.h5", "baselines/x.json", ".git/index", ".gitignore", "sub/.git") == (
        ["code.py", "data/a.h5"],
        (),
        0,
    )
    # Whose an unknown file is, the test's or an editor's, nobody knows.
    assert found("run.log", "notes.txt") == (["code.py"], (), 2)
    assert found("notes.txt", since_ns=0) == (["code.py"], (), 0), "made by the run"
    unknown = repository.measured("code.py", unnoted=None).code
    assert (unknown.left_out, unknown.is_complete) == (1, False)


def test_somebody_who_reads_the_whole_folder(repository, monkeypatch):
    monkeypatch.setattr(code_module, "_MOST_UNNOTED", 2)
    names = [f"data/{number}.bin" for number in range(3)]
    for name in names:
        repository.write(name, "some")
    repository.commit()
    assert repository.measured("code.py", unnoted=names[:2]).code.files.keys() == {"code.py", *names[:2]}
    many = repository.measured("code.py", unnoted=names).code
    assert (many.files.keys(), many.left_out) == ({"code.py"}, 3)


def test_a_library_decides_which_commit_it_is(repository):
    repository.write("lib/w.so", "slow")
    slow = repository.commit()
    base = repository.recorded("code.py", "lib/w.so")
    repository.write("lib/w.so", "fast")
    repository.commit()
    assert code_of(base, repository.root / "baselines/test.json", repository.root).commit == slow
