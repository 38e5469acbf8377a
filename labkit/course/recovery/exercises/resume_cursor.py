"""Grade resume_cursor: jobs that go on with another size or batch, and jobs that roll back."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from labkit.grade import grader as g

EPOCHS = "each epoch has each sample once, in an order of its own, and so has each seed"
SAME = "two epochs, or two seeds, have one order"
OTHER_PROCESS = "another process has another order"
KEPT, CHANGED = "each state stays as it was returned", "a state has changed"
# A file or a pickled class, a number of samples and a seed: the order of two epochs.
ORDER_ELSEWHERE = """
import json, pickle, runpy, sys
file, pickled, num_samples, seed = pickle.load(sys.stdin.buffer)
make = pickle.loads(pickled) if pickled else runpy.run_path(file)["ResumableBatches"]
batches = make(num_samples, 1, seed, 0, 1, lambda ids: lambda: ids)
print(json.dumps([int(each) for _ in range(2 * num_samples) for each in batches.next_batch()]))
"""


class Attempt(NamedTuple):
    """The steps between two restarts: `saved` of them were saved, the later ones are lost.

    With the ranks and the batch of the attempt before it goes on with the same objects.
    """

    size: int
    batch: int
    num_steps: int
    saved: int

    def __str__(self) -> str:
        return f"{self.size} ranks, batch {self.batch}, {self.num_steps} steps, {self.saved} saved"


def cases(draw: g.Draw) -> list[g.Case]:
    """Other sizes, other batches, several epochs, saved at an epoch's end, rolled back, drawn."""
    rng = draw.rng
    asked = [
        (48, [Attempt(2, 8, 3, 3), Attempt(4, 8, 3, 3)]),
        (48, [Attempt(4, 8, 3, 2), Attempt(4, 4, 4, 4)]),
        (60, [Attempt(3, 12, 2, 1), Attempt(2, 6, 3, 2), Attempt(3, 12, 3, 3)]),
        (53, [Attempt(3, 8, 4, 3), Attempt(4, 10, 4, 4)]),
        (24, [Attempt(3, 8, 3, 3), Attempt(2, 12, 3, 3)]),
        (40, [Attempt(2, 8, 4, 2), Attempt(2, 8, 4, 2), Attempt(2, 8, 4, 4)]),
        (20, [Attempt(2, 8, 4, 3), Attempt(2, 8, 4, 4)]),
        (22, [Attempt(2, 8, 3, 3), Attempt(2, 4, 3, 3)]),
        (20, []),
    ]
    for _ in range(10):
        jobs = [(rng.randint(1, 5), rng.randint(4, 14), 5, rng.randint(1, 5)) for _ in range(3)]
        asked.append((rng.randint(20, 60), [Attempt(*each) for each in jobs]))
    return [
        g.Case(f"{n} samples: {'; '.join(map(str, jobs)) or '2 processes'}", n, i % 4, jobs)
        for i, (n, jobs) in enumerate(asked)
    ]


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return the order of the epochs; by attempt and step which samples of that order are used."""
    num_samples, seed, attempts = args
    now = 0

    def load(ids: Any) -> Callable[[], list[tuple[int, int]]]:
        samples = [(int(each), now) for each in ids]  # with the step in which they are loaded
        return lambda: samples

    spans = right(*args)["samples by attempt and step"]
    num_epochs = max((end for its in spans for _, end in its), default=0) // num_samples + 2
    order: list[int] = []
    for its, number in ((seed, num_epochs), (seed + 77, 1)):  # not + 1: seed + epoch is right
        alone = watch.function(num_samples, 1, its, 0, 1, load)
        order += [each for _ in range(number * num_samples) for each, _ in alone.next_batch()]
    words, states = in_words(order, num_samples), KEPT
    # Programs of mistakes go on after a failure; they are known without a process more.
    if not attempts and not watch.job.continue_after_failure:
        elsewhere = order_elsewhere(watch.code, num_samples, seed)
        words = words if order[: len(elsewhere)] == elsewhere else OTHER_PROCESS
    used: list[list[Any]] = []
    state, text, before, ranks = None, "null", (0, 0), []
    for (size, batch, _, saved), its in zip(attempts, spans):
        if before != (size, batch):
            ranks = [watch.function(num_samples, batch, seed, r, size, load) for r in range(size)]
        before = size, batch
        if json.dumps(state) != text:
            states = CHANGED
        for number, rank in enumerate(ranks if used else []):
            with watch.calling(f"load_state_dict of rank {number} of {size}"):
                rank.load_state_dict(json.loads(text))
        used.append([])
        for number, (begin, _) in enumerate(its):
            now += 1
            with watch.calling(f"next_batch number {number + 1} of {size} ranks, batch {batch}"):
                shares = [rank.next_batch() for rank in ranks]
            if number and any(loaded == now for share in shares for _, loaded in share):
                watch.note("not loaded ahead")
            used[-1].append(place(order, [[each for each, _ in share] for share in shares], begin))
            newest = ranks[-1].state_dict()
            if number + 1 == saved:
                state, text = newest, json.dumps(newest)
    return {"order": words, "states": states, "samples by attempt and step": used}


def order_elsewhere(code: Any, *its: int) -> list[int]:
    """Return the order of two epochs in a new process, where hash() of a text differs."""
    made = subprocess.run(
        [sys.executable, "-c", ORDER_ELSEWHERE],
        input=pickle.dumps((code.filename, code.pickled, *its)),
        stdout=subprocess.PIPE,
        cwd=os.path.dirname(code.filename) or None,
        env=os.environ | {"PYTHONHASHSEED": "random"},
        check=True,
    )
    return json.loads(made.stdout.splitlines()[-1])


def in_words(order: list[int], num_samples: int) -> str:
    """Say what is wrong with the order of all epochs, or return EPOCHS."""
    epochs = [order[i : i + num_samples] for i in range(0, len(order), num_samples)]
    if any(sorted(ids) != [*range(num_samples)] for ids in epochs):
        return "an epoch does not have each sample once"
    return EPOCHS if len(set(map(tuple, epochs))) == len(epochs) else SAME


def place(order: list[int], shares: list[list[int]], begin: int) -> tuple[int, int] | str:
    """Find the place in the order at which a step's samples follow each other.

    It is `begin` if they follow each other there too.
    """
    ids, counts = sorted(sum(shares, [])), sorted(map(len, shares))
    if counts[-1] - counts[0] > 1:
        return f"the ranks have {counts} samples"
    for first in (begin, *range(len(order))):
        if sorted(order[first : first + len(ids)]) == ids:
            return first, first + len(ids)
    return "samples that do not follow each other"


def right(num_samples: int, seed: int, attempts: list[Attempt]) -> dict[str, Any]:
    """By attempt and step: which samples of all epochs' order are used."""
    used: list[list[tuple[int, int]]] = []
    begin = 0
    for its in attempts:
        used.append([])
        for _ in range(its.num_steps):
            end = min(begin + its.batch, (begin // num_samples + 1) * num_samples)
            used[-1].append((begin, end))
            begin = end
        begin = used[-1][its.saved - 1][1]
    return {"order": EPOCHS, "states": KEPT, "samples by attempt and step": used}


def first_wrong(s: g.Observed) -> tuple[int, int, Any, int, int]:
    """Return the first wrong step: attempt, number, place, and the right place's begin and end."""
    both = zip(*(each["samples by attempt and step"] for each in (s.y, s.right[0])))
    steps = ((i, j, *its) for i, pair in enumerate(both) for j, its in enumerate(zip(*pair)))
    return next((i, j, got, *right) for i, j, got, right in steps if got != right)


def goes_on_at(s: g.Observed, share: Callable[[Attempt, Attempt], float]) -> bool:
    """Return whether a restart continues at about a share of the samples used.

    The share is of all samples, or of those of an epoch. share: computes it from the attempts
    before and after the restart; 1 would be no mistake.
    """
    n, _, attempts = s.args
    i, j, place, used, _ = first_wrong(s)
    before, now = attempts[i - 1 : i + 1]
    epoch, ratio = (used - 1) // n * n, share(before, now)
    ends = used * ratio, epoch + (used - epoch) * ratio
    return j == 0 and ratio != 1 and min(abs(place[0] - end) for end in ends) <= now.batch


def is_uneven(s: g.Observed) -> bool:
    """Return whether the ranks do not divide the samples of the first wrong step."""
    i, _, place, begin, end = first_wrong(s)
    is_less = isinstance(place, str) or place[1] - place[0] < end - begin
    return (end - begin) % s.args[2][i].size > 0 and is_less


def is_last_of_an_epoch(s: g.Observed) -> bool:
    """Return whether the first wrong step is one in which an epoch has fewer samples left."""
    i, _, _, begin, end = first_wrong(s)
    return end % s.args[0] == 0 and end - begin < s.args[2][i].batch


OLD = "self.prefetched = vars(self).get('prefetched')"
WITH_NEW_PLACE = " and (*self.begin(self.epoch, self.used)[:2], self.prefetched[2])"
ORDER = "order = list(range(self.num_samples))"
SHARE = "[self.rank :: self.size]"
PER_EPOCH = "-(-self.num_samples // self.batch)"
MISTAKES = [
    g.Mistake(
        "counts the samples of one rank",
        "A rank's own count means nothing to another number of ranks. Count the samples of all "
        "ranks together: each step adds the size of the global batch.",
        g.patch(
            *('"used": self.used}', '"used": self.own}'),
            *("self.prefetched = None", 'self.prefetched, self.own = None, state["used"]'),
            *("return samples()", "self.own += len(own := samples())\n        return own"),
        ),
        wrong=lambda s: goes_on_at(s, lambda before, now: 1 / before.size),
    ),
    g.Mistake(
        "counts batches",
        "Batches of another size are other samples: 100 steps of 8 samples are 50 steps of 16. "
        "And the last one of an epoch may be short. Count samples.",
        [
            g.patch(
                *('"used": self.used}', '"used": self.used // self.batch}'),
                *('state["used"]', 'state["used"] * self.batch'),
            ),
            g.patch(
                'self.epoch, self.used = state["epoch"], state["used"]\n',
                f"self.epoch, steps = divmod(state['used'], {PER_EPOCH})\n"
                "        self.used = steps * self.batch\n",
                '"used": self.used}',
                f'"used": self.epoch * {PER_EPOCH} - (-self.used // self.batch)}}',
            ),
        ],
        wrong=lambda s: goes_on_at(s, lambda before, now: now.batch / before.batch),
    ),
    g.Mistake(
        "a state changes after it was returned",
        "A checkpoint keeps what state_dict has returned, and later calls must not change it. "
        "Return a new dict each time, not the one that the steps count in.",
        g.patch(
            'return {"epoch": self.epoch, "used": self.used}',
            "self.state = vars(self).get('state', {})\n"
            "        self.state.update(epoch=self.epoch, used=self.used)\n"
            "        return self.state",
        ),
        wrong=lambda s: s.y["states"] == CHANGED,
        hint=3,
    ),
    g.Mistake(
        "an epoch's last step is not what is left",
        "If fewer than `batch` samples are left, the step has these few. DistributedSampler fills "
        "up from the epoch's begin, and drop_last leaves them out: then an epoch does not have "
        "each sample once. The next epoch begins with the next step.",
        [
            g.patch(
                *("order[used : used + self.batch]", "(2 * order)[used:][: self.batch]"),
                *("used + len(ids)", "min(used + len(ids), self.num_samples)"),
            ),
            g.patch("if used == self.num_samples:", "if used + self.batch > self.num_samples:"),
        ],
        wrong=is_last_of_an_epoch,
        hint=2,
    ),
    g.Mistake(
        "keeps samples loaded ahead when a state is loaded",
        "Samples shuffled, iterated or loaded ahead before load_state_dict are of another place. "
        "Drop them, also in a rollback: the next step begins at the place that was loaded.",
        g.patches("self.prefetched = None", OLD, OLD + WITH_NEW_PLACE),
        hint=2,
    ),
    g.Mistake(
        "counts samples that are only loaded",
        "The batch that was loaded ahead is lost with the process, and no step has used it. The "
        "state says what next_batch has returned.",
        g.patch('self.epoch, "used": self.used', 'self.prefetched[0], "used": self.prefetched[1]'),
        hint=2,
    ),
    g.Mistake(
        "has one order for two epochs or two seeds",
        "Shuffle by seed and epoch, as DistributedSampler does after set_epoch. seed * epoch is 0 "
        "in epoch 0, and with seed 0. Where an epoch ends the next one must begin.",
        g.patch('f"{self.seed} {epoch}"', "self.seed"),
        wrong=lambda s: s.y["order"] == SAME,
        hint=2,
    ),
    g.Mistake(
        "shuffles in another order after a restart",
        "A generator that runs on from epoch to epoch restarts with the process. Make the order "
        "of an epoch from seed and epoch.",
        g.patch(
            *(ORDER, f"{ORDER}\n        vars(self).setdefault('first', epoch)"),
            *("{self.seed} {epoch}", "{self.seed} {epoch - self.first}"),
        ),
        hint=2,
    ),
    g.Mistake(
        "the order depends on the process",
        "hash() of a text is another number in each process, and so are a process's id and its "
        "addresses. Ranks and restarts are other processes. Make the order from seed and epoch "
        "alone: random.Random takes a text or a tuple's text as its seed.",
        g.patch('f"{self.seed} {epoch}"', 'hash(f"{self.seed} {epoch}")'),
        wrong=lambda s: s.y["order"] == OTHER_PROCESS,
        hint=2,
    ),
    g.Mistake(
        "gives all ranks equally many samples",
        "Where the ranks do not divide the batch, equal shares lose the rest of it, or fill up "
        "with samples that another rank has, too. Some ranks get one more.",
        g.patches(
            f"ids{SHARE}",
            f"(2 * ids){SHARE}[: -(-len(ids) // self.size)]",
            "ids[self.rank * (num := len(ids) // self.size) :][:num]",
        ),
        wrong=is_uneven,
        hint=3,
    ),
    g.Mistake(
        "does not load ahead",
        "Each step waits for its samples. Begin to load the next share before next_batch returns.",
        g.patch("self.prefetched = self.begin(self.epoch, self.used)", "self.prefetched = None"),
        over_budget=lambda s: bool(s.ranks[0].notes),
        hint=2,
    ),
]

GRADER = g.Questions(
    functions=("ResumableBatches",),
    cases=cases,
    right=right,
    call=call,
    mistakes=MISTAKES,
    closed=("labkit.checkpoint",),
    unexplained=(
        "a step uses other samples than the next ones",
        "All ranks' shares together are the next samples, each once, in an order that depends only "
        "on seed and epoch. A state stays as it was returned.",
    ),
    shown="each epoch has each sample once, whatever the number of ranks and the batch before and "
    "after a restart, and the next samples are loaded while a step computes",
)
