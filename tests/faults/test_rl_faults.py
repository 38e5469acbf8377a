"""The nine faults on real ranks, in one launch: figures name each, and none of a healthy job."""

from dataclasses import replace
from functools import cache

import pytest

from labkit import run
from labkit.inject import ROLLOUT_FAULTS, rollout_settings
from labkit.inject.rl_faults import HEALTHY
from labkit.profile import name_fault
from labkit.rl.language import train

JOBS = {None: HEALTHY, **ROLLOUT_FAULTS}


def settings_of(name):
    """A job with less to compute than a case: a trainer and an engine."""
    return replace(
        rollout_settings(name, 1, seed=3),
        trainers=1,
        staleness=1 if name == "recomputed" else 0,
        num_updates=5,
        num_prompts=3,
        sleep_every=2,
        start=2,
        warm_start=40,
    )


def jobs(world):
    """The figures and the end of each job, one after the other."""
    found = {}
    for name, fault in JOBS.items():
        trained = train(world, settings_of(name), None, fault.parts)
        found[name] = trained and (trained.figures, trained.stalled)
    return found


@cache
def of_jobs():
    return run(jobs, 2, timeout=200).values[0]


@pytest.mark.parametrize("name", JOBS)
def test_each_fault_is_named_by_its_figures(name):
    figures, stalled = of_jobs()[name]
    named = name_fault(figures, stalled)
    assert (named and named.name) == name
    if name:
        assert named.update in (2, 3), named
    if name != "overload":
        assert [each.version for each in figures] == list(range(5))


def test_no_fault_shows_before_it_begins():
    for figures, _ in of_jobs().values():
        assert name_fault(figures[:2]) is None
