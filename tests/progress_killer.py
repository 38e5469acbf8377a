"""Children that answer on one store, two at a time, and are killed: `progress_killer.py ROUNDS`.

Prints as JSON what each child had acknowledged before it died, and after how many rounds the
store's log was left behind. An interpreter of its own, with `labkit.progress` and without torch:
the fork and the death of a process that has loaded torch take longer than all answers of a round.
"""

import json
import os
import random
import select
import signal
import sys
import time
import types
import warnings
from dataclasses import dataclass, field
from pathlib import Path

# labkit/__init__.py is what imports torch; the rooms are found without it.
labkit = sys.modules["labkit"] = types.ModuleType("labkit")
labkit.__path__ = [str(Path(__file__).parents[1] / "labkit")]

from labkit.progress import practice, scheduling  # noqa: E402
from labkit.progress.clock import store_path  # noqa: E402

MOST_ANSWERS = 4  # of both children before a kill
CHILDREN = 2


@dataclass
class Learner:
    """A child that answers, and what it has acknowledged."""

    name: str
    pid: int
    pipe: int
    received: bytes = field(default=b"", repr=False)

    @property
    def acknowledged(self):
        """The numbers of its answers; the last line may have been cut off by the kill."""
        return [int(line) for line in self.received.split(b"\n")[:-1]]


def answer_for_ever(name, pipe):
    number = 0
    while True:
        # The last state of a subject stays as the kill has left it: names are not used again.
        subject, rating = f"card/{name}-{number % 2}", practice.RATINGS[number % 4]
        if practice.answer(subject, rating, learner=name, number=number) is None:
            raise AssertionError("an answer was not stored")
        os.write(pipe, b"%d\n" % number)
        number += 1


def start_learner(name):
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer_for_ever(name, write_end)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    os.close(write_end)
    return Learner(name, pid, read_end)


def wait_for_answers(pair, num_answers):
    """Until they have acknowledged so many more, together. The seconds that one took."""
    began_s, by_pipe = time.monotonic(), {each.pipe: each for each in pair}
    enough = num_answers + sum(len(each.acknowledged) for each in pair)
    while sum(len(each.acknowledged) for each in pair) < enough:
        ready, _, _ = select.select(list(by_pipe), [], [], 100)
        assert ready, f"nothing follows on {pair}"
        for pipe in ready:
            some = os.read(pipe, 65536)
            assert some, f"{by_pipe[pipe]} had ended by itself"
            by_pipe[pipe].received += some
    return (time.monotonic() - began_s) / num_answers


def kill(learner):
    os.kill(learner.pid, signal.SIGKILL)
    _, status = os.waitpid(learner.pid, 0)
    assert os.WIFSIGNALED(status), f"{learner} had ended by itself, with status {status}"
    while some := os.read(learner.pipe, 65536):
        learner.received += some
    os.close(learner.pipe)


def main(num_rounds):
    warnings.simplefilter("error")
    scheduling.settings_for("card/any")  # what is imported now, no child has to
    draws, learners, num_logs_left = random.Random(7), [], 0
    for round_ in range(num_rounds):
        pair = [start_learner(f"{round_}-{number}") for number in range(CHILDREN)]
        try:
            while pair:
                seconds_per_answer = wait_for_answers(pair, draws.randint(1, MOST_ANSWERS))
                time.sleep(draws.uniform(0, seconds_per_answer))
                kill(pair[0])
                learners.append(pair.pop(0))
        finally:
            for learner in pair:  # of a round that has failed
                os.kill(learner.pid, signal.SIGKILL)
        log = store_path().with_name(f"{store_path().name}-wal")
        num_logs_left += log.exists() and log.stat().st_size > 0
    assert "torch" not in sys.modules
    acknowledged = {learner.name: learner.acknowledged for learner in learners}
    print(json.dumps({"acknowledged": acknowledged, "num_logs_left": num_logs_left}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
