"""The commit to compare with, in clones as CI systems make them: shallow, and without branches."""

import pytest

from pytest_perfdl.ci import job
from pytest_perfdl.ci.job import Base, find
from pytest_perfdl.model.errors import CommandError
from unit.ci.repositories import Hosted, commit, git


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    return Hosted(tmp_path_factory.mktemp("hosted") / "name")


def is_shallow(folder):
    return git(folder, "rev-parse", "--is-shallow-repository") == "true"


@pytest.mark.parametrize("depth", [1, 2, 0])
def test_the_merge_of_a_pull_request_is_compared_with_what_it_is_merged_into(depth, hosted, tmp_path):
    folder = hosted.checkout(tmp_path / "job", "refs/pull/7/merge", depth=depth)
    found = find(folder, Base("branch", "main", hosted.merge))
    # main has gone on since: its newest commit would add the changes of others.
    assert found.commit == hosted.left != hosted.main[-1]
    assert found.why == "first parent of HEAD, which merges the pull request"
    assert git(folder, "cat-file", "-t", found.commit) == "commit"
    assert git(folder, "rev-parse", "HEAD") == hosted.merge
    assert is_shallow(folder) == (depth > 0)


@pytest.mark.parametrize("depth", [1, 2, 0])
def test_the_head_of_a_pull_request_is_compared_with_where_it_left_the_branch(depth, hosted, tmp_path):
    folder = hosted.checkout(tmp_path / "job", "refs/heads/feature", depth=depth)
    found = find(folder, Base("branch", "main", hosted.merge))
    assert found == job.Found(hosted.left, "merge base of HEAD and origin/main")


@pytest.mark.long
def test_a_clone_is_deepened_only_as_far_as_needed(tmp_path, monkeypatch):
    hosted = Hosted(tmp_path / "name", before=8, since=3)
    monkeypatch.setattr(job, "DEEPENINGS", (2, 2))
    folder = hosted.checkout(tmp_path / "job", "refs/heads/feature")
    assert find(folder, Base("branch", "main")).commit == hosted.left
    assert is_shallow(folder)
    far = hosted.checkout(tmp_path / "far", "refs/heads/feature")
    monkeypatch.setattr(job, "DEEPENINGS", ())
    assert find(far, Base("branch", "main")).commit == hosted.left
    assert not is_shallow(far)


def test_without_a_branch_it_is_the_default_one(hosted, tmp_path):
    folder = hosted.checkout(tmp_path / "job", "refs/heads/feature")
    assert find(folder, Base("branch")) == job.Found(hosted.left, "merge base of HEAD and origin/main")
    by_hand = tmp_path / "by-hand"
    git(tmp_path, "clone", "--quiet", "--branch", "feature", f"file://{hosted.folder}", str(by_hand))
    assert find(by_hand, Base("branch")).commit == hosted.left


def test_on_the_branch_itself_it_is_the_commit_before(hosted, tmp_path):
    folder = hosted.checkout(tmp_path / "job", "refs/heads/main")
    found = find(folder, Base("branch"))
    assert found == job.Found(hosted.main[-2], "commit before HEAD, which is on origin/main")


@pytest.mark.parametrize("depth", [1, 0])
@pytest.mark.parametrize("name", ["v1.0", "main", "origin/main", "hash", "HEAD~2"])
def test_a_revision_is_that_commit(name, depth, hosted, tmp_path):
    folder = hosted.checkout(tmp_path / "job", "refs/heads/feature", depth=depth)
    wanted = {"v1.0": hosted.main[0], "hash": hosted.main[1], "HEAD~2": hosted.left}.get(name, hosted.main[-1])
    assert find(folder, Base("revision", hosted.main[1] if name == "hash" else name)).commit == wanted
    assert is_shallow(folder) == (depth > 0 and name != "HEAD~2")


def test_offline_what_the_clone_has_is_used(hosted, tmp_path):
    folder = hosted.checkout(tmp_path / "job", "refs/heads/feature", depth=0)
    find(folder, Base("branch", "main"))
    git(folder, "remote", "set-url", "origin", "https://user:secret@127.0.0.1:1/name.git")
    assert find(folder, Base("branch", "main")).commit == hosted.left
    with pytest.raises(CommandError) as refused:
        find(folder, Base("branch", "other"))
    assert str(refused.value).startswith("the branch other cannot be fetched from origin: unable to access")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "wanted, said",
    [
        (Base("revision", "nowhere"), "git knows no commit nowhere, and cannot fetch one from origin"),
        (Base("revision", "--upload-pack=x"), "'--upload-pack=x' is not a git revision"),
        (Base("revision", "a b"), "'a b' is not a git revision"),
        (Base("branch", "nowhere"), "the branch nowhere cannot be fetched from origin: couldn't find remote ref"),
    ],
)
def test_what_cannot_be_found_is_one_line(wanted, said, hosted, tmp_path):
    folder = hosted.checkout(tmp_path / "job", "refs/heads/feature")
    with pytest.raises(CommandError) as refused:
        find(folder, wanted)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_a_repository_without_what_is_needed_is_one_line(tmp_path):
    with pytest.raises(CommandError, match="there is no commit to compare"):
        find(tmp_path, Base("branch"))
    alone = tmp_path / "alone"
    alone.mkdir()
    git(alone, "init", "--quiet", "--initial-branch=main")
    head = commit(alone, "first")
    with pytest.raises(CommandError, match="the repository has no remote origin with a default branch"):
        find(alone, Base("branch"))
    with pytest.raises(CommandError, match="HEAD has no commit before it"):
        find(alone, Base("branch", "main", head))


def test_histories_without_a_common_commit_are_one_line(hosted, tmp_path):
    folder = hosted.checkout(tmp_path / "job", "refs/heads/feature")
    git(folder, "switch", "--quiet", "--orphan", "other")
    commit(folder, "of its own")
    with pytest.raises(CommandError, match="HEAD and origin/main have no common commit"):
        find(folder, Base("branch", "main"))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["revision", "branch"])
def test_a_name_is_no_option_and_no_refspec(kind, hosted, tmp_path):
    # `--upload-pack` is run for a repository on the same disk.
    folder, ran = tmp_path / "job", tmp_path / "ran"
    git(tmp_path, "clone", "--quiet", str(hosted.folder), str(folder))
    before = git(folder, "for-each-ref")
    option = f"--upload-pack=touch${{IFS}}{ran};git-upload-pack"
    for text in (
        option,
        "main:demo",
        "+main:demo",
        "+refs/heads/*:refs/heads/*",
        "^main",
        "main\0",
        "a..b",
        "-",
        "a b",
    ):
        for prefix in ("", "origin/", "origin/origin/", "refs/heads/"):
            with pytest.raises(CommandError) as refused:
                find(folder, Base(kind, prefix + text))
            assert len(str(refused.value).splitlines()) == 1
            assert git(folder, "for-each-ref") == before
            assert not ran.exists()


def test_what_git_refuses_is_said_in_its_own_words(hosted, tmp_path, monkeypatch):
    folder = hosted.checkout(tmp_path / "job", "refs/heads/feature")
    # As if the folder were another user's.
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(CommandError) as refused:
        find(folder, Base("branch"))
    assert str(refused.value) == (
        f"there is no commit to compare: detected dubious ownership in repository at '{folder}': "
        f"git config --global --add safe.directory {folder}"
    )
