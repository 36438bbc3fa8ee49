"""Steps of a CI job: the commit to compare with, outputs for later steps, the comment on a pull request.

They also run outside of CI: `perfdl ci base` prints the commit where HEAD left the default branch.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pytest_perfdl.cli.common import Parser, run_file, say
from pytest_perfdl.model.errors import ApiError, CommandError
from pytest_perfdl.model.visible import visible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommand's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)
    base = actions.add_parser(
        "base",
        help="print the commit to compare with, and fetch it if the clone is shallow: the commit that a pull request "
        "is merged into, the commit before a push, otherwise the merge base with the remote's default branch",
    )
    base.add_argument(
        "ref", metavar="REF", nargs="?", default="", help="compare with this branch, tag or commit instead"
    )
    outputs = actions.add_parser(
        "outputs", help="print lines `name=value` for $GITHUB_OUTPUT: the report folder, and the number of verdicts"
    )
    _add_run(outputs)
    comment = actions.add_parser(
        "comment",
        help="create or update the comment on a GitHub pull request with the token in GITHUB_TOKEN; without permission "
        "to comment, print a notice",
    )
    _add_run(comment)
    comment.add_argument(
        "--pr", metavar="NUMBER", type=_number, help="number of the pull request (default: that of the event)"
    )
    comment.add_argument("--repo", metavar="OWNER/NAME", help="repository (default: GITHUB_REPOSITORY)")
    comment.add_argument(
        "--artifact",
        metavar="NAME",
        default="perf-report",
        help="name of the artifact that has the report; each name has a comment of its own (default: %(default)s)",
    )
    comment.add_argument("--dry-run", action="store_true", help="print the comment; make no request")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN.json", type=run_file, help="run.json file of a report, or the folder of the report"
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:12]) < 10**9):
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a pull request")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Do one step; 0, also where a comment may not be written."""
    return {"base": _base, "outputs": _outputs, "comment": _comment}[arguments.action](arguments)


def _base(arguments: argparse.Namespace) -> int:
    from pytest_perfdl.ci import job

    found = job.find(Path.cwd(), job.Base("revision", arguments.ref) if arguments.ref else job.base())
    say(f"compare with {found.commit[:12]}: {found.why}", error=True)
    say(found.commit)
    return 0


def _outputs(arguments: argparse.Namespace) -> int:
    import json

    from pytest_perfdl.results.run_file import read_run
    from pytest_perfdl.results.verdict import VERDICTS

    path: Path = arguments.run
    measured = read_run(path)
    counts = {**dict.fromkeys(VERDICTS, 0), **measured.counts()}
    say(f"report={path.parent.resolve()}")
    say(f"failed={sum(result.fails for result in measured.results)}")
    say(f"verdicts={json.dumps(counts)}")
    return 0


def _comment(arguments: argparse.Namespace) -> int:
    from pytest_perfdl.ci import comment, job
    from pytest_perfdl.report import github
    from pytest_perfdl.results.run_file import read_run

    path: Path = arguments.run
    told = job.event()
    name = arguments.repo or job.repository()
    body = comment.text(
        read_run(path),
        arguments.artifact,
        repository=job.web_address(name) if name else "",
        run_address=job.run_address(name) if name else "",
        is_untrusted="workflow_run" in told,
    )
    if arguments.dry_run:
        say(body, end="")
        return 0
    repository = job.checked_repository(name)
    token = job.token()
    if not token:
        if github.runs_here():
            return _notice("this job has no token in GITHUB_TOKEN")
        raise CommandError("there is no token: set GITHUB_TOKEN, or print the comment with --dry-run")
    return _post(arguments, repository, token, body)


def _post(arguments: argparse.Namespace, repository: str, token: str, body: str) -> int:
    from pytest_perfdl.ci import comment, job
    from pytest_perfdl.ci.comment import DEFAULT_URL, Api

    api = Api((os.environ.get("GITHUB_API_URL") or DEFAULT_URL).rstrip("/"), token)
    told = job.event()
    try:
        number = arguments.pr or job.pull_request(told)
        head = job.measured_head(told)
        if number is None and head is not None:
            number = comment.pull_request_of(api, repository, head)
            if number is None:
                return _notice(f"no open pull request has the measured commit {head.commit[:12]} as its newest commit")
        if number is None:
            return _notice("this job is not for a pull request (set its number with --pr)")
        posted = comment.upsert(api, repository, number, body)
    except ApiError as error:
        if error.status == 403:
            return _notice(
                "the token of this job has no permission: jobs of a pull request from a fork never have it, others "
                "with `pull-requests: write`"
            )
        raise
    say(f"comment on #{number} {posted.how}: {visible(posted.url)}")
    return 0


def _notice(why: str) -> int:
    """Say why there is no comment: on GitHub Actions also on the page of the run."""
    from pytest_perfdl.report import github

    if github.runs_here():
        sys.stdout.write(f"{github.notice(f'no comment: {why}')}\n")
    else:
        say(f"no comment: {why}")
    return 0
