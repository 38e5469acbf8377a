"""Grade resume_cursor: jobs that go on with another size or batch, and jobs that roll back."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from labkit.grade import grader as g
from labkit.grade.differences import difference

EPOCHS = "each epoch has each sample once, in an order of its own"
SAME = "two epochs have one order"
OTHER = "samples that do not follow each other"


class Attempt(NamedTuple):
    """The steps between two restarts: `saved` of them were saved, the later ones are lost."""

    size: int
    batch: int
    num_steps: int
    saved: int
    rolls_back: bool = False  # it goes on with the objects of the attempt before

    def __str__(self) -> str:
        how = "rolled back" if self.rolls_back else f"{self.size} ranks, batch {self.batch}"
        return f"{how}, {self.saved} of {self.num_steps} steps saved"


def cases(draw: g.Draw) -> list[g.Case]:
    """Other sizes, other batches, several epochs, saved at an epoch's end, rolled back, drawn."""
    rng = draw.rng
    asked = [
        (48, [Attempt(2, 8, 3, 3), Attempt(4, 8, 3, 3)]),
        (48, [Attempt(4, 8, 3, 2), Attempt(4, 4, 4, 4)]),
        (60, [Attempt(3, 12, 2, 1), Attempt(2, 6, 3, 2), Attempt(3, 12, 3, 3)]),
        (53, [Attempt(3, 8, 4, 3), Attempt(4, 10, 4, 4)]),
        (24, [Attempt(3, 8, 3, 3), Attempt(2, 12, 3, 3)]),
        (20, [Attempt(2, 6, 5, 5), Attempt(3, 6, 4, 4)]),
        (40, [Attempt(2, 8, 4, 2), Attempt(2, 8, 4, 4, True)]),
        (20, [Attempt(2, 8, 4, 3), Attempt(2, 8, 4, 4, True)]),
        (31, [Attempt(1, 5, 9, 8), Attempt(1, 5, 3, 3)]),
    ]
    for _ in range(8):
        jobs = [(rng.randint(1, 5), rng.randint(4, 14), 5, rng.randint(1, 5)) for _ in range(3)]
        asked.append((rng.randint(20, 60), [Attempt(*each) for each in jobs]))
    return [
        g.Case(f"{n} samples: {'; '.join(map(str, jobs))}", n, rng.randrange(10**6), jobs)
        for n, jobs in asked
    ]


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """The order of the epochs; by attempt and step which samples of that order are used."""
    num_samples, seed, attempts = args
    ahead: Counter[int] = Counter()  # loads that no step has used yet

    def load(ids: Any) -> Callable[[], list[str]]:
        chosen = [int(each) for each in ids]
        ahead.update(chosen)
        return lambda: [f"sample {each}" for each in chosen]

    def ids_of(batches: Any) -> list[int]:
        return [int(sample.split()[1]) for sample in batches.next_batch()]

    expected = right(*args)["used"]
    alone = watch.function(num_samples, 1, seed, 0, 1, load)
    num_epochs = max(end for spans in expected for _, end in spans) // num_samples + 2
    order = [each for _ in range(num_epochs * num_samples) for each in ids_of(alone)]
    used: list[list[Any]] = []
    state, ranks = "", []
    for (size, batch, num_steps, saved, rolls_back), spans in zip(attempts, expected):
        ahead.clear()
        if not rolls_back:
            own = [(rank, size, load) for rank in range(size)]
            ranks = [watch.function(num_samples, batch, seed, *each) for each in own]
        for rank in ranks if state else []:
            rank.load_state_dict(json.loads(state))
        used.append([])
        for number in range(num_steps):
            before = +ahead
            shares = [ids_of(rank) for rank in ranks]
            its = Counter(sum(shares, []))
            if number and not before >= its:
                watch.note("not loaded ahead")
            ahead.subtract(its)
            used[-1].append(place(order, shares, spans[number][0]))
            if number + 1 == saved:
                state = json.dumps(ranks[-1].state_dict())
    return {"order": in_words(order, num_samples), "used": used}


def in_words(order: list[int], num_samples: int) -> str:
    """What is wrong with the order of all epochs, or EPOCHS."""
    epochs = [order[i : i + num_samples] for i in range(0, len(order), num_samples)]
    if any(sorted(ids) != [*range(num_samples)] for ids in epochs):
        return "an epoch does not have each sample once"
    return EPOCHS if len(set(map(tuple, epochs))) == len(epochs) else SAME


def place(order: list[int], shares: list[list[int]], begin: int) -> tuple[int, int] | str:
    """Where a step's samples follow each other in the order; at `begin`, if they do there."""
    ids, counts = sorted(sum(shares, [])), sorted(map(len, shares))
    if counts[-1] - counts[0] > 1:
        return f"the ranks have {counts} samples"
    for first in (begin, *range(len(order))):
        if sorted(order[first : first + len(ids)]) == ids:
            return first, first + len(ids)
    return OTHER


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
    return {"order": EPOCHS, "used": used}


