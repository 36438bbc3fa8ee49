"""One perf test in one run: measured in worker processes, judged, recorded.

A `Trial` serves its first worker phase by phase, as pytest asks for them, and starts further workers when the
judgement needs more repeats. What all trials of a run share is the `context`.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from pytest_perfdl.baseline.append import append
from pytest_perfdl.baseline.pair import BaselineCode
from pytest_perfdl.fixture.perf import CurveExpectation, Expectation, WhatIfExpectation
from pytest_perfdl.judge.counted import not_reproduced
from pytest_perfdl.judge.settle import held
from pytest_perfdl.judge.stored_repeats import MOST_REPEATS, confirm, settled
from pytest_perfdl.judge.untimed import standing
from pytest_perfdl.measure.assemble import Repeat, UserValue, assemble, contended, exemplars, sharing_flops
from pytest_perfdl.measure.commands import CallInfo, Count, one_repeat
from pytest_perfdl.measure.optional import unmeasured
from pytest_perfdl.model.errors import (
    BaselineError,
    CheckoutError,
    ForkError,
    SideError,
    TestAbsent,
    WorkerDied,
    WorkerTimeout,
)
from pytest_perfdl.model.failures import PerfError
from pytest_perfdl.model.record import Finding, Key, Record
from pytest_perfdl.model.units import plural, some
from pytest_perfdl.results.run import Exemplars, Result
from pytest_perfdl.results.verdict import REWRITTEN, SAME_CODE, Judgement, MetricVerdict, Verdict
from pytest_perfdl.run.collection import PerfTest
from pytest_perfdl.run.confirmation import Confirmation
from pytest_perfdl.run.context import UNTIED, Bench
from pytest_perfdl.run.expectations import joined
from pytest_perfdl.run.name_rules import name_rules
from pytest_perfdl.run.paired_rounds import failure, last_error
from pytest_perfdl.run.source_diff import source_diffs, touched
from pytest_perfdl.workers.checkout import Checkout
from pytest_perfdl.workers.remote_test import RemoteTest, Script, replay

MOST_REDRAWS = 3
"""Repeats that are to be stored and are measured again because others had the processor."""


class SameCode(Exception):
    """The test need not be measured; it has started and asked for its first measurement."""


class Trial:
    """A perf test while it is measured and judged; `result` is there once it is known."""

    def __init__(self, bench: Bench, test: PerfTest) -> None:
        self.bench = bench
        self.test = test
        self.result: Result | None = None
        self.broken = False
        """Whether a worker died, hung or could not be judged: pytest's own reports then stand."""
        self._started = time.monotonic()
        self._rules = name_rules(bench.config)
        self._first: Repeat | None = None
        """The first worker's, which alone counted FLOPs; stays, even if it is not among the repeats any more."""
        self._repeats: list[Repeat] = []
        self._redrawn = 0
        self._forks = bench.settings.start != "fresh"
        """Whether repeats that are stored may be forked, as far as is known."""
        self._no_flops = ""
        """Why FLOPs cannot be counted; empty as long as they can."""
        self._base: Record | None = None
        self._base_repeats: list[Repeat] = []
        """The first of the other side's code."""
        self._base_remote: RemoteTest
        self._others: tuple[Record, ...] = ()
        self.curves: list[CurveExpectation] = []
        """What the test expects of its time over sizes: `scaling_curves` judges it after the last of them."""
        self.remote = bench.start(test, self._script, first=True)
        self._announce(1)

    # The first worker's phases

    def set_up(self) -> None:
        """Wait for the setup phase and raise what it raised."""
        __tracebackhide__ = True
        with self._serving(self.remote):
            phase = self.remote.wait("setup")
        replay(phase)

    def measure(self) -> None:
        """Serve the first worker through its call phase and to its end, then judge.

        Raises
        ------
        PerfError
            When there is no verdict; the message says why.
        """
        __tracebackhide__ = True
        remote = self.remote
        try:
            with self._serving(remote):
                phase = remote.wait("call")
                remote.finish()
        except SameCode:
            judgement = Judgement(self.test.item.nodeid, "unchanged", SAME_CODE)
            seconds = time.monotonic() - self._started
            self.result = unjudged(self.test, judgement, fails="unchanged" in self.bench.fail_on, seconds=seconds)
            return
        if self._spoiled(remote):
            remote = self.remote = self.bench.start(self.test, self._script, first=True)
            with self._serving(remote):
                phase = remote.wait("call")
                remote.finish()
        seconds = time.monotonic() - self._started
        self.bench.progress.end_repeat(seconds)
        if phase.raw != "passed":
            if phase.raw == "skipped":
                self._note("unmeasured", "the test was skipped")
            elif phase.report["outcome"] == "skipped":
                self._note("unmeasured", "the test itself failed, as its xfail mark expects")
            else:
                self._note("invalid", "the test itself failed")
            replay(phase)
        if not remote.results and not any(isinstance(each, Expectation) for each in remote.expectations):
            self._fail(
                f"a perf test must measure something: {self.test.item.name} never called perf(...), perf.steps(...) "
                "or perf.step()",
            )
        self.curves = [each for each in remote.expectations if isinstance(each, CurveExpectation)]
        alternatives = [each for each in remote.expectations if isinstance(each, Expectation)]
        asked = [each for each in remote.expectations if isinstance(each, WhatIfExpectation)]
        questions = bool(remote.results) + len(alternatives)
        self._confirming = Confirmation(self.bench, self.test, self._serving, questions, self._rules)
        if remote.results:
            self._first = _repeat(remote, seconds)
            self._repeats.append(self._first)
            self.result = self._judge()
        if alternatives or asked:
            self.result = self._with_expectations([*alternatives, *asked])

    def tear_down(self) -> None:
        """Wait for the worker's end and raise what its teardown phase raised."""
        __tracebackhide__ = True
        self.bench.progress.clear()
        if self.broken:
            return
        if not self.remote.over:
            with self._serving(self.remote):
                self.remote.finish()
        phase = self.remote.phases.get("teardown")
        if phase is not None:
            replay(phase)

    # Judging

    def _judge(self) -> Result:
        """Judge, with as many rounds or repeats as the judgement or the recording needs."""
        settings = self.bench.settings
        update = settings.update
        recording = self.test.options.repeats_for(settings, recording=True)
        checking = self.test.options.repeats_for(settings, recording=False)
        if settings.records(has_baseline=self._base is not None):
            checking = recording
        self._draw(checking)
        new = self._record(self._repeats)
        unknown = self.test.unknown_metrics(new)
        if unknown:
            self._fail(
                f"limits or budgets name {', '.join(unknown)}, which this test does not measure; it "
                f"measures {', '.join(sorted(new.metrics()))}",
            )
        if settings.against is not None:
            return self._result(new, self._against(new), updated=False)
        base = self._base
        code = self._code() if self._depends_on_rounds(new) else BaselineCode(None)
        judgement, why = self._in_pairs(new, code) if code.commit else (None, code.reason)
        if judgement is None:
            judgement = self._unpaired(why)
            new = self._record(self._repeats)
        updated = False
        new = self.bench.tied(new, self.remote.origins)
        if update is not None and judgement.verdict != "invalid":
            if base is not None and self._rewrites(judgement):
                self._draw(recording)
                new = self.bench.tied(self._record(self._repeats), self.remote.origins)
            updated = self._update(new, judgement)
        untied = (finding for finding in new.integrity if finding.code == UNTIED)
        judgement = replace(judgement, integrity=(*judgement.integrity, *untied))
        if base is not None and base.key.slug != new.key.slug and not updated:
            note = Finding(
                "note",
                "former-key",
                f"the baseline is of {base.key.slug}, which told neither ARM processors nor CPU quotas apart: this "
                f"machine is {new.key.slug}; pytest --perf-update moves it there, if it was recorded here",
            )
            judgement = replace(judgement, integrity=(*judgement.integrity, note))
        if self._redrawn:
            count = plural(self._redrawn, "repeat")
            note = Finding("note", "redrawn", f"{count} measured again, because others had the processor meanwhile")
            judgement = replace(judgement, integrity=(*judgement.integrity, note))
        return self._result(new, judgement, updated=updated)

    def _in_pairs(self, new: Record, code: BaselineCode) -> tuple[Judgement | None, str]:
        """The judgement by rounds of a baseline's code and the working tree's; without one, why there is none."""
        stored, commit = code.base, code.commit
        assert stored is not None
        assert commit is not None
        found = standing(new, stored, (), self.test.limits)
        if found.verdict in ("invalid", "outdated"):
            # Of another key there is no baseline that could be outdated: it is left at that, and says so.
            return (found, "") if self._base is not None else (None, found.reason)
        if not held(found, self.test.limits):
            # Budgets ask nothing of the other side.
            return None, ""
        try:
            checkout = self.bench.checkout(commit)
            now = self._first_of_base(checkout, commit)
            if other := not_reproduced(stored, now):
                ignored = self.bench.ignored(self.remote.origins)
                named = f" (git ignores {some(ignored)}, which the test uses)" if ignored else ""
                raise SideError(
                    f"the baseline's commit {commit[:12]} does not give its counts again ({other}): it was recorded "
                    f"with other ignored build products or data{named}, or in another environment",
                    invalid=False,
                )
            if self._base is None:
                # What another machine counted and timed is nothing to hold this one's figures against.
                self._base = now
                found = standing(new, now, (), self.test.limits)
            judgement = self._by_rounds(found, new, self._base, now, checkout, commit)
            origins = self._base_remote.origins
            said = code.note or (self.bench.not_as_recorded(stored, origins, checkout) if origins else "")
            odd = [said] if said else []
            if stored.key.slug != new.key.slug and self._base is now:
                odd.append(f"no baseline of {new.key.slug}: held against the code of that of {stored.key.slug}")
            notes = tuple(Finding("note", "pair", text) for text in odd)
            return replace(judgement, integrity=(*judgement.integrity, *notes)), ""
        except TestAbsent:
            return None, f"the test does not exist at {commit[:12]}, the baseline's commit"
        except CheckoutError as error:
            return None, str(error)
        except SideError as error:
            self.bench.progress.clear()
            why, _, more = str(error).partition("\n")
            if error.invalid:
                self._fail(str(error))
            if more:
                self.test.item.add_report_section("call", "the other side", more)
            return None, why

    def _by_rounds(
        self, found: Judgement, new: Record, base: Record, now: Record, checkout: Checkout, commit: str
    ) -> Judgement:
        """Measure both codes in turns until every time has its verdict, then say where a change comes from."""
        shown = (self._base_remote.shown, self.remote.shown)
        judgement = self._confirming.of_code(
            found,
            new,
            base,
            now,
            checkout,
            shown=(shown[0], shown[1]) if shown[0] and shown[1] else None,
            touched=self._touched(checkout),
        )
        judgement = self._located(judgement, checkout)
        return replace(judgement, source_diffs=source_diffs(judgement.blame, checkout, commit))

    def _touched(self, checkout: Checkout) -> frozenset[str]:
        """Full names of the kernels and operators below functions that differ between the sides; at best a few."""
        origins = self.remote.origins
        functions = touched(origins.files, checkout) if origins is not None else ()
        if not functions:
            return frozenset()
        try:
            return self._confirming.below(functions, checkout)
        except SideError:
            self.bench.progress.clear()
            return frozenset()

    def _unpaired(self, why: str) -> Judgement:
        """Judge by fresh repeats against the stored ones, as many as can change the verdict; `why` not in pairs."""
        base, limits = self._base, self.test.limits.unpaired()
        fresh = self._record(self._repeats)
        found = standing(fresh, base, self._others, limits)
        while (left := MOST_REPEATS - len(self._repeats)) > 0 and not settled(found, base, fresh, left, limits):
            self._draw(len(self._repeats) + 1, of=MOST_REPEATS)
            fresh = self._record(self._repeats)
        judgement = confirm(found, base, fresh, limits, others=self._others, remaining=max(left, 0))
        if base is None or not why:
            return judgement
        note = Finding("note", "unpaired", f"judged unpaired: {why}")
        return replace(judgement, integrity=(*judgement.integrity, note))

    def _located(self, judgement: Judgement, checkout: Checkout) -> Judgement:
        """The judgement with the places of its causes; without them where a test does not bear to be looked into."""
        if not judgement.blame:
            return judgement
        try:
            return self._confirming.located(judgement, checkout)
        except SideError as error:
            self.bench.progress.clear()
            note = unmeasured("no-places", "the lines that causes come from", str(error).partition("\n")[0])
            return replace(judgement, integrity=(*judgement.integrity, note))

    def _code(self) -> BaselineCode:
        """The commit with the baseline's code."""
        if self._base is None and (self.bench.recording or not self._others):
            return BaselineCode(None)
        if mistake := self.bench.mistaken(self.remote.origins, None):
            return BaselineCode(None, f"the test {mistake}")
        return self.bench.code_of(self._base, self._others)

    def _against(self, new: Record) -> Judgement:
        """Judge against another revision: counts by the first process of each side, times by rounds."""
        commit = self.bench.against
        assert commit is not None
        try:
            checkout = self.bench.checkout(commit)
            self._base = self._first_of_base(checkout, commit)
            found = standing(new, self._base, (), self.test.limits)
            if found.verdict in ("invalid", "outdated"):
                return found
            if not held(found, self.test.limits):
                return confirm(found, self._base, new, self.test.limits)
            return self._by_rounds(found, new, self._base, self._base, checkout, commit)
        except TestAbsent:
            return self._absent(new)
        except (CheckoutError, SideError) as error:
            self._fail(str(error))

    def _first_of_base(self, checkout: Checkout, commit: str) -> Record:
        """What the first, started process of the other side measures: its counts, and how it loads.

        Raises
        ------
        SideError
            When the test does not pass there.
        TestAbsent
            When it is not there.
        """
        if not Path(checkout.path(self.test.item.path)).exists():
            raise TestAbsent("its file is not there")
        self.bench.prepare_parent(self.test, self.remote.shown)
        while True:
            remote = self._base_remote = self.bench.start(self.test, self._base_script, checkout=checkout)
            try:
                with self._ending(remote):
                    remote.finish()
            except TestAbsent:
                raise
            except (WorkerDied, WorkerTimeout) as error:
                raise SideError(f"the test did not run at {commit[:12]}: {error}", invalid=False) from None
            if not self._spoiled(remote):
                break
        if text := failure(remote, self.bench.config):
            raise SideError(f"the test did not pass at {commit[:12]}: {last_error(text)}\n{text}", invalid=False)
        if not remote.results or remote.origins is None:
            raise SideError(f"the test measured nothing at {commit[:12]}", invalid=False)
        for name, origins, code in (("base", remote.origins, checkout), ("head", self.remote.origins, None)):
            if mistake := self.bench.mistaken(origins, code):
                raise SideError(f"the {name} side {mistake}", invalid=True)
        self._base_repeats = [_repeat(remote, 0.0)]
        return self._record(self._base_repeats, commit=commit, test_hash=remote.origins.test_hash)

    def _with_expectations(self, expectations: Sequence[Expectation | WhatIfExpectation]) -> Result:
        """Judge what the test expects beside limits, and join that with what is known of its own steps."""
        found = [self._expectation(each) for each in expectations]
        broken = [Finding("invalid", "rounds", metric.reason) for metric in found if metric.verdict == "invalid"]
        own = self.result or unjudged(self.test, Judgement(self.test.item.nodeid, "unchanged", ""), fails=False)
        result = joined(own, found, broken, fail_on=self.bench.fail_on)
        return replace(result, seconds=time.monotonic() - self._started)

    def _expectation(self, expectation: Expectation | WhatIfExpectation) -> MetricVerdict:
        if isinstance(expectation, WhatIfExpectation):
            return self._possible_gain(expectation)
        try:
            return self._confirming.of_alternatives(expectation, self.remote.shown)
        except SideError as error:
            self._fail(str(error))

    def _possible_gain(self, expectation: WhatIfExpectation) -> MetricVerdict:
        # Imported here: few tests ask, and what simulates takes a while to load.
        from pytest_perfdl.run.expected_gain import judged

        assert self.result is not None
        try:
            return judged(expectation, self.result)
        except ValueError as error:
            self._fail(f"perf.assert_whatif: {error}")

    def _absent(self, new: Record) -> Judgement:
        reason = f"the test does not exist at {self.bench.settings.against}"
        return Judgement(self.test.item.nodeid, "new", reason, integrity=new.integrity)

    # Measuring

    def fresh(self, repeats: int) -> Record:
        """Measure in further fresh workers: a record of these repeats alone."""
        seen = len(self._repeats)
        self._draw(seen + repeats)
        return self._record(self._repeats[seen:])

    def _draw(self, wanted: int, *, of: int | None = None) -> None:
        """Measure in further fresh workers until there are as many repeats as wanted."""
        while self._usable() < wanted:
            number = len(self._repeats) + 1
            self._announce(number, of or wanted)
            started = time.monotonic()
            remote = self._forked_repeat() or self._started_repeat(number)
            seconds = time.monotonic() - started
            self.bench.progress.end_repeat(seconds)
            assert self._first is not None
            self._repeats.append(sharing_flops(self._first, _repeat(remote, seconds)))
        self.bench.progress.clear()

    def _started_repeat(self, number: int) -> RemoteTest:
        remote = self.bench.start(self.test, self._script)
        with self._serving(remote):
            remote.finish()
        self._check_phases(remote, f"repeat {number} of the test")
        return remote

    def _forked_repeat(self) -> RemoteTest | None:
        """A repeat that is stored, in a process forked as those of rounds are; `None` where it is to be started.

        Repeats that are judged against stored ones are few, and started.
        """
        shown = self.remote.shown
        if not (self.bench.recording and self._forks) or shown is None:
            return None
        try:
            remote = self.bench.start(self.test, self._script, parent=self.bench.parent(self.test, (shown, shown)))
            with self._ending(remote):
                remote.finish()
            if failure(remote, self.bench.config) or not remote.results:
                raise ForkError("the test passed in a started process and not in a forked one")
        except (ForkError, WorkerDied, WorkerTimeout):
            # Started ones then say whether that is the test's own.
            self._forks = False
            return None
        return remote

    def _usable(self) -> int:
        """How many repeats there are, the last one set aside if others had the processor meanwhile.

        What is not stored may be as it is.
        """
        if self.bench.recording and self._repeats and contended(self._repeats[-1]) and self._redrawn < MOST_REDRAWS:
            self._redrawn += 1
            self._repeats.pop()
        return len(self._repeats)

    def _script(self, info: CallInfo) -> Script:
        """The commands for a call; its environment is known now, so its baseline can be read before measuring."""
        first = self._first is None
        if first and not self.remote.results and self.bench.settings.against is None:
            self._base, self._others = self._load(info.key, info.former)
            if self.bench.is_same(self.test, self._base, info):
                raise SameCode
        plan = replace(self.test.plan, period=info.period)
        flops, seconds = first and not self._no_flops, self.bench.step_seconds
        return one_repeat(plan, info, str(self.bench.scratch), flops=flops, seconds=seconds)

    def _base_script(self, info: CallInfo) -> Script:
        plan = replace(self.test.plan, period=info.period)
        flops, seconds = not self._no_flops, self.bench.step_seconds
        return one_repeat(plan, info, str(self.bench.scratch), flops=flops, seconds=seconds)

    def _spoiled(self, remote: RemoteTest) -> bool:
        """Whether the test failed while its FLOPs were counted: it must be measured again without that.

        torch's counter cannot stay out of everything that it watches: torch.compile(fullgraph=True), for one, refuses
        to run beside it.
        """
        phase = remote.phases.get("call")
        counting = isinstance(remote.command, Count) and remote.command.flops
        if phase is None or phase.raw != "failed" or not counting:
            return False
        report = self.bench.config.hook.pytest_report_from_serializable(
            config=self.bench.config, data=copy.deepcopy(dict(phase.report))
        )
        said = getattr(getattr(report.longrepr, "reprcrash", None), "message", "") or "the test failed meanwhile"
        self._no_flops = said.partition("\n")[0]
        return True

    def _load(self, key: Key, former: Sequence[str]) -> tuple[Record | None, tuple[Record, ...]]:
        """The baseline, from under a name that the key had formerly too, and those under other keys."""
        nodeid, store = self.test.item.nodeid, self.bench.store
        try:
            found = (store.load(nodeid, slug) for slug in (key.slug, *former))
            return next((base for base in found if base is not None), None), store.others(nodeid, key.slug)
        except BaselineError:
            if self.bench.settings.update == "all":
                return None, ()
            raise

    @contextlib.contextmanager
    def _ending(self, remote: RemoteTest) -> Iterator[None]:
        """Around waiting for a worker of the other side: what goes wrong there ends that worker alone."""
        try:
            yield
        except (WorkerDied, WorkerTimeout):
            self.bench.running.remove(remote)
            raise
        except BaseException:
            remote.end(gently=True)
            self.bench.progress.clear()
            raise
        if remote.over and remote in self.bench.running:
            self.bench.running.remove(remote)

    @contextlib.contextmanager
    def _serving(self, remote: RemoteTest) -> Iterator[None]:
        """Around waiting for a worker: whatever goes wrong ends it and becomes the test's error."""
        __tracebackhide__ = True
        try:
            yield
        except WorkerTimeout as error:
            self.broken = True
            limit = self.bench.timeout(self.test)
            self._fail(f"not finished after {limit:g} s (--perf-timeout); it stood here:\n{error}")
        except WorkerDied as error:
            self.broken = True
            self._fail(str(error))
        except BaselineError as error:
            self.broken = True
            remote.end(gently=False)
            self._fail(str(error))
        except BaseException:
            remote.end(gently=True)
            self.bench.progress.clear()
            raise
        if remote.over and remote in self.bench.running:
            self.bench.running.remove(remote)

    def _check_phases(self, remote: RemoteTest, what: str) -> None:
        """A test that passed once must pass every time."""
        config = self.bench.config
        for name, phase in remote.phases.items():
            if phase.raw != "passed":
                text = config.hook.pytest_report_from_serializable(config=config, data=dict(phase.report)).longreprtext
                self._fail(f"{what} {phase.raw} in its {name} phase, the first did not:\n{text}")

    def _announce(self, repeat: int, repeats: int | None = None) -> None:
        known = repeats or self.test.options.repeats_for(self.bench.settings, recording=self.bench.recording)
        self.bench.progress.start_repeat(repeat, known, self.test.item.nodeid)

    # Records and results

    def _record(self, repeats: Sequence[Repeat], *, commit: str | None = None, test_hash: str | None = None) -> Record:
        """Join repeats; of the working tree, or of another commit and that one's version of the test."""
        test = self.test
        period = max(call.info.period for call in repeats[0].calls)
        record = assemble(
            test.item.nodeid,
            test_hash or test.hash,
            replace(test.plan, period=period),
            repeats,
            date=self.bench.date,
            commit=commit or self.bench.commit,
        )
        if not self._no_flops:
            return record
        return replace(record, integrity=(*record.integrity, unmeasured("no-flops", "FLOPs", self._no_flops)))

    def _rewrites(self, judgement: Judgement) -> bool:
        """Whether the verdict is why a baseline is written anew; one that is not whole counts as none."""
        mode, verdict = self.bench.settings.update, judgement.verdict
        if mode == "changed":
            return verdict in REWRITTEN or judgement.counts_changed
        return mode == "new" and verdict == "missing"

    def _depends_on_rounds(self, new: Record) -> bool:
        """Whether rounds decide anything: what is recorded in any case is compared by its repeats, which are there."""
        mode, base = self.bench.settings.update, self._base
        if mode == "changed" and base is not None:
            return not standing(new, base, (), self.test.limits).counts_changed
        return mode not in ("all", "append")

    def _update(self, new: Record, judgement: Judgement) -> bool:
        """Write the baseline if the mode and the verdict call for it; true if a file changed."""
        settings, base = self.bench.settings, self._base
        mode = settings.update
        wanted = base is None or mode in ("all", "append") or self._rewrites(judgement)
        moved = base is not None and base.key.slug != new.key.slug
        if not wanted and (not moved or judgement.fails(self.bench.fail_on)):
            return False
        ended = self.remote.phases.get("teardown")
        if ended is not None and ended.raw == "failed":
            self._fail("no baseline is written: the test's teardown phase failed")
        try:
            pictures = (
                {call: Path(path).read_bytes() for call, path in exemplars(self._repeats).items()}
                if settings.baseline_trace
                else {}
            )
            if base is not None and not wanted:
                stored, _ = self.bench.store.exemplars(base.test, base.key.slug)
                new, pictures = replace(base, key=new.key), {call: path.read_bytes() for call, path in stored.items()}
            # Repeats that another process appended since the baseline was read are there, and stay.
            joined = (lambda there: _appended(there or base, new)) if mode == "append" else None
            changed = self.bench.store.save(new, pictures, joined)
            if base is not None and moved:
                changed += self.bench.store.remove(base.test, base.key.slug)
            return bool(changed)
        except BaselineError as error:
            self._fail(str(error))

    def _result(self, new: Record, judgement: Judgement, *, updated: bool) -> Result:
        item, store = self.test.item, self.bench.store
        slug = new.key.slug if self._base is None or updated else self._base.key.slug
        against = self.bench.settings.against
        if against is not None:
            pictures = exemplars(self._base_repeats) if self._base_repeats else {}
            stored = {call: Path(path) for call, path in pictures.items()}
        else:
            known = self._base is not None and not updated
            stored, others = store.exemplars(item.nodeid, slug) if known else ({}, ())
            judgement = _without_picture(judgement, [store.shown(file) for file in others])
        fresh = {call: Path(path) for call, path in exemplars(self._repeats).items()}
        return Result(
            id=item.nodeid,
            file=item.location[0],
            line=(item.location[1] or 0) + 1,
            judgement=judgement,
            fails=judgement.fails(self.bench.fail_on) and not (updated and judgement.verdict != "invalid"),
            new=new,
            base=self._base,
            base_path="" if against else store.shown(store.path(item.nodeid, slug)),
            against=against or "",
            exemplars=tuple(Exemplars(call.name, stored.get(call.name), fresh.get(call.name)) for call in new.calls),
            updated=updated,
            seconds=time.monotonic() - self._started,
        )

    def _note(self, verdict: Verdict, reason: str) -> None:
        """Remember that the test ended without a judgement."""
        findings = (Finding("invalid", "failed", reason),) if verdict == "invalid" else ()
        judgement = Judgement(self.test.item.nodeid, verdict, reason, integrity=findings)
        seconds = time.monotonic() - self._started
        self.result = unjudged(self.test, judgement, fails=verdict in self.bench.fail_on, seconds=seconds)

    def _fail(self, message: str) -> NoReturn:
        """End the test with an error that says why there is no verdict."""
        self.bench.progress.clear()
        self._note("invalid", message.splitlines()[0])
        raise PerfError(message) from None


def unjudged(test: PerfTest, judgement: Judgement, *, fails: bool, seconds: float = 0.0) -> Result:
    """The result of a test that was not held against anything."""
    file, line, _ = test.item.location
    return Result(
        id=test.item.nodeid, file=file, line=(line or 0) + 1, judgement=judgement, fails=fails, seconds=seconds
    )


def _appended(base: Record | None, new: Record) -> Record:
    return new if base is None else append(replace(base, key=new.key), new)


def _without_picture(judgement: Judgement, others: Sequence[str]) -> Judgement:
    """Say of traces beside a baseline that they are not the ones it was saved with."""
    notes = [
        Finding("note", "other-trace", f"{file} is not the trace that the baseline was saved with: it is left out")
        for file in others
    ]
    return replace(judgement, integrity=(*judgement.integrity, *notes)) if notes else judgement


def _repeat(remote: RemoteTest, seconds: float) -> Repeat:
    values = tuple(UserValue(m.call, m.name, m.value, m.unit, m.better) for m in remote.metrics)
    return Repeat(tuple(remote.results), values, seconds)
