"""Files of the working tree in a checkout: exactly those, and never through a link that leads elsewhere."""

import pytest

from pytest_perfdl.model.errors import CheckoutError
from pytest_perfdl.workers.checkout import Checkout, overlay, with_conftests


@pytest.fixture
def checkout(tmp_path):
    for side in ("repo", "other"):
        (tmp_path / side / "tests").mkdir(parents=True)
        for name in ("demo.py", "conftest.py", "tests/test_it.py", "tests/helper.py"):
            (tmp_path / side / name).write_text(side)
    return Checkout(tmp_path / "repo", tmp_path / "other")


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_files_and_nothing_beside_them(checkout):
    test = checkout.working_tree / "tests/test_it.py"
    before = content(checkout.working_tree)
    overlay(checkout, [test, test])
    assert content(checkout.root) == dict.fromkeys(before, "other") | {"tests/test_it.py": "repo"}
    assert content(checkout.working_tree) == before


def test_the_conftests_on_the_way_and_no_others(checkout):
    top = checkout.working_tree
    for name in ("tests/perf/test_a.py", "tests/perf/test_b.py", "tests/perf/conftest.py", "tests/unit/conftest.py"):
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).touch()
    found = with_conftests([top / "tests/perf/test_a.py", top / "tests/perf/test_b.py"], top)
    names = ["conftest.py", "tests/perf/conftest.py", "tests/perf/test_a.py", "tests/perf/test_b.py"]
    assert sorted(path.relative_to(top).as_posix() for path in found) == names
    assert top / "conftest.py" not in with_conftests([top / "tests/perf/test_a.py"], top / "tests")


def test_the_conftests_on_the_way_of_a_test_named_through_a_link(checkout, tmp_path):
    (tmp_path / "link").symlink_to(checkout.working_tree)
    test = tmp_path / "link/tests/test_it.py"
    assert with_conftests([test], checkout.working_tree) == [tmp_path / "link/conftest.py", test]


def test_a_folder_that_the_other_revision_lacks_is_made(checkout):
    test = checkout.working_tree / "tests/new/deep/test_it.py"
    test.parent.mkdir(parents=True)
    test.write_text("repo")
    overlay(checkout, [test])
    assert (checkout.root / "tests/new/deep/test_it.py").read_text() == "repo"


def test_a_link_to_a_file_is_replaced_not_written_through(checkout, tmp_path):
    (tmp_path / "precious.py").write_text("precious")
    target = checkout.root / "tests/test_it.py"
    target.unlink()
    target.symlink_to(tmp_path / "precious.py")
    overlay(checkout, [checkout.working_tree / "tests/test_it.py"])
    assert (target.read_text(), target.is_symlink()) == ("repo", False)
    assert (tmp_path / "precious.py").read_text() == "precious"


def test_nothing_is_written_through_links_of_the_commit_to_any_name_beside_the_file(checkout, tmp_path):
    (tmp_path / "precious.py").write_text("precious")
    for name in ("test_it.py.perfdl.tmp", "test_it.py.tmp", "test_it.py.new"):
        (checkout.root / "tests" / name).symlink_to(tmp_path / "precious.py")
    (checkout.working_tree / "tests/test_it.py").chmod(0o755)
    overlay(checkout, [checkout.working_tree / "tests/test_it.py"])
    target = checkout.root / "tests/test_it.py"
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("repo", 0o755)
    assert (tmp_path / "precious.py").read_text() == "precious"


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_that_leads_out_of_the_checkout_is_refused(checkout, tmp_path, exists):
    elsewhere = tmp_path / "elsewhere"
    if exists:
        elsewhere.mkdir()
        (elsewhere / "test_it.py").write_text("precious")
    (checkout.root / "tests").rename(tmp_path / "unused")
    (checkout.root / "tests").symlink_to(elsewhere)
    with pytest.raises(
        CheckoutError,
        match=r".*/repo/tests/test_it.py cannot be replaced, because it is a link to .*/elsewhere/test_it.py in",
    ):
        overlay(checkout, [checkout.working_tree / "tests/test_it.py"])
    assert content(tmp_path / "elsewhere") == ({"test_it.py": "precious"} if exists else {})


def test_what_both_sides_reach_is_left_alone(checkout, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "test_it.py").write_text("precious")
    for side in (checkout.working_tree, checkout.root):
        (side / "linked").symlink_to(shared)
    overlay(checkout, [shared / "test_it.py", checkout.working_tree / "linked/test_it.py"])
    assert content(shared) == {"test_it.py": "precious"}


def test_a_file_where_a_folder_must_be_is_one_line(checkout):
    (checkout.root / "new").write_text("a file")
    (checkout.working_tree / "new").mkdir()
    (checkout.working_tree / "new/test_it.py").touch()
    with pytest.raises(CheckoutError, match="to the baseline checkout: "):
        overlay(checkout, [checkout.working_tree / "new/test_it.py"])
