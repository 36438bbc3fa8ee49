"""Requests that fail: tried again where that helps, told in one line, without the token."""

import pytest

from pytest_perfdl.ci import comment as of_api
from pytest_perfdl.ci.comment import ATTEMPTS, Api
from pytest_perfdl.model.errors import ApiError
from unit.ci.fake_github import REPOSITORY, TOKEN

PATH = f"/repos/{REPOSITORY}/issues/7/comments"
ASK = f"{PATH}?per_page=100&page=1"


@pytest.fixture
def pauses():
    return []


@pytest.fixture
def api(github, pauses):
    return Api(github.url, TOKEN, pauses.append)


def refused(api, method="GET", path=ASK):
    with pytest.raises(ApiError) as error:
        api.call(method, path)
    assert "\n" not in str(error.value)
    assert TOKEN not in str(error.value)
    return error.value


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_server_in_trouble_is_asked_again(status, api, github, pauses):
    github.troubles = [(status, {}, "busy")] * (ATTEMPTS - 1)
    assert api.call("GET", ASK) == []
    assert pauses == [1, 2, 4]


def test_it_is_asked_only_so_often(api, github, pauses):
    github.troubles = [(503, {}, "busy")] * ATTEMPTS
    error = refused(api)
    assert str(error) == f"GET {PATH}: 503 Service Unavailable"
    assert error.status == 503
    assert len(github.requests) == ATTEMPTS


def test_it_waits_as_long_as_the_server_says_within_reason(api, github, pauses):
    limit = '{"message": "You have exceeded a secondary rate limit"}'
    github.troubles = [(403, {"Retry-After": "7"}, "{}"), (403, {"Retry-After": "9999"}, "{}"), (403, {}, limit)]
    assert api.call("GET", ASK) == []
    assert pauses == [7, of_api.LONGEST_PAUSE, 4]


def test_what_the_server_refuses_is_not_asked_again(api, github, pauses):
    github.troubles = [(403, {}, '{"message": "Resource not accessible by integration"}')]
    error = refused(api)
    assert (error.status, str(error)) == (403, f"GET {PATH}: 403 Resource not accessible by integration")
    assert pauses == []


def test_a_wrong_token_is_not_shown(github, pauses):
    api = Api(github.url, "wrong" + TOKEN, pauses.append)
    assert str(refused(api)) == f"GET {PATH}: 401 Bad credentials"
    assert TOKEN not in repr(api)


def test_what_a_server_says_is_one_short_line_without_the_token(api, github):
    said = f"\\u001b[31m\\n::error::{TOKEN} " + "x" * 1000
    github.troubles = [(422, {}, '{"message": "' + said + '"}')]
    text = str(refused(api))
    assert text.startswith(f"GET {PATH}: 422 \\x1b[31m\\n::error::*** xxx")
    assert len(text) < 300


def test_a_redirect_is_not_followed(api, github):
    github.troubles = [(301, {"Location": f"{github.url}/user"}, "{}")]
    assert str(refused(api)) == f"GET {PATH}: 301 Moved Permanently"
    assert len(github.requests) == 1


@pytest.mark.parametrize("text", ["<html>", "[" * 100_000, "\udcff".encode("utf-8", "surrogatepass").decode("latin-1")])
def test_an_answer_that_is_no_json(text, api, github):
    github.troubles = [(200, {}, text)]
    assert str(refused(api)) == f"GET {PATH}: the answer of {github.url} is not JSON: check GITHUB_API_URL"


def test_an_answer_that_is_too_large(api, github, monkeypatch):
    monkeypatch.setattr(of_api, "ANSWER_LIMIT", 100)
    github.troubles = [(200, {}, "[" + " " * 100 + "]")]
    assert str(refused(api)).endswith("is not JSON: check GITHUB_API_URL")


def test_no_server(pauses):
    error = refused(Api("http://127.0.0.1:1", TOKEN, pauses.append))
    assert str(error).startswith(f"GET {PATH}: http://127.0.0.1:1 does not answer (")
    assert error.status == 0
    assert pauses == [1, 2, 4]


@pytest.mark.parametrize("url", ["", "github", "file:///etc"])
def test_no_address(url, pauses):
    assert str(refused(Api(url, TOKEN, pauses.append))).startswith("GITHUB_API_URL is not an address: ")
