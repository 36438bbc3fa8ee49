"""What an interpreter says of its environment."""

import sys

import pytest
from plugin.project import environment, install

import pytest_perfdl
from pytest_perfdl.model.errors import CheckoutError
from pytest_perfdl.workers.interpreter import check_version, describe, differences


@pytest.mark.long
def test_this_interpreter():
    found = describe(sys.executable)

    assert found.prefix == sys.prefix
    assert found.python == sys.version.split()[0]
    assert found.distributions["pytest"].version == pytest.__version__
    assert not differences(found, describe(sys.executable))
    check_version(found)


@pytest.mark.parametrize("name", [".", "bin/python"])
def test_an_environment_is_named_by_its_folder_or_its_interpreter(tmp_path, name):
    environment(tmp_path / "there", bare=True, one_of_them=("1.2", "x = 1"))
    found = describe(str(tmp_path / "there" / name))

    assert found.executable == str(tmp_path / "there" / "bin" / "python")
    assert {name: each.version for name, each in found.distributions.items()} == {"one-of-them": "1.2"}
    with pytest.raises(CheckoutError, match="has no pytest-perfdl, but both sides need version"):
        check_version(found)


def test_equal_versions_with_other_files_differ(tmp_path):
    environment(tmp_path / "a", bare=True, kernels=("1.0", "x = 1"), equal=("1", ""))
    environment(tmp_path / "b", bare=True, kernels=("1.0", "x = 2"), equal=("1", ""))
    found = differences(describe(str(tmp_path / "a")), describe(str(tmp_path / "b")))

    assert list(found) == ["kernels"]
    assert found["kernels"][0] != found["kernels"][1]
    assert all(text.startswith("1.0 (") for text in found["kernels"])


def test_another_version_of_the_plugin_comes_with_the_command(tmp_path):
    python = environment(tmp_path / "a", bare=True, pytest_perfdl=("0.0.1", ""))
    with pytest.raises(CheckoutError) as caught:
        check_version(describe(str(python)))

    assert str(caught.value) == (
        f"{python} has pytest-perfdl 0.0.1, but both sides need version {pytest_perfdl.__version__}: run {python} -m "
        f"pip install pytest-perfdl=={pytest_perfdl.__version__}"
    )


def test_a_distribution_of_two_folders_counts_once(tmp_path):
    """The one that an import finds: the first on the path."""
    python = environment(tmp_path / "a", bare=True, kernels=("1.0", ""))
    (tmp_path / "second").mkdir()
    install(tmp_path / "second", "kernels", "2.0", "")
    (packages,) = (tmp_path / "a").glob("lib/python*/site-packages")
    (packages / "second.pth").write_text(f"{tmp_path / 'second'}\n")

    assert describe(str(python)).distributions["kernels"].version == "1.0"


def test_a_command_of_the_path_is_found():
    assert describe("python3").python
    with pytest.raises(CheckoutError, match=r"^there is no Python interpreter no-such-python$"):
        describe("no-such-python")
    with pytest.raises(CheckoutError, match=r"^there is no Python interpreter ~no-such-user/bin/python$"):
        describe("~no-such-user/bin/python")
