"""The queue between engines and trainers, without ranks: who may start what, in which order."""

from dataclasses import asdict, replace

import pytest

from labkit.checkpoint import RolloutBank
from labkit.rl import Settings
from labkit.rl.answer_queue import AnswerQueue
from labkit.rl.completion import Completion
from labkit.rl.figures import NO_WEIGHTS

SETTINGS = Settings(num_prompts=2, group_size=2, num_updates=5, in_flight=8, trainers=1)


def report(version, completed=(), unfinished=0):
    return {"version": version, "completed": list(completed), "unfinished": unfinished}


def answer(key, version=0):
    return asdict(Completion(*key, [1, 10], [1, 11], [-0.5, -0.1], [version, version], 1.0))


def make(tmp_path, num_engines=2, **settings):
    bank = RolloutBank(tmp_path / "rollouts.log")
    return AnswerQueue(replace(SETTINGS, **settings), bank, num_engines)


def updated(queue, engines=(0, 1)):
    """Publish the trainers' version, and let engines receive it."""
    assert queue.next_event() == ("publish", [])
    for engine in engines:
        version = queue.reports[engine]["version"]
        assert queue.reply(engine, report(version)) == {"update": queue.version}


def test_engines_start_the_groups_of_a_version_and_of_staleness_more(tmp_path):
    queue = make(tmp_path, staleness=1)
    updated(queue)
    first = queue.reply(0, report(0))["start"]
    assert first == [(group, member) for group in range(4) for member in range(2)]
    # Nothing else may start: group 4 belongs to update 2, and the weights are of version 0.
    assert queue.reply(0, report(0, unfinished=8)) == {"start": []}


def test_answers_enter_the_bank_by_group_whatever_their_order(tmp_path):
    queue = make(tmp_path, 1)
    updated(queue, [0])
    keys = queue.reply(0, report(0))["start"]
    assert queue.reply(0, report(0, [answer(keys[3]), answer(keys[2])], 2)) == {"start": []}
    assert len(queue.bank) == 0  # group 1 has ended, and group 0 has not
    queue.reply(0, report(0, [answer(keys[1])], 1))
    queue.take(0, report(0, [answer(keys[0])]))
    kind, answers = queue.next_event()
    assert kind == "train"
    assert [(each.group, each.member) for each in answers] == sorted(keys)


def test_an_update_waits_for_running_answers_unless_they_may_be_partial(tmp_path):
    for is_partial in (False, True):
        queue = make(tmp_path / str(is_partial), 1, staleness=2, is_partial=is_partial)
        updated(queue, [0])
        keys = queue.reply(0, report(0))["start"]
        done = [answer(key) for key in keys[:4]]
        queue.take(0, report(0, done, len(keys) - 4))
        assert queue.next_event()[0] == "train"
        queue.stepped()
        assert queue.next_event()[0] == "publish"
        reply = queue.reply(0, report(0, unfinished=len(keys) - 4))
        assert reply == ({"update": 1} if is_partial else {"start": []})


def test_an_engine_that_slept_gets_its_weights_again(tmp_path):
    queue = make(tmp_path, 1, sleep_every=1, num_prompts=1)
    updated(queue, [0])
    keys = queue.reply(0, report(0))["start"]
    queue.take(0, report(0, [answer(key) for key in keys]))
    assert queue.next_event()[0] == "train"
    queue.stepped()
    updated(queue, [0])
    assert queue.reply(0, report(1)) == {"is_sleep": True}
    queue.take(0, report(NO_WEIGHTS))
    assert queue.next_event() == ("publish", [])
    assert queue.reply(0, report(NO_WEIGHTS)) == {"update": 1}
    assert queue.reply(0, report(1))["start"]  # and it sleeps once for a version


def test_a_job_goes_on_with_the_first_group_that_is_not_on_the_disk(tmp_path):
    queue = make(tmp_path, 1)
    updated(queue, [0])
    keys = queue.reply(0, report(0))["start"]
    queue.take(0, report(0, [answer(key) for key in keys[:3]], 1))  # group 1 lacks one
    queue.bank.close()
    resumed = make(tmp_path, 1)
    updated(resumed, [0])
    assert resumed.reply(0, report(0))["start"] == [(1, 0), (1, 1)]


def test_weights_that_come_too_late_for_the_next_start_are_refused():
    with pytest.raises(ValueError, match="sync_every=3"):
        Settings(sync_every=3, staleness=1)
