"""Grade expert_all_to_all: outputs, bytes, collectives, and the calls of each expert."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Uneven numbers, experts and ranks without tokens, one favourite expert, another dtype."""
    uneven, num, single = draw.rng.sample(range(5, 13), n), 2 * n, torch.float32
    many = draw.rng.sample(range(150, 200), n)
    kinds: list[tuple[str, list[int], Sequence[int], int, int, torch.dtype]] = [
        ("uneven numbers of tokens", uneven, range(num), num, 6, single),
        ("expert 0 has no tokens", uneven, range(1, num), num, 6, single),
        ("the last expert has no tokens", uneven, range(num - 1), num, 6, single),
        ("a rank without tokens", [*uneven[:-1], 0], range(num), num, 6, single),
        ("one expert per rank", uneven, range(n), n, 6, single),
        ("all tokens for one expert", uneven, [n], num, 6, single),
        ("no tokens at all", [0] * n, range(num), num, 6, single),
        ("float64, one feature", uneven, range(num), num, 1, torch.float64),
        ("many tokens", many, range(3 * n), 3 * n, 6, single),
    ]
    made = []
    for label, numbers, chosen, num, width, dtype in kinds:
        # All ranks that have tokens have one for the last of the chosen experts.
        experts = [[chosen[-1], *draw.rng.choices(chosen, k=each)][:each] for each in numbers]
        factors = torch.tensor(draw.rng.sample(range(2, 2 + num), num))[:, None]
        weights = torch.cat([factors, draw(num, width, low=1, high=5000)[0]], 1).to(dtype)
        tokens = [draw(each, width, dtype=dtype, low=1, high=5000)[0] for each in numbers]
        made.append(
            g.Case(
                f"{label}: {numbers} tokens, {num} experts",
                g.ByRank(tokens),
                g.ByRank(torch.tensor(each, dtype=torch.int64) for each in experts),
                num,
                g.ByRank(weights.chunk(n)),
            )
        )
    return made


def computed(rows: Tensor, weights: Tensor) -> Tensor:
    """What experts return: the weights are a factor and a shift, for each row or for all."""
    return rows * weights[..., :1] + weights[..., 1:]


def right(xs: g.ByRank, experts: g.ByRank, num_experts: int, weights: g.ByRank) -> g.ByRank:
    """Each token with the weights of its expert."""
    return g.ByRank(computed(x, torch.cat(weights)[e]) for x, e in zip(xs, experts))


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """Call with an `apply` that notes each call: the expert and its number of rows."""
    x, experts, num_experts, weights = args
    first = watch.group.rank * len(weights)

    def apply(expert: int, rows: Tensor) -> Tensor:
        if not first <= expert < first + len(weights):
            here = f"experts {first} to {first + len(weights) - 1}"
            raise ValueError(f"expert {expert} is not on this rank, which has {here}")
        if rows.dim() != 2 or rows.shape[1] != x.shape[1]:
            raise ValueError(f"apply takes rows (N, {x.shape[1]}), and got {tuple(rows.shape)}")
        watch.note("apply", (int(expert), len(rows)))
        return computed(rows, weights[int(expert) - first])

    return watch.function(x, experts, num_experts, apply, watch.group)


def budget(s: g.Observed) -> g.Budget:
    """Tokens there and results back, and 8 E bytes of counts for each rank."""
    row_bytes = s.xs[0].shape[1] * s.xs[0].element_size()
    results_on = (torch.cat(s.args[1]) // (s.args[2] // s.n)).bincount(minlength=s.n).tolist()
    most = [
        (len(x) + results) * row_bytes + 8 * s.args[2] * s.n for x, results in zip(s.xs, results_on)
    ]
    return g.Budget(collectives=3, payload_bytes=most) if s.n > 1 else g.Budget()


def calls(s: g.Observed) -> list[tuple[int, int]]:
    """(expert, number of rows) of each call of `apply`."""
    return [note.value for rank in s.ranks for note in rank.notes]


def has_more_rows(s: g.Observed) -> bool:
    """Whether experts get padding, or the first rows that a rank sends are gathered or padded."""
    sent = [
        [e for e in seen.operations if e.dtype == x.dtype and e.shape[1:] == x.shape[1:]]
        for x, seen in zip(s.xs, s.ranks)
    ]
    return sum(rows for _, rows in calls(s)) > sum(map(len, s.xs)) or any(
        e.what == "all_gather" or e.shape[0] > len(x) for x, es in zip(s.xs, sent) for e in es[:1]
    )


BACK = "y_TD[order_T] = group.all_to_all(torch.cat(parts), receive, send)"
SEND = "rows = group.all_to_all(x_TD[order_T], send, receive)"
SORT = "order_T = expert_T.argsort(stable=True)"
SPLIT = "parts = list(rows.split(counts_ne.flatten().tolist()))"
APPLY = "apply(group.rank * num_here + i, torch.cat(its_parts))"
UNSORTED = BACK.replace("[order_T]", "")

MISTAKES = [
    g.Mistake(
        "does not undo the sorting",
        "The results are in the order in which the rows were sent. results[order] permutes them a "
        "second time; the inverse is y[order] = results.",
        [g.patch(BACK, UNSORTED), g.patch(BACK, f"{UNSORTED}[order_T]")],
        hint=3,
    ),
    g.Mistake(
        "sends rows that are not sorted",
        "all_to_all sends the first send_splits[0] rows to rank 0, whatever their experts are. "
        "Sort the rows by expert before you send them.",
        [
            g.patch(SORT, "order_T = torch.arange(len(expert_T))"),
            g.patch("x_TD[order_T], send", "x_TD, send"),
        ],
    ),
    g.Mistake(
        "mixes up the experts of a rank",
        "Each row reaches the right rank, but the wrong expert there. Send rows sorted by expert, "
        "not only by rank. They arrive rank by rank, so join the rows of an expert from all ranks.",
        [
            g.patch(SPLIT, SPLIT.replace("counts_ne", "counts_ne.T")),
            g.patch(SPLIT, SPLIT.replace("flatten()", "sum(0)")),
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
        "forgets experts without tokens",
        "bincount ends at the largest expert in expert_T. With minlength=E it counts all experts.",
        g.patch("bincount(expert_T, minlength=num_experts)", "bincount(expert_T)"),
        crashed=lambda s: bool(s.error) and s.case.label.startswith("the last expert"),
        hint=3,
    ),
    g.Mistake(
        "sends back with the splits of the way there",
        "Each rank returns what it received, so send_splits and recv_splits change places.",
        g.patch(BACK, BACK.replace("receive, send", "send, receive")),
        crashed=lambda s: "splits" in s.error and bool(calls(s)),
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
        "more rows than the tokens for that rank",
        "Padding costs as much as tokens, on the wire and in an expert, and so do tokens of other "
        "ranks. all_to_all sends any number of rows to each rank, and each row to one.",
        [
            g.patch(SEND, f"group.all_gather(x_TD.new_ones(99, 6))\n    {SEND}"),
            g.patch(SEND, f"group.all_to_all(x_TD.new_ones(99 * group.size, 6))\n    {SEND}"),
        ],
        over_budget=has_more_rows,
    ),
    g.Mistake(
        "calls an expert more than once",
        "An expert is a few matrix products, and those of few rows are slow. Put the rows from all "
        "ranks together, and call it once.",
        g.patch(
            APPLY,
            f"torch.cat([{APPLY.replace('torch.cat(its_parts)', 'part')} for part in its_parts])",
        ),
        over_budget=lambda s: s.n > 1 and len(calls(s)) > len({expert for expert, _ in calls(s)}),
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
