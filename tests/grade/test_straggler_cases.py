"""The evidence of straggler_or_deadlock against real jobs that get stuck, on 3 ranks."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from labkit.course.diagnosis.exercises.straggler_or_deadlock import (
    STORIES,
    culprits,
    evidence,
    job,
    job_programs,
)
from labkit.doctor.waiting import blocked_in
from labkit.launch import launch, listen
from labkit.launch.errors import RunError

ORDER = [2, 0, 1]
CULPRITS = {  # by role; of 3 ranks there are a, b and c
    "compute": ("straggler", "a"),
    "input": ("straggler", "a"),
    "pair": ("straggler", "a"),
    "ahead": ("straggler", "a"),
    "left": ("deadlock", "a"),
    "silent": ("deadlock", "a"),
    "sends": ("deadlock", "abc"),
    "aside": ("deadlock", "ab"),
    "crossed": ("deadlock", "ab"),
}
PATIENCE_S = (0.7, 3, 15)
"""A run may end before its last rank is where it gets stuck: then it is given longer."""


class EndOfRunError(Exception):
    """Raised by a straggler, when the others have been waiting for a while."""


def perform(world, programs, order, patience_s):
    """Do what the programs say, with real operations. A straggler ends the run after a while."""
    place = order.index(world.rank)
    pair, members = world.split(place // 2), sorted(order[place - place % 2 :][:2])
    pending = []
    for what, target in programs[world.rank]:
        group = world if target == "world" else pair
        if what in ("compute", "input"):
            time.sleep(patience_s)
            raise EndOfRunError  # a deadlock ends the run by itself
        elif what == "barrier":
            group.barrier()
        elif "all_reduce" in what:
            pending.append(group.all_reduce(torch.ones(4), wait="start" not in what))
        elif what != "split":
            group, peer = (pair, members.index(target)) if target in members else (world, target)
            pending.append(getattr(group, what)(torch.ones(4), peer))
    with world.region("returned"):
        pass


def run_for_real(story, patience_s):
    """The evidence of a real job of 3 ranks, from its journals, and what it should be."""
    groups, programs = job_programs(story, ORDER, 1, 2)
    with pytest.raises(RunError) as ended:
        arguments = (programs, ORDER, patience_s)
        launch(perform, len(ORDER), [arguments], device="cpu", echo=False)
    found = [seen(rank, timeline) for rank, timeline in enumerate(ended.value.timeline)]
    return found, evidence(groups, programs)


def seen(rank, timeline):
    """One rank's entry in the evidence."""
    if not timeline.operations:  # not there yet
        return {}
    last = timeline.operations[-1]
    has_returned = any(region.name == "returned" for region in timeline.regions)
    is_blocked = blocked_in(timeline.operations) is not None
    return {
        "rank": rank,
        "posted": {o.group_name: o.sequence for o in timeline.operations if o.is_collective},
        "operation": last.kind,
        "peer": last.peer,
        "group": last.group_name,
        "members": list(last.group),
        "number": last.sequence,
        "state": "returned" if has_returned else "blocked" if is_blocked else "running",
    }


def test_real_jobs_get_stuck_as_the_evidence_says(monkeypatch):
    left = list(STORIES)
    for patience_s in PATIENCE_S:
        monkeypatch.setattr(listen, "_FIRST_LOOK_S", patience_s / 3)  # a deadlock takes two looks
        with ThreadPoolExecutor(3) as pool:
            ended = dict(zip(left, pool.map(partial(run_for_real, patience_s=patience_s), left)))
        left = [story for story, (found, expected) in ended.items() if found != expected]
    assert not left, {story: ended[story] for story in left}


@pytest.mark.parametrize("story", STORIES)
def test_the_right_answer_names_the_culprit(story):
    for seed in range(20):
        order = random.Random(seed).sample(range(6), 6)
        fault, roles = CULPRITS[story]
        expected = sorted(order["abc".index(role)] for role in roles)
        ranks = evidence(*job_programs(story, order, 2, 5))
        assert culprits(ranks) == (fault, expected)


def test_evidence_has_all_that_the_contract_names():
    for story in STORIES:
        for rank in job(story, 0, random.Random(story)):
            assert set(rank) == {
                *("rank", "state", "operation", "peer", "group", "members", "number", "posted"),
                *("seconds", "cpu", "stack"),
            }
