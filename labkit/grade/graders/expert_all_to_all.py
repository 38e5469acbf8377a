"""Grade expert_all_to_all: outputs, bytes, collectives, and the calls of each expert."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.grade.grader import (
    Budget,
    ByRank,
    Case,
    Draw,
    Mistake,
    Observed,
    OnRanks,
    Outcome,
    patch,
)

Tensor = torch.Tensor


def cases(n: int, draw: Draw) -> list[Case]:
    """Uneven numbers, experts and ranks without tokens, one favourite expert, another dtype."""
    uneven, num = draw.rng.sample(range(5, 13), n), 2 * n
    with_empty = [*uneven[:-1], 0]
    return [
        case("uneven numbers of tokens", draw, uneven, range(num), num),
        case("expert 0 has no tokens", draw, uneven, range(1, num), num),
        case("the last expert has no tokens", draw, uneven, range(num - 1), num),
        case("a rank without tokens", draw, with_empty, range(num), num),
        case("one expert per rank", draw, uneven, range(n), n),
        case("all tokens for one expert", draw, uneven, [n], num),
        case("no tokens at all", draw, [0] * n, range(num), num),
        case("float64, one feature", draw, uneven, range(num), num, 1, torch.float64),
        case("many tokens", draw, draw.rng.sample(range(150, 200), n), range(3 * n), 3 * n),
    ]


def case(
    label: str,
    draw: Draw,
    numbers: Sequence[int],
    chosen: Sequence[int],
    num_experts: int,
    width: int = 6,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Ranks with these numbers of tokens for the `chosen` experts; all have the last of these."""
    experts = [[chosen[-1], *draw.rng.choices(chosen, k=number)] for number in numbers]
    tokens = [draw(number, width, dtype=dtype, low=1, high=5000)[0] for number in numbers]
    factors = torch.tensor(draw.rng.sample(range(2, 2 + num_experts), num_experts))[:, None]
    weights = torch.cat([factors, draw(num_experts, width, low=1, high=5000)[0]], 1).to(dtype)
    return Case(
        f"{label}: {numbers} tokens, {num_experts} experts",
        ByRank(tokens),
        ByRank(torch.tensor(e[:k], dtype=torch.int64) for e, k in zip(experts, numbers)),
        num_experts,
        ByRank(weights.chunk(draw.n)),
    )


def computed(rows: Tensor, weights: Tensor) -> Tensor:
    """What experts return: the weights are a factor and a shift, for each row or for all."""
    return rows * weights[..., :1] + weights[..., 1:]


def right(xs: ByRank, experts: ByRank, num_experts: int, weights: ByRank) -> ByRank:
    """Each token with the weights of its expert."""
    return ByRank(computed(x, torch.cat(weights)[e]) for x, e in zip(xs, experts))


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """Call with an `apply` that notes each call: the expert and its rows."""
    x, experts, num_experts, weights = args
    first = watch.group.rank * len(weights)

    def apply(expert: int, rows: Tensor) -> Tensor:
        if not first <= expert < first + len(weights):
            here = f"experts {first} to {first + len(weights) - 1}"
            raise ValueError(f"expert {expert} is not on this rank, which has {here}")
        if rows.dim() != 2 or rows.shape[1] != x.shape[1]:
            raise ValueError(f"apply takes rows (N, {x.shape[1]}), and got {tuple(rows.shape)}")
        watch.note("apply", (int(expert), rows))
        return computed(rows, weights[int(expert) - first])

    return watch.function(x, experts, num_experts, apply, watch.group)


