"""The ranks of one distributed test, driven as one worker, and the options of a worker's pytest."""

from __future__ import annotations

import os
import pickle
import select
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from pytest_perfdl.model.errors import WorkerDied, WorkerTimeout
from pytest_perfdl.model.launch import Launch
from pytest_perfdl.model.units import plural
from pytest_perfdl.system import clocks
from pytest_perfdl.system.distributions import from_an_index
from pytest_perfdl.system.import_path import own_path
from pytest_perfdl.system.pytest_internals import entry_point_plugins, option_actions
from pytest_perfdl.workers.channel import Broken, CallStarted, PhaseReport, Plugins, Reply, Stopped, WorkerJob
from pytest_perfdl.workers.interpreter import Interpreter
from pytest_perfdl.workers.launcher import START_SECONDS, RankLauncher
from pytest_perfdl.workers.process import GRACE_SECONDS, describe_exit, import_texts
from pytest_perfdl.workers.rank_process import RankProcess, waits_for_others

# The ranks of one distributed test, driven as one worker.
#
# A message to the job goes to every rank. What all ranks send in the same order (announcements of calls, replies and
# reports of phases) is joined to one message when every rank has sent its own; everything else is the first rank's. A
# rank that dies, fails or makes no progress leaves the others waiting in their next collective, so the job ends then.


_AFTER_FAILURE_SECONDS = 1.5
"""How long the other ranks may take to report, once one has failed."""
_POLL_SECONDS = 0.05
_SHOWN_RANKS = 3
"""Ranks whose place is told beside that of the one at fault."""
_DOING = {
    "Calibrate": "the calibration of loops",
    "Settle": "the warm-up steps",
    "Time": "the timed steps",
    "Profile": "the profiled steps",
    "Count": "the counted steps",
    "Attribute": "the steps whose memory is recorded",
}
"""What ranks do, by the name of the command."""


