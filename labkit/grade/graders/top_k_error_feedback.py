"""Grade top_k_error_feedback: what is sent and owed; then the mean of what the ranks send."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from labkit.grade.grader import (
    Budget,
    ByRank,
    Case,
    Draw,
    InParts,
    Mistake,
    Observed,
    OnRanks,
    Outcome,
    Questions,
    patch,
)

Formula = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]
FAR = 2**24 + 1
"""float32 cannot hold this place: it has the whole numbers up to 2**24."""


def steps(draw: Draw) -> list[Case]:
    """Single steps, of several sizes."""
    sizes = [(8, 3), (7, 1), (7, 6), (5, 5), (1, 1), (30, 6), (200, 10)]
    cases = [step(draw, numel, k, torch.float32) for numel, k in sizes]
    return [*cases, step(draw, 20, 4, torch.float64)]


def step(draw: Draw, numel: int, k: int, dtype: torch.dtype) -> Case:
    """A gradient and a debt: their sum has different magnitudes, and both signs."""
    magnitudes = draw.rng.sample(range(1, 50 * numel), numel)
    total = torch.tensor([x * draw.rng.choice((-1, 1)) for x in magnitudes]).to(dtype)
    (owed,) = draw(numel, dtype=dtype, low=-20 * numel, high=20 * numel)
    label = f"{numel} {str(dtype).removeprefix('torch.')} entries, k = {k}"
    return Case(label, total - owed, owed, k, function="compress")


def in_order(watch: Any, args: tuple[Any, ...]) -> Any:
    """What compress returns, sorted by place; a result of another form as it is."""
    gradient, owed, k = args
    result = watch.function(gradient, owed.clone(), k)
    with suppress(Exception):
        indices, values, left = result
        order = indices.argsort()
        return indices[order], values[order], left
    return result


def due(gradient: Tensor, owed: Tensor) -> Tensor:
    """What there is to send."""
    return gradient + owed


def magnitude(gradient: Tensor, owed: Tensor) -> Tensor:
    """The magnitudes of what there is to send."""
    return due(gradient, owed).abs()


def made_from(places: Any = magnitude, values: Any = due, debt: Any = due) -> list[Formula]:
    """Formulas with places, values and the new debt from functions of (gradient, owed).

    The first formula writes zeros into the debt for what is sent; the second subtracts the values.
    """

    def sent(gradient: Tensor, owed: Tensor, k: int) -> tuple[Tensor, Tensor]:
        indices = places(gradient, owed).argsort(descending=True)[:k].sort().values
        return indices, values(gradient, owed)[indices]

    def zeroed(gradient: Tensor, owed: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        indices, its = sent(gradient, owed, k)
        return indices, its, debt(gradient, owed).index_fill(0, indices, 0)

    def subtracted(gradient: Tensor, owed: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        indices, its = sent(gradient, owed, k)
        return indices, its, debt(gradient, owed).index_add(0, indices, -its)

    return [zeroed, subtracted]


right: Formula = made_from()[0]
DUE = "due.abs().topk(k).indices"
LEFT = "    due[indices] = 0\n    return indices, values, due"

COMPRESSION = [
    Mistake(
        "ranks by value instead of magnitude",
        "topk() ranks -3 below 0.1, so large negative entries are never sent and their debt grows. "
        "Rank by abs().",
        hint=3,
        formula=made_from(places=due),
        made_by=patch(DUE, "due.topk(k).indices"),
    ),
    Mistake(
        "loses the signs",
        "abs() is for the choice of the places. The values are (gradient + owed)[indices].",
        hint=3,
        formula=made_from(values=magnitude),
        made_by=patch("values = due[indices]", "values = due.abs()[indices]"),
    ),
    Mistake(
        "chooses from the gradient alone",
        "What earlier steps left out comes back only if it is added first. Places and values are "
        "those of gradient + owed.",
        hint=2,
        formula=[
            *made_from(places=lambda g, _: g.abs()),
            *made_from(places=lambda g, _: g.abs(), values=lambda g, _: g),
            *made_from(*(lambda g, _: g.abs(), lambda g, _: g, lambda g, _: g)),
        ],
        made_by=patch(DUE, "gradient.abs().topk(k).indices", "values = due", "values = gradient"),
    ),
    Mistake(
        "throws away what is left out",
        "Nothing is owed, though not everything was sent. An entry that is never among the k "
        "largest is then never learned.",
        hint=1,
        formula=[
            made_from(debt=lambda g, _: 0 * g)[0],
            made_from(lambda g, _: g.abs(), lambda g, _: g, lambda g, _: 0 * g)[0],
        ],
        made_by=patch(LEFT, "    return indices, values, torch.zeros_like(due)"),
    ),
    Mistake(
        "forgets the old debt",
        "The new debt comes from the gradient alone, so what was owed before and is not sent now "
        "is lost. The new debt is gradient + owed, less what is sent.",
        hint=2,
        formula=made_from(debt=lambda g, _: g),
        made_by=patch(LEFT, "    return indices, values, gradient.index_fill(0, indices, 0)"),
    ),
    Mistake(
        "still owes what it has sent",
        "The new debt has what was sent too, so it will be sent again. Write zeros at indices.",
        hint=3,
        formula=[
            lambda g, o, k: (*right(g, o, k)[:2], g + o),
            lambda g, o, k: (*right(g, o, k)[:2], g + o - right(g, o, k)[2]),
        ],
        made_by=patch("    due[indices] = 0\n", ""),
    ),
    Mistake(
        "counts the old debt twice",
        "gradient + owed contains the old debt already. The new debt is gradient + owed, less what "
        "is sent; do not add it to the old debt.",
        hint=2,
        formula=made_from(debt=lambda g, o: g + 2 * o),
        made_by=patch(LEFT, "    due[indices] = 0\n    return indices, values, due + owed"),
    ),
]


def cases(n: int, draw: Draw) -> list[Case]:
    """Places that several ranks choose; all places; one; one that float32 cannot hold."""
    far = [sent(n, draw, FAR + 40, 6, torch.float32, first=FAR)] * (n == 2)
    return [
        sent(n, draw, 9, 3, torch.float32),
        sent(n, draw, 5, 5, torch.float32),
        sent(n, draw, 1, 1, torch.float32),
        sent(n, draw, 60, 6, torch.float32),
        *far,
        sent(n, draw, 30, 20, torch.float64),
    ]


def sent(n: int, draw: Draw, numel: int, k: int, dtype: torch.dtype, first: int = 0) -> Case:
    """Places from `first` on; values are multiples of 12, so that their means are exact."""
    places = [torch.tensor(draw.rng.sample(range(first, numel), k)) for _ in range(n)]
    values = ByRank(12 * x for x in draw(k, dtype=dtype, low=1, high=1000))
    label = f"{numel:,} {str(dtype).removeprefix('torch.')} entries, k = {k}"
    return Case(label, ByRank(places), values, numel, function="exchange")


def last_places(watch: Any, args: tuple[Any, ...]) -> Any:
    """The result; of a very large one the last 40 entries."""
    mean = watch.function(*args, watch.group)
    return mean[FAR:].clone() if args[2] > FAR and isinstance(mean, Tensor) else mean


def by_rank(places: ByRank, values: ByRank, numel: int) -> Tensor:
    """What each rank sends, (n, numel); of a very large one the last 40 entries."""
    first = FAR if numel > FAR else 0
    rows = torch.zeros(len(places), numel - first, dtype=values[0].dtype)
    for row, its, x in zip(rows, places, values):
        row[its - first] = x
    return rows


def mean(places: ByRank, values: ByRank, numel: int) -> Tensor:
    """The sum of what the ranks send, divided by n."""
    return by_rank(places, values, numel).sum(0) / len(places)


def budget(s: Observed) -> Budget:
    """k places and k values."""
    return Budget(collectives=2, payload_bytes=s.args[1][0].numel() * (8 + s.y.element_size()))


def divided_by_senders(s: Observed) -> bool:
    """Whether each place is divided by the number of ranks that have sent it."""
    rows = by_rank(*s.args)
    return s.is_answer([rows.sum(0) / (rows != 0).sum(0).clamp(min=1)] * s.n)


def overwritten(s: Observed) -> bool:
    """Whether each place has one rank's value, and the sum where one rank has sent it."""
    rows = by_rank(*s.args)
    several = (rows != 0).sum(0) > 1
    return all(
        bool(torch.where(several, (y == rows / s.n).any(0), y == s.right[0]).all()) for y in s.ys
    )