STATE = 'return {"epoch": self.epoch, "used": self.used}'
LOAD = 'self.epoch, self.used = state["epoch"], state["used"]\n'
INIT = 'self.load_state_dict({"epoch": 0, "used": 0})'
ORDER, SHARE = "order = list(range(self.num_samples))", "[self.rank :: self.size]"
PER_EPOCH = "-(-self.num_samples // self.batch)"
STEPS = f"self.epoch * {PER_EPOCH} - (-self.used // self.batch)"
MISTAKES = [
    g.Mistake(
        "counts the samples of one rank",
        "A rank's own count means nothing to another number of ranks. Count the samples of all "
        "ranks together: each step adds the size of the global batch.",
        [
            g.patch(
                *('"used": self.used}', '"used": self.own}'),
                *("self.begun = None", 'self.begun, self.own = None, state["used"]'),
                *("return samples()", "self.own += len(own := samples())\n        return own"),
                *('state["epoch"], state["used"]', f'state["epoch"], state["used"]{times}'),
            )
            for times in ("", " * self.size")
        ],
    ),
    g.Mistake(
        "counts batches",
        "Batches of another size are other samples: 100 steps of 8 samples are 50 steps of 16. "
        "Count samples.",
        [
            g.patch(
                *('"used": self.used}', '"used": -(-self.used // self.batch)}'),
                *('state["used"]', 'state["used"] * self.batch'),
            ),
            g.patch(
                f"{LOAD}        self.begun",
                f"self.epoch, steps = divmod(state['used'], {PER_EPOCH})\n"
                "        self.used = steps * self.batch\n        self.begun",
                *('"used": self.used}', f'"used": {STEPS}}}'),
            ),
        ],
    ),
    g.Mistake(
        "keeps what it has begun when a state is loaded",
        "What was shuffled, iterated or loaded ahead before load_state_dict belongs to another "
        "place. load_state_dict drops it, also in a rollback, and the next step begins at the "
        "place that was loaded.",
        [
            g.patch("        self.begun = None\n", "", INIT, f"self.begun = None\n        {INIT}"),
            g.patch("        self.begun = None\n", "", INIT, "self.begun = self.begin(0, 0)"),
            g.patch(
                *("self.begun = None", "self.begun = self.epoch, self.used, self.begun[2]"),
                *(INIT, "self.begun = self.begin(0, 0)"),
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "counts samples that are only loaded",
        "The batch that was loaded ahead is lost with the process, and no step has used it. The "
        "state says what next_batch has returned.",
        g.patch(STATE, 'return dict(zip(("epoch", "used"), self.begun))'),
        hint=2,
    ),
    g.Mistake(
        "has the same order in each epoch",
        "The seed of the shuffle must contain the epoch, as DistributedSampler's does after "
        "set_epoch, and where an epoch ends the next one must begin.",
        [
            g.patch('f"{self.seed} {epoch}"', "self.seed"),
            g.patch("epoch, used = epoch + 1, 0", "used = 0"),
        ],
        seen=lambda s: s.y["order"] == SAME,
        hint=2,
    ),
    g.Mistake(
        "shuffles in another order after a restart",
        "A generator that runs on from epoch to epoch begins anew with the process, and one "
        "without a seed, or with the rank in it, differs on each rank. Make the order of an epoch "
        "from seed and epoch.",
        [
            g.patch(
                *(ORDER, f"{ORDER}\n        vars(self).setdefault('first', epoch)"),
                *("{self.seed} {epoch}", "{self.seed} {epoch - self.first}"),
            ),
            g.patch("{self.seed} {epoch}", "{self.seed} {epoch} {self.rank}"),
        ],
        hint=2,
    ),
    g.Mistake(
        "gives all ranks equally many samples",
        "Where the ranks do not divide the batch, equal shares lose the rest of it, or fill up "
        "with samples that another rank has, too. Some ranks get one more.",
        [
            g.patch(f"ids{SHARE}", f"ids{SHARE}[: len(ids) // self.size]"),
            g.patch(f"ids{SHARE}", f"(2 * ids){SHARE}[: -(-len(ids) // self.size)]"),
        ],
        hint=3,
    ),
    g.Mistake(
        "drops the end of an epoch",
        "The last batch of an epoch may be smaller, and is used all the same.",
        g.patch("used == self.num_samples", "used + self.batch > self.num_samples"),
        hint=3,
    ),
    g.Mistake(
        "fills an epoch's last batch with samples of the next epoch",
        "The contract ends the step with the epoch. Both can be right, and they are not the same: "
        "a job that does one and goes on with the other loses samples.",
        g.patch(
            ORDER,
            "n, order = self.num_samples, []\n"
            "        for each in epoch, epoch + 1:\n"
            "            order += random.Random(f'{self.seed} {each}').sample(range(n), n)",
            *('        random.Random(f"{self.seed} {epoch}").shuffle(order)\n', ""),
            "return epoch, used + len(ids),",
            "return epoch + (used + len(ids)) // n, (used + len(ids)) % n,",
        ),
        hint=3,
    ),
    g.Mistake(
        "does not load ahead",
        "Each step waits for its samples. Begin to load the next share before next_batch returns.",
        g.patch("self.begun = self.begin(self.epoch, self.used)", "self.begun = None"),
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
    fault=g.unexplained(
        "a step uses other samples than the next ones",
        "All ranks' shares together are the next samples of the epoch's order, each once.",
        lambda s: difference(s.y, s.right[0]),
    ),
    shown="each epoch has each sample once, whatever the number of ranks and the batch before and "
    "after a restart, and the next samples are loaded while a step computes",
)