def budget(s: Observed) -> Budget:
    """Tokens there and results back, and 8 E bytes of counts for each rank."""
    row_bytes = s.xs[0].shape[1] * s.xs[0].element_size()
    results_on = Counter((torch.cat(s.args[1]) // (s.args[2] // s.n)).tolist())
    rows = [len(s.xs[rank]) + results_on[rank] for rank in range(s.n)]
    most = [each * row_bytes + 8 * s.args[2] * s.n for each in rows]
    return Budget(collectives=3, payload_bytes=most) if s.n > 1 else Budget()


def applied(s: Observed) -> list[tuple[int, int, Tensor]]:
    """The calls of `apply`: rank, expert, rows."""
    return [(rank, *note.value) for rank in range(s.n) for note in s.ranks[rank].notes]


def fed(s: Observed) -> list[tuple[int, int, int, int]]:
    """For each row that `apply` got: rank, expert called, the row's own rank, the row's expert."""
    own = {
        tuple(row.tolist()): (rank, expert)
        for rank in range(s.n)
        for row, expert in zip(s.xs[rank], s.args[1][rank].tolist())
    }
    return [(r, e, *own[tuple(row.tolist())]) for r, e, rows in applied(s) for row in rows]


def is_reordered(s: Observed, index: Callable[[Tensor], Tensor]) -> bool:
    """Whether each result is right but for its order: `index` of the order sorted by expert."""
    orders = [experts.argsort(stable=True) for experts in s.args[1]]
    return s.is_answer([r[index(order)] for r, order in zip(s.right, orders)])


def sends_padding(s: Observed, rank: int) -> bool:
    """Whether the first rows of x's width that a rank sends are more than it has."""
    rows = [e for e in s.operations(rank) if e.dtype is not None and e.dtype.is_floating_point]
    return rows[0].shape[-1] == s.xs[rank].shape[1] and rows[0].numel > s.xs[rank].numel()


BACK = "y_TD[order_T] = group.all_to_all(torch.cat(parts), receive, send)"
SEND = "rows = group.all_to_all(x_TD[order_T], send, receive)"
SORT = "order_T = expert_T.argsort(stable=True)"

MISTAKES = [
    Mistake(
        "leaves the rows sorted by expert",
        "The results are right, but in the order in which the rows were sent. Undo the sorting: "
        "y[order] = results.",
        hint=3,
        seen=lambda s: is_reordered(s, lambda order: order),
        made_by=patch(BACK, BACK.replace("[order_T]", "")),
    ),
    Mistake(
        "sorts the results again instead of undoing it",
        "results[order] permutes a second time. The inverse is y[order] = results.",
        hint=3,
        seen=lambda s: is_reordered(s, lambda order: order[order]),
        made_by=patch(BACK, BACK.replace("[order_T]", "") + "[order_T]"),
    ),
    Mistake(
        "sends rows that are not sorted",
        "all_to_all sends the first send_splits[0] rows to rank 0, whatever their experts are. "
        "Sort the rows by expert before you send them.",
        seen=lambda s: any(due // (s.args[2] // s.n) != rank for rank, _, _, due in fed(s)),
        made_by=patch(SORT, "order_T = torch.arange(len(expert_T))"),
    ),
    Mistake(
        "mixes up the experts of a rank",
        "Each row reaches the right rank, but the wrong expert there. Send rows sorted by expert, "
        "not only by rank. They arrive rank by rank, so join the rows of an expert from all ranks.",
        hint=2,
        seen=lambda s: (
            any(expert != due for _, expert, _, due in fed(s))
            and all(due // (s.args[2] // s.n) == rank for rank, _, _, due in fed(s))
        ),
        made_by=patch(
            "parts = list(rows.split(counts_ne.flatten().tolist()))",
            "parts = list(rows.split(counts_ne.T.flatten().tolist()))",
        ),
    ),
    Mistake(
        "forgets experts that nobody chose",
        "bincount ends at the largest expert in expert_T. With minlength=E it counts all experts.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: bool(s.error) and s.case.label.startswith("the last expert"),
        made_by=patch("bincount(expert_T, minlength=num_experts)", "bincount(expert_T)"),
    ),
    Mistake(
        "sends results back in the order of the experts",
        "A rank's results are in the order of its experts, and the other ranks expect them in the "
        "order in which they sent the rows. Split each expert's results by the rank they are for, "
        "and put every part back where its rows were.",
        hint=2,
        seen=lambda s: (
            all(expert == due for _, expert, _, due in fed(s))
            and torch.equal(*(torch.cat(ys).flatten().sort()[0] for ys in (s.ys, s.right)))
            and not is_reordered(s, lambda order: order)
            and not is_reordered(s, lambda order: order[order])
        ),
        made_by=patch(
            BACK,
            BACK.replace(
                "cat(parts)", "cat(sum((parts[i::num_here] for i in range(num_here)), []))"
            ),
        ),
    ),
    Mistake(
        "numbers experts from 0 on each rank",
        "apply takes the number of the expert among all E. The first expert of a rank is "
        "rank * E / n.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: "is not on this rank" in s.error,
        made_by=patch("apply(group.rank * num_here + i", "apply(i"),
    ),
    Mistake(
        "sends back with the splits of the way there",
        "Each rank returns what it received, so send_splits and recv_splits change places.",
        hint=2,
        outcome=Outcome.CRASHED,
        seen=lambda s: "splits" in s.error and bool(applied(s)),
        made_by=patch(BACK, BACK.replace("receive, send", "send, receive")),
    ),
    Mistake(
        "a rank without tokens returns early",
        "Its experts may have tokens of other ranks, and a collective needs all ranks. A rank "
        "without tokens calls the same collectives, with splits of 0.",
        outcome=Outcome.HUNG,
        seen=lambda s: (
            any(r.returned for r in s.ranks)
            and not any(len(x) for x, r in zip(s.xs, s.ranks) if r.returned)
        ),
        made_by=patch(SORT, f"if not len(x_TD):\n        return x_TD.clone()\n    {SORT}"),
    ),
    Mistake(
        "gathers all tokens on all ranks",
        "Each rank gets every row, and needs only those for its experts, one nth on average. "
        "all_to_all sends each row to one rank.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: any(
            e.dtype == s.xs[0].dtype and e.nbytes > 8 * s.args[2]
            for e in s.operations(0, "all_gather")
        ),
        made_by=patch(SEND, f"group.all_gather(x_TD.new_ones(99, 6))\n    {SEND}"),
    ),
    Mistake(
        "pads rows",
        "Padding costs as much as tokens, on the wire and in an expert. all_to_all takes a number "
        "of rows for each rank, and `apply` takes any number.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: (
            sum(len(rows) for _, _, rows in applied(s)) > sum(map(len, s.xs))
            or any(sends_padding(s, rank) for rank in range(s.n))
        ),
        made_by=patch(SEND, f"group.all_to_all(x_TD.new_ones(99 * group.size, 6))\n    {SEND}"),
    ),
    Mistake(
        "calls an expert more than once",
        "An expert is a few matrix products, and those of few rows are slow. Put the rows from all "
        "ranks together, and call it once.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: s.n > 1 and max(Counter(each[:2] for each in applied(s)).values()) > 1,
        made_by=patch(
            "apply(group.rank * num_here + i, torch.cat(its_parts))",
            "torch.cat([apply(group.rank * num_here + i, part) for part in its_parts])",
        ),
    ),
]

GRADER = OnRanks(
    name="expert_all_to_all",
    cases=cases,
    right=right,
    call=call,
    num_arguments=5,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_to_all", "all_gather"),
    closed=("labkit.moe",),
    world_sizes=(3, 2, 1),
    shown="every token has its expert's output, each row was sent once and its result once, "
    "without padding, and no expert was called twice",
)
