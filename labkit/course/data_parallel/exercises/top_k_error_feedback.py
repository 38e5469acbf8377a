"""Grade top_k_error_feedback: what is sent and owed; then the mean of what the ranks send."""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g


def steps(draw: g.Draw) -> list[g.Case]:
    """Gradients and debts: their sums have different magnitudes, and both signs."""
    sizes = [(8, 3), (7, 1), (7, 6), (5, 5), (1, 1), (30, 6), (200, 10), (20, 4)]
    listed = []
    for numel, k in sizes:
        dtype = torch.float64 if numel == 20 else torch.float32
        magnitudes = torch.tensor(draw.rng.sample(range(1, 50 * numel), numel), dtype=dtype)
        due = magnitudes * draw.same(numel).sign()
        (owed,) = draw(numel, dtype=dtype, low=-20 * numel, high=20 * numel)
        label = f"{numel} entries, k = {k}"
        listed.append(g.Case(label, due - owed, owed, k, function="compress"))
    return listed


def in_order(watch: Any, args: tuple[Any, ...]) -> Any:
    """Return compress's result, sorted by place; a result of another form is returned as it is."""
    gradient, owed, k = args
    result = watch.function(gradient, owed.clone(), k)
    with suppress(Exception):
        indices, values, left = result
        order = indices.argsort()
        return indices[order], values[order], left
    return result


def compressed(gradient: Tensor, owed: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest entries, by place, and the rest."""
    due = gradient + owed
    places = due.abs().argsort(descending=True)[:k].sort().values
    return places, due[places], due.index_fill(0, places, 0)


OWED = "values, due"
COMPRESSION = [
    g.Mistake(
        "ranks by value instead of magnitude",
        "topk() ranks -3 below 0.1, so large negative entries are never sent and their debt grows. "
        "Rank by abs().",
        g.patch("due.abs()", "due"),
        hint=3,
    ),
    g.Mistake(
        "sends entries of the gradient alone",
        "Entries that earlier steps left out are sent only if they are added first. Places and "
        "values are those of gradient + owed.",
        g.patch("due = gradient + owed", "due = gradient.clone()"),
        wrong=lambda s: g.close(s.y[1], s.args[0][s.y[0]]),
        hint=2,
    ),
    g.Mistake(
        "forgets what is owed",
        "Everything that is not sent now is owed, from this gradient and from earlier ones: "
        "gradient + owed, with zeros at indices. An entry whose debt is dropped and that is never "
        "among the k largest is never learned.",
        [
            g.patch(OWED, "values, gradient.index_fill(0, indices, 0)"),
            g.patch(OWED, "values, torch.zeros_like(due)"),
        ],
        hint=2,
    ),
]

MOST = 60
"""Entries of a result that are looked at: the last ones."""


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Places that several ranks choose; all places; one; one that float32 cannot hold."""
    sizes = [(9, 3), (5, 5), (1, 1), (60, 6), *[(2**24 + 41, 6)] * (n == 2), (30, 20)]
    listed = []
    for numel, k in sizes:
        dtype, tail = torch.float64 if numel == 30 else torch.float32, range(numel)[-MOST:]
        places = g.ByRank(torch.tensor(draw.rng.sample(tail, k)) for _ in range(n))
        # Multiples of 12, so that their means are exact.
        values = g.ByRank(12 * x for x in draw(k, dtype=dtype, low=1, high=1000))
        label = f"{numel:,} entries, k = {k}"
        listed.append(g.Case(label, places, values, numel, function="exchange"))
    return listed


def last_places(watch: Any, args: tuple[Any, ...]) -> Any:
    """The end of the result: a very large one takes long to travel."""
    mean = watch.function(*args, watch.group)
    return mean[-MOST:] if isinstance(mean, Tensor) else mean


def mean(places: g.ByRank, values: g.ByRank, numel: int) -> Tensor:
    """The end of the mean of rows with what each rank sends."""
    tail = range(numel)[-MOST:]
    rows = torch.zeros(len(places), len(tail), dtype=values[0].dtype)
    for row, its, x in zip(rows, places, values):
        row[its - tail.start] = x
    return rows.sum(0) / len(places)


def budget(s: g.Observed) -> g.Budget:
    """k places and k values."""
    values = s.args[1][0]
    return g.Budget(collectives=2, payload_bytes=8 * len(values) + values.nbytes)


MEAN = "total / group.size"
EXCHANGE = [
    g.Mistake(
        "overwrites where ranks send the same place",
        "total[indices] += values writes each place once, so only one rank's value is kept. "
        "index_add_ and scatter_add_ add up everything for the same place.",
        g.patch(".index_add_(0, all_indices, all_values)", "\n    total[all_indices] = all_values"),
        hint=3,
    ),
    g.Mistake(
        "divides by another number than that of all ranks",
        "The result is the mean over all ranks: divide the sum by n. Ranks that have not sent this "
        "place count as 0 now: they owe their entries, and send them later.",
        g.patches(MEAN, "total", "total / all_indices.bincount(minlength=numel).clamp(min=1)"),
        hint=3,
    ),
    g.Mistake(
        "loses places that are far out",
        "Places travelled as floating-point numbers, and float32 has whole numbers up to 2**24 "
        "only. Gather the places as int64.",
        g.patch("group.all_gather(indices)", "group.all_gather(indices.to(values.dtype)).long()"),
        hint=1,
    ),
    g.Mistake(
        "sends more than k places and k values",
        "The whole gradient was not to be sent: its zeros cost as many bytes as other numbers. "
        "Gather the places, as int64, and the values, and add them up on each rank.",
        g.patch(
            "    all_values = group.all_gather(values)\n",
            "    sent = values.new_zeros(1, numel)\n    sent[0, indices] = values\n"
            "    return group.all_gather(sent).sum(0) / group.size\n",
        ),
        over_budget=lambda s: s.payload_bytes(0) > budget(s).payload_bytes,
    ),
]

GRADER = [
    g.Questions(
        functions=("compress",),
        cases=steps,
        right=compressed,
        call=in_order,
        mistakes=COMPRESSION,
        closed=("labkit.data_parallel",),
        shown="in each step the largest entries are sent, and everything else is owed",
    ),
    g.OnRanks(
        functions=("exchange",),
        cases=cases,
        right=mean,
        call=last_places,
        budget=budget,
        mistakes=EXCHANGE,
        allowed=("all_gather",),
        closed=("labkit.data_parallel",),
        shown="all ranks get one mean, also where they have chosen the same places, for k "
        "places and k values",
    ),
]
