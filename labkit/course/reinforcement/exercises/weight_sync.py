"""Grade weight_sync: the rows that each rank serves, the version of all, and the bytes needed."""

from typing import Any

import torch

from labkit.grade import grader as g

COLUMNS = {"embedding": 6, "up": 4}
AGREEMENT = 64
Part = tuple[int, int]


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Engines apart, replicas, shared ranks, uneven and empty parts; failures of one rank."""
    half = max(1, n // 2)
    trainers = range(half) if n > 1 else range(1)
    engines = range(half, n) if n > 1 else range(1)
    rank = draw.rng.randrange(n)
    return [
        case(n, draw, "trainers and engines apart", trainers, engines),
        case(n, draw, "each engine has everything", trainers, [[each] for each in engines]),
        case(n, draw, "all train and serve", range(n), range(n)[::-1]),
        case(n, draw, "more engines than trainers", [0], range(n)),
        case(n, draw, "uneven and empty parts", range(n), range(n), uneven=True),
        case(n, draw, "the step has failed on a rank that trains", trainers, engines, failed=0),
        case(n, draw, "all train and serve, one has failed", range(n), range(n)[::-1], failed=rank),
        case(n, draw, "a version after a failure", range(n), [[each] for each in range(n)]),
    ]


def case(
    n: int,
    draw: g.Draw,
    label: str,
    trainers: Any,
    engines: Any,
    uneven: bool = False,
    failed: int | None = None,
) -> g.Case:
    """trainers: ranks that share all rows, in this order. engines: likewise, or a list of such
    ranks for each replica."""
    replicas = engines if isinstance(engines, list) and isinstance(engines[0], list) else [engines]
    rows = {name: draw.rng.randrange(7, 12) for name in COLUMNS}
    has = {name: parts(n, rows[name], trainers, draw, uneven) for name in COLUMNS}
    wants = {name: [(0, 0)] * n for name in COLUMNS}
    for name in COLUMNS:
        for ranks in replicas:
            cut = parts(n, rows[name], ranks, draw, uneven)
            wants[name] = [cut[r] if r in ranks else wants[name][r] for r in range(n)]
    whole = {name: draw.same(rows[name], COLUMNS[name]) for name in COLUMNS}
    before = {name: draw.same(rows[name], COLUMNS[name]).bfloat16() for name in COLUMNS}
    held = g.ByRank({name: cut_of(whole[name], has[name][r]) for name in COLUMNS} for r in range(n))
    old = draw.rng.randrange(3, 9)
    served = g.ByRank(
        (old, {name: cut_of(before[name], wants[name][r]) for name in COLUMNS}) for r in range(n)
    )
    flags = g.ByRank(r == failed for r in range(n))
    # Versions need not follow each other: some updates are not sent.
    return g.Case(label, held, has, wants, served, old + draw.rng.choice((2, 3)), flags)


def parts(n: int, rows: int, ranks: Any, draw: g.Draw, uneven: bool) -> list[Part]:
    """Cut rows over some ranks, in their order; (0, 0) for the others."""
    size = len(ranks)
    ends = [rows * place // size for place in range(size + 1)]
    if uneven:
        ends[1:-1] = sorted(draw.rng.choices(range(rows + 1), k=size - 1))
    cut = [(0, 0)] * n
    for place, rank in enumerate(ranks):
        cut[rank] = (ends[place], ends[place + 1])
    return cut


def cut_of(x: torch.Tensor, part: Part) -> torch.Tensor:
    """Return a copy of some rows."""
    return x[part[0] : part[1]].clone()


def right(
    held: g.ByRank, has: Any, wants: Any, served: g.ByRank, version: int, failed: g.ByRank
) -> g.ByRank:
    """Put the whole weights together, and cut them as they are served."""
    if any(failed):
        return g.ByRank(served)
    results = []
    for rank in range(len(held)):
        weights = {}
        for name in COLUMNS:
            order = sorted(range(len(held)), key=lambda r: has[name][r])
            whole = torch.cat([held[r][name] for r in order if has[name][r][0] < has[name][r][1]])
            weights[name] = cut_of(whole.bfloat16(), wants[name][rank])
        results.append((version, weights))
    return g.ByRank(results)


def needed(s: g.Observed, rank: int) -> int:
    """Bytes of rows that a rank trains and others serve and do not train; 0 after a failure."""
    _, has, wants, _, _, failed = s.args
    if any(failed):
        return 0
    total = 0
    for name, columns in COLUMNS.items():
        for other in range(s.n):
            if other != rank:
                start = max(has[name][rank][0], wants[name][other][0])
                stop = min(has[name][rank][1], wants[name][other][1])
                total += 2 * columns * max(0, stop - start)
    return total


def budget(s: g.Observed) -> g.Budget:
    """The rows that others need, and an agreement."""
    return g.Budget(payload_bytes=[needed(s, rank) + AGREEMENT for rank in range(s.n)])


def row_bytes(s: g.Observed, dtype: torch.dtype | None = None) -> list[int]:
    """Bytes of the messages of each rank; of one dtype if it is given."""
    return [
        sum(e.nbytes for e in s.messages(rank) if dtype in (None, e.dtype)) for rank in range(s.n)
    ]


def is_over(s: g.Observed) -> bool:
    """Return whether a rank sends more than its rows and an agreement."""
    most = budget(s).payload_bytes
    return isinstance(most, list) and any(s.payload_bytes(r) > most[r] for r in range(s.n))


OTHER_WAY = """
import torch

