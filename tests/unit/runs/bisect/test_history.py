"""The commits between two ends, and what is refused in one line."""

import subprocess

import pytest

from pytest_perfdl.model.errors import InputError
from pytest_perfdl.results.verdict import SourceDiff
from pytest_perfdl.runs.bisect import history
from pytest_perfdl.runs.bisect.history import WORKING_TREE, read_history, undone, working_tree_state
from pytest_perfdl.runs.bisect.posterior import Blamed, prior_of

STEP = "def step():\n    return {}\n\n\ndef other():\n    return {}\n"


def git(root, *words):
    identity = ("-c", "user.name=Author", "-c", "user.email=author@example.org")
    done = subprocess.run(["git", *identity, *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(root, message, **files):
    for name, text in files.items():
        (root / f"{name}.py").write_text(text)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "-m", message)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "--quiet", "-b", "main")
    commit(root, "good", model=STEP.format(1, 1))
    commit(root, "step", model=STEP.format(2, 1))
    commit(root, "other", model=STEP.format(2, 2), notes="")
    commit(root, "undone", model=STEP.format(1, 2))
    commit(root, "bad: Umlaut \u00fc", data="1")
    return root


def test_the_commits_in_order(repository):
    found = read_history(repository, "HEAD~4", "HEAD")
    assert [each.subject for each in found.commits] == ["good", "step", "other", "undone", "bad: Umlaut \u00fc"]
    assert [each.files for each in found.commits[1:]] == [
        ("model.py",), ("model.py", "notes.py"), ("model.py",), ("data.py",),
    ]  # fmt: skip
    assert found.good.sha == git(repository, "rev-parse", "HEAD~4")
    assert found.bad.name == git(repository, "rev-parse", "HEAD")[:9]
    assert found.notes == ()


def test_without_a_bad_end_uncommitted_changes_are_the_last_commit(repository):
    assert read_history(repository, "HEAD~1").bad.subject == "bad: Umlaut \u00fc"
    state = working_tree_state(repository)
    (repository / "model.py").write_text("changed = 1\n")
    found = read_history(repository, "HEAD~1")
    assert found.bad.sha == found.bad.name == WORKING_TREE
    assert found.bad.files == ("model.py",)
    assert "uncommitted changes" in found.notes[0]
    assert working_tree_state(repository) != state
    (note,) = read_history(repository, "HEAD~1", "HEAD").notes
    assert "not measured" in note


def _new(root):
    (root / "new.py").write_text("return 1\n")


def _changed(root):
    (root / "model.py").write_text("return 1\n")


def _ignored(root):
    (root / ".gitignore").write_text("*.so\n")
    (root / "fast.so").write_text("return 1\n")


def _assumed_unchanged(root):
    git(root, "update-index", "--assume-unchanged", "model.py")


def _in_submodule(root):
    inner = root.parent / "inner"
    inner.mkdir()
    git(inner, "init", "--quiet")
    commit(inner, "inner", inner="1")
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub")


def _inside(root):
    (root / "inside").mkdir()
    git(root / "inside", "init", "--quiet")
    (root / "inside" / "new.py").write_text("return 1\n")


@pytest.mark.parametrize(
    "prepare, name",
    [
        (_new, "new.py"), (_changed, "model.py"), (_ignored, "fast.so"), (_assumed_unchanged, "model.py"),
        (_in_submodule, "sub/inner.py"), (_in_submodule, "sub/new.py"), (_inside, "inside/new.py"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("most", [2**20, 0], ids=["content", "large"])
def test_the_state_of_the_working_tree_is_that_of_its_contents(repository, monkeypatch, prepare, name, most):
    monkeypatch.setattr(history, "MOST_BYTES", most)
    # Of difftastic and others: prints the same whatever changes.
    git(repository, "config", "diff.external", "true")
    prepare(repository)
    states = [working_tree_state(repository)]
    for text in ("return sum(range(10**7))\n", "return sum(range(10**8))\n"):
        (repository / name).write_text(text)
        states.append(working_tree_state(repository))
    assert len({*states}) == 3
    # Of what is no code of its own, and of reading alone, it is the same.
    (repository / "__pycache__").mkdir()
    (repository / "__pycache__" / "new.pyc").write_text("")
    (repository / ".git" / "info" / "exclude").write_text("*.log\n__pycache__\n")
    (repository / "made.log").write_text("")
    assert working_tree_state(repository) == states[-1]


def test_a_merge_is_one_commit_with_all_that_it_brings(repository):
    git(repository, "checkout", "--quiet", "-b", "side", "HEAD~2")
    first = commit(repository, "side one", first="1")
    commit(repository, "side two", second="2")
    git(repository, "checkout", "--quiet", "main")
    git(repository, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
    found = read_history(repository, "HEAD~2")
    assert [each.subject for each in found.commits] == ["undone", "bad: Umlaut \u00fc", "merge"]
    assert found.bad.files == ("first.py", "second.py")
    with pytest.raises(InputError, match=r"not on the first-parent line of .* use [0-9a-f]{9} as GOOD"):
        read_history(repository, first)


@pytest.mark.parametrize(
    "ends, said",
    [
        (("nothing",), "no git revision 'nothing'"),
        (("--all",), "'--all' begins with a dash, so it is no git revision"),
        (("HEAD", "HEAD~1"), "name the older commit first"),
        (("HEAD",), "the same commit"),
        (("HEAD", "HEAD"), "HEAD and HEAD are the same commit"),
    ],
)
def test_ends_that_are_refused(repository, ends, said):
    with pytest.raises(InputError, match=said) as caught:
        read_history(repository, *ends)
    assert "\n" not in str(caught.value)


def test_a_good_end_that_the_bad_one_does_not_follow(repository):
    git(repository, "checkout", "--quiet", "--orphan", "another")
    commit(repository, "another", model="1")
    with pytest.raises(InputError, match="is not an ancestor of"):
        read_history(repository, "main", "another")


def test_no_repository(tmp_path):
    with pytest.raises(InputError, match="is in no git repository: run perfdl bisect in the project"):
        read_history(tmp_path, "HEAD")


def test_a_shallow_clone(repository, tmp_path):
    clone = tmp_path / "clone"
    good = git(repository, "rev-parse", "HEAD~3")
    git(tmp_path, "clone", "--quiet", "--depth", "2", f"file://{repository}", str(clone))
    for revision in (good, "HEAD~3"):
        with pytest.raises(InputError, match="git fetch --unshallow"):
            read_history(clone, revision)


def test_a_commit_whose_changes_are_gone_later(repository):
    found = read_history(repository, "HEAD~4", "HEAD")
    assert undone(found, 1) is None, "another function of its file has changed since"
    commit(repository, "as at first", model=STEP.format(1, 1))
    commit(repository, "last", data="2")
    assert undone(read_history(repository, "HEAD~6"), 1) == 5


def test_the_prior_prefers_commits_that_change_blamed_functions(repository):
    commit(repository, "text", notes="x")
    (repository / "README.md").write_text("read")
    commit(repository, "documents")
    blamed = Blamed.of([{"line": "model.py(2): step"}], [SourceDiff("model.py", "step", "")])
    prior = prior_of(read_history(repository, "HEAD~6"), blamed, ["data.py"])
    step, other, undone_, laid_over, text, documents = prior
    assert step == undone_ > other > text > laid_over == documents >= 0.25 / 6
    assert sum(prior) == pytest.approx(1)