class Job:
    """The ranks of a test, with the interface of a `Worker`.

    Parameters
    ----------
    job
        What every rank runs.
    ranks
        Their number.
    launch
        How they are launched.
    join
        Makes one value of those of all ranks, in their order: announcements of a call, or replies.
    folder
        A new folder for the ranks' stacks and outputs.
    root
        Folder that places in the user's code are relative to.
    variables, timeout, inherit_output, import_path, working_folder, interpreter
        As of `Worker`.

    Raises
    ------
    WorkerDied
        The ranks cannot be launched.
    """

    def __init__(
        self,
        job: WorkerJob,
        *,
        ranks: int,
        launch: Launch,
        join: Callable[[Sequence[Any]], Any],
        folder: Path,
        root: str,
        variables: Mapping[str, str],
        timeout: float,
        inherit_output: bool,
        import_path: Sequence[str] | None = None,
        working_folder: str | None = None,
        interpreter: Interpreter | None = None,
    ) -> None:
        self._launch = launch
        self._join = join
        self._root = root
        self._deadline = clocks.monotonic() + timeout
        self._ranks: list[RankProcess] = []
        self._sent: list[object] = [job]
        self._over = False
        self._moved = clocks.monotonic()
        """When a rank last finished a step or sent a message."""
        self._steps: tuple[int, ...] = ()
        self._launcher = RankLauncher(
            ranks,
            launch,
            folder,
            executable=sys.executable if interpreter is None else interpreter.executable,
            own_path=own_path() if interpreter is None else list(interpreter.path),
            import_path=import_texts(sys.path if import_path is None else import_path),
            working_folder=working_folder,
            variables=variables,
            inherit_output=inherit_output,
        )

    def send(self, message: object) -> None:
        """Send a message to every rank; one that is gone is noticed by the next `receive`."""
        self._sent.append(message)
        self._moved = clocks.monotonic()
        for rank in self._ranks:
            rank.send(message)

    def receive(self) -> Any:
        """Wait for the next message, of all ranks or of the first one; `None` once all have ended in good order.

        Raises
        ------
        WorkerDied
            A rank died or made no progress, or the ranks do not make the same calls; the first line names the rank.
        WorkerTimeout
            The job took too long; the message has the stacks of the rank that the others wait for.
        """
        try:
            if not self._ranks:
                self._ranks = self._launcher.connect(self._root, self._deadline)
                for message in self._sent:
                    for rank in self._ranks:
                        rank.send(message)
                self._moved = clocks.monotonic()
            while True:
                found = self._joined()
                if found is not None:
                    return found
                if all(rank.ended for rank in self._ranks):
                    self._launcher.wait(GRACE_SECONDS)
                    self.kill()
                    return None
                self._take(_POLL_SECONDS)
                self._check_progress()
        except (WorkerDied, WorkerTimeout):
            self.kill()
            raise

    def interrupt(self) -> None:
        """End the ranks as Ctrl-C would: fixtures tear down, then whatever is left is killed."""
        if not self._over:
            for rank in self._ranks:
                rank.interrupt()
            if self._ranks:
                self._launcher.wait(GRACE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End all ranks and the launcher now."""
        if self._over:
            return
        self._over = True
        for rank in self._ranks:
            rank.kill()
        self._launcher.kill()

    def _joined(self) -> object | None:
        """The next message, if it is there."""
        self._raise_broken()
        for rank in self._ranks:
            while rank.inbox and not isinstance(rank.inbox[0], (CallStarted, Reply, PhaseReport)):
                message = rank.inbox.popleft()
                if rank is self._ranks[0] or isinstance(message, Stopped):
                    return message
        failed = next((rank for rank in self._ranks if rank.inbox and _is_failure(rank.inbox[0])), None)
        if failed is not None:
            return self._failure(failed)
        self._check_alive()
        if not all(rank.inbox for rank in self._ranks):
            return None
        heads: list[Any] = [rank.inbox[0] for rank in self._ranks]
        if len({_kind(head) for head in heads}) > 1:
            raise WorkerDied(self._different(heads))
        for rank in self._ranks:
            rank.inbox.popleft()
        if isinstance(heads[0], CallStarted):
            return CallStarted(self._join([head.call for head in heads]))
        if isinstance(heads[0], Reply):
            return Reply(self._join([head.value for head in heads]))
        report: object = heads[0]
        return report

    def _raise_broken(self) -> None:
        for rank in self._ranks:
            for message in rank.inbox:
                if isinstance(message, Broken) and not (message.absent and rank is self._ranks[0]):
                    raise WorkerDied(f"{rank.name}: {message.text}")

    def _different(self, heads: Sequence[object]) -> str:
        """Why messages of several ranks cannot be joined."""
        first = next(head for head in heads if _kind(head) != _kind(heads[0]))
        other = self._ranks[heads.index(first)]
        return (
            f"{self._ranks[0].name} {_said(heads[0])}, but {other.name} {_said(first)}: every rank must make the same "
            "perf(...) calls"
        )

    def _failure(self, failed: RankProcess) -> object:
        """The report of the rank that failed first, after the others had time to report or to end.

        Others that neither report nor end wait for it in a collective; they are ended, so that it can tear down alone.
        """
        others = [rank for rank in self._ranks if rank is not failed]
        deadline = clocks.monotonic() + _AFTER_FAILURE_SECONDS
        while clocks.monotonic() < deadline and not all(rank.inbox or rank.ended for rank in others):
            self._take(_POLL_SECONDS)
        self._check_alive()
        report = failed.inbox.popleft()
        stuck = [rank for rank in others if not (rank.inbox and isinstance(rank.inbox[0], PhaseReport))]
        if not stuck:
            for rank in others:
                rank.inbox.popleft()
            return _with_note(report, f"{failed.name} failed {self._doing(failed)}")
        places = "".join(f"; {rank.name} {rank.stands(rank.stack())}" for rank in stuck[:_SHOWN_RANKS])
        for rank in others:
            rank.kill()
        self._ranks = [failed]
        return _with_note(report, f"{failed.name} failed {self._doing(failed)}{places}")

    def _check_alive(self) -> None:
        """Raise if a rank ended before its test did."""
        for rank in self._ranks:
            if rank.ended and not rank.complete and not rank.inbox:
                code = self._launcher.exit_code(rank.pid) if rank.is_local else None
                how = f"{rank.name} ended" if code is None else describe_exit(code, rank.name)
                raise WorkerDied(f"{how} {self._doing(rank)}{self._launcher.tail(rank.number)}")

    def _check_progress(self) -> None:
        """Raise if the time is over, or no rank makes progress."""
        now = clocks.monotonic()
        steps = tuple(rank.steps for rank in self._ranks)
        if steps != self._steps:
            self._steps, self._moved = steps, now
        if now > self._deadline:
            _, stack = self._late()
            raise WorkerTimeout(stack)
        seconds = self._launch.timeout if self._command else max(self._launch.timeout, START_SECONDS)
        if now - self._moved > seconds:
            late, stack = self._late()
            others = [rank for rank in self._ranks if rank is not late][:_SHOWN_RANKS]
            places = "".join(f"; {rank.name} {rank.stands(rank.stack())}" for rank in others)
            raise WorkerDied(
                f"{late.name} made no progress for {seconds:g} s (--perf-rank-timeout) "
                f"{self._doing(late)}: it {late.stands(stack)}{places}"
            )

    def _late(self) -> tuple[RankProcess, str]:
        """The rank that the others wait for, with its stacks.

        It has finished the fewest steps; of several, one that does not wait in a collective itself.
        """
        running = [rank for rank in self._ranks if not rank.inbox and not rank.ended] or self._ranks
        least = min(rank.steps for rank in running)
        stacks = [(rank, rank.stack()) for rank in running if rank.steps == least]
        return min(stacks, key=lambda each: (waits_for_others(each[1]), each[0].number))

    def _doing(self, rank: RankProcess) -> str:
        """What a rank was doing, with its number of steps."""
        if not self._command:
            return "outside of perf(...)"
        return f"in {self._command}, after {plural(rank.steps, 'step')}"

    @property
    def _command(self) -> str:
        """What the ranks were told to do last, in words; empty where they run the test outside of perf(...)."""
        return _DOING.get(type(self._sent[-1]).__name__, "")

    def _take(self, seconds: float) -> None:
        """Take what the ranks send within some seconds."""
        running = {rank.channel.fileno(): rank for rank in self._ranks if not rank.ended}
        if not running:
            return
        for descriptor in select.select(list(running), [], [], seconds)[0]:
            if running[descriptor].take():
                self._moved = clocks.monotonic()


def _is_failure(message: object) -> bool:
    return isinstance(message, PhaseReport) and message.raw != "passed"


def _kind(message: object) -> tuple[str, str]:
    """What must be the same in all ranks."""
    name = message.phase if isinstance(message, PhaseReport) else ""
    return type(message).__name__, name


def _said(message: object) -> str:
    if isinstance(message, PhaseReport):
        return f"ended its {message.phase} phase"
    return "called perf(...)" if isinstance(message, CallStarted) else "answered a command"


def _with_note(report: object, note: str) -> object:
    """A report of a failure that says which rank failed; skips and expected failures stay as they are."""
    if not isinstance(report, PhaseReport) or report.report.get("outcome") != "failed":
        return report
    sections = [*report.report.get("sections", []), ("Ranks", note)]
    return replace(report, report={**report.report, "sections": sections})


# Options of the orchestrating process for a worker's pytest, without those that would interrupt a measurement.


_DENIED = frozenset(
    {
        # Ours: the worker is told by its job.
        "perfdl",
        "perfdl_update",
        "perfdl_against",
        "perfdl_budget",
        "perfdl_inject",
        "perfdl_skip_same",
        "perfdl_isolate",
        "perfdl_report",
        "perfdl_json",
        "perfdl_require",
        # Which tests run is decided already; a worker runs one.
        "file_or_dir",
        "keyword",
        "markexpr",
        "deselect",
        "lf",
        "last_failed_no_failures",
        "failedfirst",
        "newfirst",
        "stepwise",
        "stepwise_skip",
        "stepwise_reset",
        "maxfail",
        "continue_on_collection_errors",
        # What the orchestrating process writes, or removes: the cache is one for all.
        "log_file",
        "debug",
        "cacheclear",
        "junitprefix",
        "basetemp",
        "pastebin",
        # Debuggers need a terminal.
        "usepdb",
        "usepdb_cls",
        "trace",
        # Ends the process before it runs anything.
        "collectonly",
        "help",
        "version",
        "markers",
        "showfixtures",
        "show_fixtures_per_test",
        "cacheshow",
    }
)
"""Of pytest itself, and ours."""

_DENIED_OF_PLUGINS: Mapping[str, tuple[str, ...]] = {
    # These would run the test elsewhere, again or not at all, or cut it short, or trace it.
    "xdist": ("numprocesses", "maxprocesses", "dist", "distload", "tx", "px", "looponfail", "rsync*", "testrunuid"),
    "pytest_rerunfailures": ("reruns*", "force_reruns", "only_rerun", "rerun_*", "fail_on_flaky", "max_suite_reruns"),
    "pytest_timeout": ("timeout", "session_timeout"),
    "pytest_cov": ("cov_*", "no_cov*"),
    "testmon": ("testmon*", "tmnet", "no-testmon"),
    "pytest_picked": ("picked*", "parent_branch"),
    "pytest_shard": ("shard_id", "num_shards"),
    "pytest_memray": ("memray*",),
    "pytest_profiling": ("profile*", "pstats_dir"),
    # These write a report or a record of the session, send it, or remove an earlier one.
    "allure_pytest": ("allure_*", "clean_alluredir"),
    "pytest_benchmark": ("benchmark_json", "benchmark_*save*", "benchmark_histogram", "benchmark_cprofile_dump"),
    "pytest_csv": ("csv_path",),
    "pytest_excel": ("excelpath",),
    "pytest_html": ("htmlpath",),
    "pytest_jsonreport": ("json_report*",),
    "pytest_md_report": ("md_report*",),
    "pytest_monitor": ("mtr_*",),
    "pytest_reportlog": ("report_log*",),
    "pytest_reportportal": ("rp_*",),
    "pytest_split": ("splits", "group", "store_durations", "clean_durations"),
    "pytest_tap": ("tap*",),
    "syrupy": ("update_snapshots", "update_new_snapshots_only"),
}
"""Patterns of the options of other plugins, by the package that the plugin is in.

Only while that plugin is there: a project may have an option `--timeout` or `--group` of its own, which its tests read.
All others travel: tests read those of plugins too (`--ds`, `--browser`, `--hypothesis-profile`), and nobody says which.
"""


def worker_options(
    options: Mapping[str, Any],
    basetemp: str,
    rootdir: Path,
    inifile: Path | None,
    packages: Collection[str] = (),
) -> dict[str, Any]:
    """The options for `pytest.Config.fromdictargs` in a worker.

    Options that cannot travel (an open file, say) mostly belong to plugins that write here, and are left out: see
    `left_behind`. The root directory, the ini file and the folder above which no conftest file counts are given, since
    pytest would look for them from the one test file on.

    Parameters
    ----------
    packages
        The plugins that are there: see `plugin_packages`.
    """
    chosen = {name: value for name, value in _meant(options, packages).items() if _travels(value)}
    plugins = [plugin for plugin in chosen.get("plugins", []) if plugin != "terminal"]
    chosen["plugins"] = [*plugins, "no:terminal"]
    chosen["basetemp"] = basetemp
    if chosen.get("xmlpath"):
        # Nobody reads this one, but fixtures that record properties warn when there is none.
        chosen["xmlpath"] = f"{basetemp}.xml"
    chosen["rootdir"] = str(rootdir)
    chosen["inifilename"] = str(inifile or os.devnull)
    chosen["confcutdir"] = chosen.get("confcutdir") or str(rootdir if inifile is None else inifile.parent)
    return chosen


def _meant(options: Mapping[str, Any], packages: Collection[str]) -> dict[str, Any]:
    """The options that say something about how tests run."""
    patterns = [pattern for package in packages for pattern in _DENIED_OF_PLUGINS.get(package, ())]
    return {
        name: value
        for name, value in options.items()
        if name not in _DENIED and not any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def left_behind(config: pytest.Config) -> list[str]:
    """Options that were given and that workers have with their defaults, because the values cannot be pickled."""
    given = _meant(vars(config.option), plugin_packages(config))
    actions = {action.dest: (flag, action.default) for flag, action in option_actions(config).items()}
    return sorted(
        flag
        for name, (flag, default) in actions.items()
        if name in given and given[name] is not default and not _travels(given[name])
    )


def plugin_packages(config: pytest.Config) -> frozenset[str]:
    """Names of the packages, or single modules, that the plugins of a session are in."""
    plugins = config.pluginmanager.get_plugins()
    names = (getattr(plugin, "__name__", None) or type(plugin).__module__ for plugin in plugins)
    return frozenset(name.partition(".")[0] for name in names)


def early_plugins(config: pytest.Config) -> Plugins:
    """Plugins that processes may load before they know their test: those that no side of a comparison has of its own.

    What comes from a folder, as the repository's own installation does, or is beside the tests by name, is none.
    """
    modules, rewritten = entry_point_plugins(config)
    places = [folder / part for folder in (config.rootpath, config.invocation_params.dir) for part in ("", "src")]

    def may_be_own(top: str) -> bool:
        return not from_an_index(top) or any((place / name).exists() for place in places for name in (top, f"{top}.py"))

    own = {top for top in {name.partition(".")[0] for name in modules} if may_be_own(top)}
    return Plugins(tuple(name for name in modules if name.partition(".")[0] not in own), rewritten)


def exempt_from_timeout(item: pytest.Item) -> None:
    """Keep pytest-timeout from cutting a measurement short: --perf-timeout rules for perf tests."""
    if item.config.pluginmanager.has_plugin("timeout"):
        item.add_marker(pytest.mark.timeout(0), append=False)


def _travels(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True
