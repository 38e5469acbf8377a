"""The nine faults on real ranks, in one launch: figures name each, and none of a healthy job."""

from dataclasses import replace
from functools import cache

import pytest

from labkit import run
from labkit.inject import ROLLOUT_FAULTS, rollout_settings
from labkit.inject.rl_faults import HEALTHY
from labkit.profile import name_fault
from labkit.rl.language import train

TOP_P = "sampling, top-p"
JOBS = {None: HEALTHY, **ROLLOUT_FAULTS, TOP_P: ROLLOUT_FAULTS["sampling"]}


def settings_of(name):
    """A job with less to compute than a case: a trainer and an engine."""
    if name in ("sampling", TOP_P):
        top_p, temperature = (0.6, 1.0) if name == TOP_P else (1.0, 0.4)
        return replace(settings_of(None), top_p=top_p, temperature=temperature)
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
    assert (named and named.name) == (name and name.partition(",")[0])
    if name:
        assert named.update in (2, 3), named
    if name != "overload":
        assert [each.version for each in figures] == list(range(5))


def test_top_p_leaves_only_ratios_below_one():
    figures, _ = of_jobs()[TOP_P]
    assert all(0.3 < each.ratio < 0.999 for each in figures[2:])


def test_both_kinds_of_processing_are_drawn():
    drawn = [rollout_settings("sampling", 2, seed) for seed in range(20)]
    assert {(each.temperature, each.top_p) for each in drawn} == {(0.5, 1.0), (1.0, 0.7)}


def test_no_fault_shows_before_it_begins():
    for figures, _ in of_jobs().values():
        assert name_fault(figures[:2]) is None
