"""Grade expert_all_to_all: outputs, bytes, collectives, and the calls of each expert."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Uneven numbers, experts and ranks without tokens, one favourite expert, another dtype."""
    uneven, many = draw.rng.sample(range(5, 13), n), draw.rng.sample(range(150, 200), n)
    E = 2 * n
    return [
        case(draw, "uneven numbers of tokens", uneven, range(E), E),
        case(draw, "expert 0 has no tokens", uneven, range(1, E), E),
        case(draw, "the last expert has no tokens", uneven, range(E - 1), E),
        case(draw, "a rank without tokens", [*uneven[:-1], 0], range(E), E),
        case(draw, "one expert per rank", uneven, range(n), n),
        case(draw, "all tokens for one expert", uneven, [n], E),
        case(draw, "no tokens at all", [0] * n, range(E), E),
        case(draw, "float64, one feature", uneven, range(E), E, 1, torch.float64),
        case(draw, "bfloat16", uneven, range(E), E, 6, torch.bfloat16),
        case(draw, "many tokens", many, range(3 * n), 3 * n),
    ]


def case(
    draw: g.Draw,
    label: str,
    numbers: Sequence[int],
    chosen: Sequence[int],
    num_experts: int,
    width: int = 6,
    dtype: torch.dtype = torch.float32,
) -> g.Case:
    """So many tokens on each rank, for experts drawn from `chosen`."""
    high = int(0.01 / torch.finfo(dtype).eps)  # more digits than a smaller dtype has
    tokens = [draw(each, width, dtype=dtype, low=1, high=max(high, 9))[0] for each in numbers]
    experts = [torch.tensor(draw.rng.choices(chosen, k=each)).long() for each in numbers]
    label += f": {numbers} tokens, {num_experts} experts"
    return g.Case(label, g.ByRank(tokens), g.ByRank(experts), num_experts)


def output(expert: int | Tensor, rows: Tensor) -> Tensor:
    """Return an expert's output; all experts differ."""
    return rows * (expert + 2) + 7 * expert


def right(xs: g.ByRank, experts: g.ByRank, num_experts: int) -> g.ByRank:
    """Return each token by its expert, without ranks."""
    return g.ByRank(output(expert[:, None], x) for x, expert in zip(xs, experts))


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """Call with an `apply` that notes each call: the expert and its number of rows."""
    x, _, num_experts = args
    num_here = num_experts // watch.group.size
    here = range(watch.group.rank * num_here, (watch.group.rank + 1) * num_here)

    def apply(expert: int, rows: Tensor) -> Tensor:
        if expert not in here:
            its = f"experts {here[0]} to {here[-1]}"
            raise ValueError(f"expert {expert} is not on this rank, which has {its}")
        if rows.dim() != 2 or rows.shape[1] != x.shape[1]:
            raise ValueError(f"apply takes rows (N, {x.shape[1]}), and got {tuple(rows.shape)}")
        watch.note("apply", (int(expert), len(rows)))
        return output(expert, rows)

    return watch.function(*args, apply, watch.group)


def budget(s: g.Observed) -> g.Budget:
    """Tokens there and results back, and 8 E bytes of counts for each other rank."""
    xs, experts, num_experts = s.args
    row_bytes = xs[0].shape[1] * xs[0].element_size()
    results_on = (torch.cat(experts) // (num_experts // s.n)).bincount(minlength=s.n).tolist()
    most = [
        (s.n - 1) * ((len(x) + results) * row_bytes / s.n + 8 * num_experts)
        for x, results in zip(xs, results_on)
    ]
    return g.Budget(collectives=3, sent_bytes=most) if s.n > 1 else g.Budget()


def works_more(s: g.Observed) -> bool:
    """Return whether an expert is called twice, or with more rows than there are tokens."""
    experts, rows = zip(*(note.value for rank in s.ranks for note in rank.notes))
    return s.n > 1 and (len(experts) > len(set(experts)) or sum(rows) > sum(map(len, s.xs)))


BACK = "y_TD[order_T] = group.all_to_all(torch.cat(parts), receive, send)"
UNSORTED = BACK.replace("[order_T]", "")
SORT = "order_T = expert_T.argsort(stable=True)"
APPLY = "apply(group.rank * num_here + i, torch.cat(its_parts))"
MISTAKES = [
    g.Mistake(
        "does not undo the sorting",
        "The results are in the order in which the rows were sent. results[order] permutes them a "
        "second time; the inverse is y[order] = results.",
        g.patches(BACK, UNSORTED, f"{UNSORTED}[order_T]"),
        hint=3,
    ),
    g.Mistake(
        "sends rows that are not sorted",
        "all_to_all sends the first send_splits[0] rows to rank 0, whatever their experts are. "
        "Sort the rows by expert before you send them.",
        g.patch(SORT, "order_T = torch.arange(len(expert_T))"),
    ),
    g.Mistake(
        "mixes up the experts of a rank",
        "Each row reaches the right rank, but the wrong expert there. Send rows sorted by expert, "
        "not only by rank. They arrive rank by rank, so join the rows of an expert from all ranks.",
        [
            g.patch("rows.split(counts_ne.flatten()", "rows.split(counts_ne.sum(0)"),
            g.patch(
                SORT, "order_T = (expert_T // (num_experts // group.size)).argsort(stable=True)"
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "sends results back in the order of the experts",
        "A rank's results are in the order of its experts, and the other ranks expect them in the "
        "order in which they sent the rows. Split each expert's results by the rank they are for, "
        "and put every part back where its rows were.",
        g.patch("cat(parts)", "cat([p for i in range(num_here) for p in parts[i::num_here]])"),
        hint=2,
    ),
    g.Mistake(
        "a rank without tokens returns early",
        "Its experts may have tokens of other ranks, and a collective needs all ranks. A rank "
        "without tokens calls the same collectives, with splits of 0.",
        g.patch(SORT, f"if not len(x_TD):\n        return x_TD.clone()\n    {SORT}"),
        hung=lambda s: {len(x) for x, rank in zip(s.xs, s.ranks) if rank.returned} == {0},
    ),
    g.Mistake(
        "calls an expert more than once, or with padding",
        "An expert is a few matrix products. Those of few rows are slow, and padding costs as much "
        "as tokens. Put the rows from all ranks together, and call each expert once.",
        g.patch(APPLY, "torch.cat([apply(group.rank * num_here + i, part) for part in its_parts])"),
        over_budget=works_more,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    call=call,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_to_all", "all_gather"),
    closed=("labkit.moe",),
    world_sizes=(3, 2, 1),
    shown="every token has its expert's output, each row was sent once and its result once, "
    "without padding, and no expert was called twice",
)
