"""Grade resume_cursor: jobs that go on with another size or batch, and jobs that roll back."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from labkit.grade.grader import Case, Draw, Mistake, Observed, Outcome, Questions, patch
from labkit.grade.outcome import Finding

Span = tuple[int, int]
Shares = list[list[int]]


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


def cases(draw: Draw) -> list[Case]:
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
        Case(f"{n} samples: {'; '.join(map(str, jobs))}", n, rng.randrange(10**6), jobs)
        for n, jobs in asked
    ]


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """The order of the epochs, and by attempt and step the ids of each rank."""
    num_samples, seed, attempts = args
    ahead: Counter[int] = Counter()  # loads that no step has used yet

    def load(ids: Any) -> Callable[[], list[str]]:
        chosen = [int(each) for each in ids]
        if not all(0 <= each < num_samples for each in chosen):
            raise ValueError(f"load({chosen}): the ids are 0 to {num_samples - 1}")
        ahead.update(chosen)
        return lambda: [f"sample {each}" for each in chosen]

    def ids_of(batches: Any) -> list[int]:
        return [int(sample.split()[1]) for sample in batches.next_batch()]

    alone = watch.function(num_samples, 1, seed, 0, 1, load)
    num_epochs = max(end for spans in right(*args) for _, end in spans) // num_samples + 2
    order = [each for _ in range(num_epochs * num_samples) for each in ids_of(alone)]
    done: list[list[Shares]] = []
    state, ranks = "", []
    for size, batch, num_steps, saved, rolls_back in attempts:
        ahead.clear()
        if not rolls_back:
            own = [(rank, size, load) for rank in range(size)]
            ranks = [watch.function(num_samples, batch, seed, *each) for each in own]
        for rank in ranks if state else []:
            rank.load_state_dict(json.loads(state))
        done.append([])
        for number in range(num_steps):
            before = +ahead
            shares = [ids_of(rank) for rank in ranks]
            if number and not before >= Counter(together(shares)):
                watch.note("not loaded ahead")
            ahead.subtract(together(shares))
            done[-1].append(shares)
            if number + 1 == saved:
                state = json.dumps(ranks[-1].state_dict())
    return {"order": order, "steps": done}


def together(shares: Shares) -> list[int]:
    """The samples of a step."""
    return sorted(each for ids in shares for each in ids)


def right(num_samples: int, seed: int, attempts: list[Attempt]) -> list[list[Span]]:
    """By attempt and step: which samples of all epochs' order are used."""
    done: list[list[Span]] = []
    begin = 0
    for its in attempts:
        spans = []
        for _ in range(its.num_steps):
            end = min(begin + its.batch, (begin // num_samples + 1) * num_samples)
            spans.append((begin, end))
            begin = end
        done.append(spans)
        begin = spans[its.saved - 1][1]
    return done


def problem(num_samples: int, got: Any, expected: list[list[Span]]) -> str:
    """What is wrong first, in words; empty for a right result."""
    order = got["order"]
    epochs = [order[i : i + num_samples] for i in range(0, len(order), num_samples)]
    for number, ids in enumerate(epochs):
        if sorted(ids) != [*range(num_samples)]:
            return f"epoch {number} of one rank has {len({*ids})} different samples"
        if ids in epochs[:number]:
            return f"epoch {number} has the order of epoch {epochs.index(ids)}"
    for a, spans in enumerate(expected):
        for number, (begin, end) in enumerate(spans):
            shares, wanted = got["steps"][a][number], sorted(order[begin:end])
            counts, where = sorted(map(len, shares)), f"attempt {a}, step {number}"
            if together(shares) != wanted:
                return f"{where} uses the samples {together(shares)}, expected {wanted}"
            if counts[-1] - counts[0] > 1:
                return f"{where}: the ranks have {counts} samples"
    return ""


def found(s: Observed, ids: list[int]) -> list[int]:
    """Where in the order of all epochs these samples follow each other."""
    order, n = s.y["order"], len(ids)
    return [i for i in range(len(order)) if n and sorted(order[i : i + n]) == ids]


def wrong_restart(s: Observed) -> tuple[int, int, list[int]]:
    """The first attempt that goes on at a wrong sample: its number, where it should, and does."""
    for number, (spans, steps) in enumerate(zip(s.right[0], s.y["steps"], strict=True)):
        starts = found(s, together(steps[0]))
        if number and spans[0][0] not in starts:
            return number, spans[0][0], starts
    raise LookupError  # which counts as no


def goes_on_at(s: Observed, count: Callable[[list[Shares], Attempt], int]) -> bool:
    """Whether a wrong restart is explained by a count of saved steps, of all or of the epoch's."""
    number, _, starts = wrong_restart(s)
    attempts = s.args[2]
    saved = [
        (begin, shares)
        for its, spans, steps in zip(attempts[:number], s.right[0], s.y["steps"], strict=False)
        for (begin, _), shares in zip(spans[: its.saved], steps, strict=False)
    ]
    epoch = saved[-1][0] // s.xs * s.xs
    return any(
        begin + count([shares for at, shares in saved if at >= begin], attempts[number]) in starts
        for begin in (0, epoch)
    )


def loaded_counts(s: Observed) -> bool:
    """Whether the job goes on behind a step that was loaded when the state was saved."""
    number, begin, starts = wrong_restart(s)
    return min(begin + s.args[2][number - 1].batch, (begin // s.xs + 1) * s.xs) in starts


def is_where_it_was(s: Observed) -> bool:
    """Whether the job goes on as if load_state_dict had not been called, for a step at least."""
    number, _, starts = wrong_restart(s)
    return (s.right[0][number - 1][-1][1] if s.args[2][number].rolls_back else 0) in starts


def order_is_lost(s: Observed) -> bool:
    """Whether ranks shuffle otherwise than one alone, or a restart has the first epoch's order."""
    shares = s.y["steps"][0][0]
    first = s.y["order"][: s.args[2][0].batch]
    if len(together(shares)) == len(first) and not {*together(shares)} <= {*first}:
        return True
    _, begin, starts = wrong_restart(s)
    return begin >= s.xs and begin % s.xs in starts


def wrong_step(s: Observed) -> tuple[Span, Shares, list[int]]:
    """The first wrong step: the samples to use, its shares, and where these samples are."""
    pairs = zip(sum(s.right[0], []), sum(s.y["steps"], []), strict=True)
    return next(
        (span, shares, found(s, together(shares)))
        for span, shares in pairs
        if together(shares) != sorted(s.y["order"][slice(*span)])
    )


def shares_are_equal(s: Observed) -> bool:
    """Whether all ranks have the same number, where the step's samples do not divide."""
    (begin, end), shares, _ = wrong_step(s)
    return (end - begin) % len(shares) > 0 and len({*map(len, shares)}) == 1


def drops_the_end(s: Observed) -> bool:
    """Whether the step that should be an epoch's last one is the first of the next epoch."""
    (_, end), _, starts = wrong_step(s)
    return end % s.xs == 0 and end in starts


def fills_up(s: Observed) -> bool:
    """Whether an epoch's last step also has samples of the next epoch."""
    (begin, end), shares, starts = wrong_step(s)
    return end % s.xs == 0 and len(together(shares)) > end - begin and begin in starts


def describe(s: Observed) -> str:
    """What is wrong first."""
    return problem(s.xs, s.y, s.right[0]) or "a step's samples are loaded when it needs them"


def fault(s: Observed) -> Finding | None:
    """Other samples, for another reason than a usual one."""
    if not s.wrong_ranks:
        return None
    name, seen = "a step uses other samples than the next ones", f"{s.label}: {describe(s)}"
    why = "All ranks' shares together are the next samples of the epoch's order, each once."
    return Finding(Outcome.WRONG, name, why, seen, 2)


MISTAKES = [
    Mistake(
        "counts the samples of one rank",
        "A rank's own count means nothing to another number of ranks. Count the samples of all "
        "ranks together: each step adds the size of the global batch.",
        seen=lambda s: (
            goes_on_at(s, lambda steps, its: sum(len(each[-1]) for each in steps))
            or goes_on_at(s, lambda steps, its: its.size * sum(len(each[-1]) for each in steps))
        ),
        made_by=patch(
            *('"used": self.used}', '"used": self.own}'),
            *("self.begun = None", 'self.begun, self.own = None, state["used"]'),
            *("return samples()", "self.own += len(own := samples())\n        return own"),
        ),
    ),
    Mistake(
        "counts batches",
        "Batches of another size are other samples: 100 steps of 8 samples are 50 steps of 16. "
        "Count samples.",
        seen=lambda s: goes_on_at(s, lambda steps, its: its.batch * len(steps)),
        made_by=patch(
            *('"used": self.used}', '"used": -(-self.used // self.batch)}'),
            *('state["used"]', 'state["used"] * self.batch'),
        ),
    ),
    Mistake(
        "begins before the state is loaded",
        "What was shuffled, iterated or loaded ahead before load_state_dict belongs to another "
        "place. load_state_dict drops it, and the next step begins at the place that was loaded.",
        hint=2,
        seen=is_where_it_was,
        made_by=patch(
            *("        self.begun = None\n", ""),
            'self.load_state_dict({"epoch": 0, "used": 0})',
            "self.begun = self.begin(0, 0)",
        ),
    ),
    Mistake(
        "counts samples that are only loaded",
        "The batch that was loaded ahead is lost with the process, and no step has used it. The "
        "state says what next_batch has returned.",
        hint=2,
        seen=loaded_counts,
        made_by=patch(
            'return {"epoch": self.epoch, "used": self.used}',
            'return dict(zip(("epoch", "used"), self.begun))',
        ),
    ),
    Mistake(
        "has the same order in each epoch",
        "The seed of the shuffle must contain the epoch, as DistributedSampler's does after "
        "set_epoch.",
        hint=2,
        seen=lambda s: s.y["order"][: s.xs] == s.y["order"][s.xs : 2 * s.xs],
        made_by=patch('f"{self.seed} {epoch}"', "self.seed"),
    ),
    Mistake(
        "shuffles in another order after a restart",
        "A generator that runs on from epoch to epoch begins anew with the process, and one "
        "without a seed, or with the rank in it, differs on each rank. Make the order of an epoch "
        "from seed and epoch.",
        hint=2,
        seen=order_is_lost,
        made_by=patch(
            "self.rank, self.size, self.load = rank, size, load",
            "self.rank, self.size, self.load = rank, size, load\n"
            "        self.drawn, self.orders = random.Random(seed), {}",
            "order = list(range(self.num_samples))",
            "if epoch not in self.orders:\n"
            "            self.orders[epoch] = list(range(self.num_samples))\n"
            "            self.drawn.shuffle(self.orders[epoch])\n"
            "        order = self.orders[epoch]",
            *('        random.Random(f"{self.seed} {epoch}").shuffle(order)\n', ""),
        ),
    ),
    Mistake(
        "gives all ranks equally many samples",
        "Where the ranks do not divide the batch, equal shares lose the rest of it, or fill up "
        "with samples that another rank has, too. Some ranks get one more.",
        hint=3,
        seen=shares_are_equal,
        made_by=patch(
            "[self.rank :: self.size]", "[self.rank :: self.size][: len(ids) // self.size]"
        ),
    ),
    Mistake(
        "drops the end of an epoch",
        "The last batch of an epoch may be smaller, and is used all the same.",
        hint=3,
        seen=drops_the_end,
        made_by=patch("used == self.num_samples", "used + self.batch > self.num_samples"),
    ),
    Mistake(
        "fills an epoch's last batch with samples of the next epoch",
        "The contract ends the step with the epoch. Both can be right, and they are not the same: "
        "a job that does one and goes on with the other loses samples.",
        hint=3,
        seen=fills_up,
        made_by=patch(
            "order = list(range(self.num_samples))",
            "n, order = self.num_samples, []\n"
            "        for each in epoch, epoch + 1:\n"
            "            order += random.Random(f'{self.seed} {each}').sample(range(n), n)",
            *('        random.Random(f"{self.seed} {epoch}").shuffle(order)\n', ""),
            "return epoch, used + len(ids),",
            "return epoch + (used + len(ids)) // n, (used + len(ids)) % n,",
        ),
    ),
    Mistake(
        "does not load ahead",
        "Each step waits for its samples. Begin to load the next share before next_batch returns.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: bool(s.ranks[0].notes),
        made_by=patch("self.begun = self.begin(self.epoch, self.used)", "self.begun = None"),
    ),
]

GRADER = Questions(
    name="resume_cursor",
    functions=("ResumableBatches",),
    cases=cases,
    right=right,
    same=lambda got, right, case: not problem(case.args[0], got, right),
    call=call,
    num_arguments=6,
    mistakes=MISTAKES,
    closed=("labkit.checkpoint",),
    describe=describe,
    fault=fault,
    shown="each epoch has each sample once, whatever the number of ranks and the batch before and "
    "after a restart, and the next samples are loaded while a step computes",
)
