import logging
import os
import sys

import pytest
from steps import step

pytestmark = pytest.mark.perf


@pytest.fixture
def noisy():
    print("out of setup")
    logging.getLogger("noisy").warning("log of setup")
    yield
    print("err of teardown", file=sys.stderr)
    logging.getLogger("noisy").warning("log of teardown")


def test_streams(perf, noisy):
    print("out before")
    perf(step)
    print("err after", file=sys.stderr)
    logging.getLogger("noisy").error("log after")


def test_streams_of_failure(noisy):
    print("out before")
    print("err before", file=sys.stderr)
    logging.getLogger("noisy").error("log before")
    raise AssertionError("and now it fails")


def test_descriptors():
    os.write(1, b"written to descriptor 1\n")
    os.write(2, b"written to descriptor 2\n")
    raise AssertionError("and now it fails")


def test_capsys(perf, capsys):
    print("caught")
    perf(step)
    assert capsys.readouterr().out == "caught\n"
    print("left over")


def test_capfd(perf, capfd):
    os.write(1, b"caught\n")
    perf(step)
    assert capfd.readouterr().out == "caught\n"


def test_caplog(perf, caplog):
    with caplog.at_level(logging.DEBUG, logger="quiet"):
        logging.getLogger("quiet").debug("said")
        perf(step)
    assert caplog.messages == ["said"]


def test_no_capturing(capsys):
    with capsys.disabled():
        print("straight to the terminal")
    raise AssertionError("and now it fails")
