"""Where a side's code is imported from: folders elsewhere are shared by both sides, and rightly so."""

from types import SimpleNamespace

import pytest

from pytest_perfdl.run.revisions import Revisions
from pytest_perfdl.workers.checkout import Checkout


def test_folders_of_the_repository_only(tmp_path):
    top, base = tmp_path / "repo", tmp_path / "base"
    (top / "project").mkdir(parents=True)
    (tmp_path / "link").symlink_to(top)
    places = [tmp_path / "link/project/lib", tmp_path / "shared"]
    config = SimpleNamespace(rootpath=tmp_path / "link/project", getini=lambda _: places)
    revisions = SimpleNamespace(top=top, _config=config)
    project = top / "project"
    assert Revisions.import_folders(revisions, None) == [top, project, top / "src", project / "src", project / "lib"]
    moved = Revisions.import_folders(revisions, Checkout(top, base))
    assert moved == [base, base / "project", base / "src", base / "project/src", base / "project/lib"]


def test_without_pytests_plugin_for_import_paths(tmp_path):
    def getini(name):
        raise ValueError(name)

    revisions = SimpleNamespace(top=tmp_path, _config=SimpleNamespace(rootpath=tmp_path, getini=getini))
    assert Revisions.import_folders(revisions, None) == [tmp_path, tmp_path / "src"]


@pytest.mark.parametrize(
    "seconds, note",
    [([0.2, 0.3], ""), ([4.0, 2.0], "baseline commits: 1 checked out, 1 reused from earlier runs, in 6.0 s")],
)
def test_long_checkouts_are_noted(seconds, note):
    made = {
        str(kept): SimpleNamespace(is_kept=kept, seconds=each)
        for kept, each in zip((False, True), seconds, strict=True)
    }
    assert Revisions.checked_out.fget(SimpleNamespace(_checkouts=made)) == note