EXCHANGE = [
    Mistake(
        "overwrites where ranks send the same place",
        "total[indices] += values writes each place once, so only one rank's value is kept. "
        "index_add_ and scatter_add_ add up everything for the same place.",
        hint=3,
        seen=overwritten,
        made_by=patch(
            ".index_add_(0, all_indices, all_values)", "\n    total[all_indices] += all_values"
        ),
    ),
    Mistake(
        "sums instead of averaging",
        "The result is the mean over the ranks: divide the sum by n.",
        hint=3,
        seen=lambda s: s.is_answer([x * s.n for x in s.right]),
        made_by=patch("total / group.size", "total"),
    ),
    Mistake(
        "divides by the ranks that sent the place",
        "The other ranks owe their entries for this place, and send them later. Now they count as "
        "0: divide by the number of all ranks.",
        hint=2,
        seen=divided_by_senders,
        made_by=patch(
            "total / group.size",
            "total / torch.bincount(all_indices, minlength=numel).clamp(min=1)",
        ),
    ),
    Mistake(
        "loses places that are far out",
        "Places travelled as floating-point numbers, and float32 has whole numbers up to 2**24 "
        "only. Gather the places as int64.",
        hint=1,
        seen=lambda s: s.args[2] > FAR,
        made_by=patch(
            "group.all_gather(indices)", "group.all_gather(indices.to(values.dtype)).long() % numel"
        ),
    ),
    Mistake(
        "sends the whole gradient",
        "Zeros cost as many bytes as other numbers. Send the k places and the k values.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: (
            s.payload_bytes(0) > budget(s).payload_bytes
            and any(e.dtype == s.y.dtype and e.numel >= s.args[2] for e in s.operations(0))
        ),
        made_by=patch(
            "    all_values = group.all_gather(values)\n",
            "    sent = values.new_zeros(1, numel)\n    sent[0, indices] = values\n"
            "    return group.all_gather(sent).sum(0) / group.size\n",
        ),
    ),
]

GRADER = InParts(
    "top_k_error_feedback",
    (
        Questions(
            name="top_k_error_feedback",
            functions=("compress",),
            cases=steps,
            right=right,
            call=in_order,
            mistakes=COMPRESSION,
            closed=("labkit.data_parallel",),
            shown="in each step the largest entries are sent, and everything else is owed",
        ),
        OnRanks(
            name="top_k_error_feedback",
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
    ),
)
