"""Which run comes next, and how long the rest takes."""

from collections import Counter

from pytest_perfdl.runs.qualify import next_run, runs_left, seconds_left
from unit.runs.qualify.runs_of_suites import outcome

WANTED = {0.0: 6, 0.05: 3, 0.1: 3}


def order(wanted, done=()):
    done, made = list(done), []
    while (share := next_run(done, wanted)) is not None:
        made.append(share)
        done.append(outcome(inject=share))
    return made


def test_all_take_turns_in_proportion():
    made = order(WANTED)

    assert Counter(made) == WANTED
    for third in range(3):
        assert Counter(made[4 * third : 4 * third + 4]) == {0.0: 2, 0.05: 1, 0.1: 1}
    assert made[0] == 0.0


def test_what_was_done_is_not_done_again():
    made = order(WANTED)
    done = [outcome(inject=share) for share in made[:5]]

    assert order(WANTED, done) == made[5:]
    assert runs_left(done, WANTED) == {share: number - made[:5].count(share) for share, number in WANTED.items()}


def test_runs_that_nobody_asks_for_are_no_harm():
    assert order({0.0: 1, 0.05: 0}, [outcome(inject=0.2)] * 3) == [0.0]
    assert order({}) == []


def test_the_time_left():
    done = [outcome(seconds=10.0), outcome(seconds=20.0), outcome(inject=0.05, seconds=60.0)]

    assert seconds_left([], WANTED) is None
    # Four unchanged runs of 15 s, two of 60 s, and three of which nothing is known: the mean of all.
    assert seconds_left(done, WANTED) == 4 * 15 + 2 * 60 + 3 * 30