def weight_sync(held, has, wants, served, version, failed, group):
    if group.all_reduce(torch.tensor([float(failed)]), op="max").item():
        return served
    weights = {}
    for name in sorted(held):
        columns = held[name].shape[1]
        whole = torch.zeros(max(stop for _, stop in has[name]), columns, dtype=DTYPE)
        pending = []
        start, stop = has[name][group.rank]
        whole[start:stop] = held[name].to(DTYPE)
        for other in range(group.size):
            first, last = ROWS_OF_OTHER
            if other != group.rank and first < last:
                pending.append(group.isend(whole[first:last].clone(), other))
            first, last = ROWS_OF_MINE
            if other != group.rank and first < last:
                pending.append(group.irecv(whole[first:last], other))
        for each in pending:
            each.wait()
        start, stop = wants[name][group.rank]
        weights[name] = whole[start:stop].to(torch.bfloat16).clone()
    return version, weights
"""


def other_way(dtype: str, everything: bool) -> str:
    """Return a program that puts the whole weights together on each rank."""
    mine, theirs = "(start, stop)", "has[name][other]"
    if not everything:
        mine = "(max(start, wants[name][other][0]), min(stop, wants[name][other][1]))"
        theirs = (
            "(max(has[name][other][0], wants[name][group.rank][0]), "
            "min(has[name][other][1], wants[name][group.rank][1]))"
        )
    text = OTHER_WAY.replace("ROWS_OF_OTHER", mine).replace("ROWS_OF_MINE", theirs)
    return text.replace("DTYPE", dtype)


AGREE = (
    'if group.all_reduce(torch.tensor([float(failed)]), op="max").item():\n        return served\n'
)
NEW, PLACE = "return version, weights", "slice(rows[0] - part[0], rows[1] - part[0])"
MISTAKES = [
    g.Mistake(
        "serves weights of a step that has failed",
        "Rows of the failed rank are of no version, and the others' are of the new one: together "
        "they are no policy. All ranks agree before anything is sent, and then all or none switch.",
        g.patch(AGREE, "pass\n"),
        hint=2,
    ),
    g.Mistake(
        "decides by its own failure alone",
        "The other ranks do not know of it: they wait for rows that nobody sends. Agree first, "
        "with an all-reduce of the flag.",
        g.patch(AGREE, "if failed:\n        return served\n"),
        hung=lambda s: any(s.args[5]) and not all(s.args[5]),
        hint=2,
    ),
    g.Mistake(
        "agrees after the rows have been sent",
        "A failed step sends no rows. Agree first: one number costs nothing beside the weights.",
        g.patch(
            *(AGREE, "pass\n"),
            *(NEW, f"{AGREE}    {NEW}"),
        ),
        over_budget=lambda s: any(s.args[5]) and any(row_bytes(s)),
        hint=2,
    ),
    g.Mistake(
        "gives the weights another version",
        "Weights and version are one thing: new weights have the new version's number, as it was "
        "given, and old weights keep theirs. A generator writes that number on every token.",
        [
            g.patch(NEW, "return served[0], weights"),
            g.patch(NEW, "return served[0] + 1, weights"),
            g.patch("        return served\n", "        return version, served[1]\n"),
        ],
        hint=3,
    ),
    g.Mistake(
        "sends float32",
        "Engines serve 16 bits. Convert before sending: half the bytes, and every replica "
        "gets the same rounding.",
        g.program(other_way("torch.float32", everything=False)),
        over_budget=lambda s: (
            is_over(s) and not any(s.args[5]) and any(row_bytes(s, torch.float32))
        ),
        hint=3,
    ),
    g.Mistake(
        "sends rows that the other rank does not serve",
        "A rank needs the rows of its own part. Everything to everyone is as many times the bytes "
        "as a replica has ranks. Send the rows that has and wants have in common.",
        g.program(other_way("torch.bfloat16", everything=True)),
        over_budget=lambda s: (
            is_over(s) and not any(s.args[5]) and not any(row_bytes(s, torch.float32))
        ),
    ),
    g.Mistake(
        "leaves out rows that it has itself",
        "A rank may train rows that it serves, too. They need no message, only a copy into place.",
        g.patch(
            "weights[name][within(here, rows)] = x[within(mine, rows)]",
            "weights[name][within(here, rows)] = 0",
        ),
        hint=3,
    ),
    g.Mistake(
        "puts rows into the wrong place",
        "has and wants count rows of the whole weight. A tensor begins with the first row of its "
        "part, so subtract where the part begins.",
        [
            g.patch(PLACE, "slice(0, rows[1] - rows[0])"),
            g.patch(
                "weights[name][within(here, rows)] = x", "weights[name][-(rows[1] - rows[0]):] = x"
            ),
        ],
        hint=3,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("isend", "irecv", "all_reduce"),
    closed=("labkit.rl", "labkit.checkpoint", "labkit.shards"),
    new_result=False,
    shown="each rank serves its rows of the new version, sent once in 16 bits by a rank that "
    "trains them; after a failure all serve the old version, and no row travels",
)
