"""Grade fix_the_mismatch: what one process with all examples computes, with few collectives."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.grade.grader import (
    Budget,
    ByRank,
    Case,
    Draw,
    Mistake,
    Observed,
    OnRanks,
    Outcome,
    Patch,
    close,
    patch,
)

FULL_BATCH, LEARNING_RATE = 4, 0.01
Rule = Callable[[list[Tensor], list[int], int], Any]
"""A mean, right or wrong: from the ranks' sums, their numbers of examples, and this rank."""


def cases(n: int, draw: Draw) -> list[Case]:
    """Uneven batches, full ones, short and empty ones, and a large one."""
    rng = draw.rng
    by_rank = [
        [FULL_BATCH, *rng.sample((1, 2, 3, 5, 6, 7, 8), n - 1)],
        [FULL_BATCH] * n,
        [rng.randrange(1, FULL_BATCH), *[FULL_BATCH] * (n - 1)],
        [3, 0, FULL_BATCH, FULL_BATCH][:n],
        [5, 0, 0, 0][:n],
        [300, *rng.sample(range(1, 9), n - 1)],
    ]
    return [case(rng.sample(sizes, n), 2 + i % 4, draw) for i, sizes in enumerate(by_rank)]


def case(sizes: list[int], width: int, draw: Draw) -> Case:
    """One batch per rank. Thirds are exact in no dtype."""

    def thirds() -> ByRank:
        drawn = draw(max(sizes), width, dtype=torch.float64)
        return ByRank(x[:size] / 3 for x, size in zip(drawn, sizes, strict=True))

    scale, shift = draw(2, width, dtype=torch.float64)[0] / 3
    examples = " and ".join(map(str, sizes))
    return Case(f"{examples} examples, D = {width}", thirds(), thirds(), scale, shift)


def same(got: Any, right: Any, case: Case | None = None) -> bool:
    """Sums of hundreds of numbers round in any order; float32 rounds a million times as much."""
    return close(got, right, case, steps=512)


def right(x: ByRank, y: ByRank, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
    """One process with all examples, by autograd."""
    parameters = [p.clone().requires_grad_() for p in (scale, shift)]
    error = torch.cat(list(x)) * parameters[0] + parameters[1] - torch.cat(list(y))
    loss = error.square().sum(1).mean()
    gradients = torch.autograd.grad(loss, parameters)
    new = (p.detach() - LEARNING_RATE * g for p, g in zip(parameters, gradients, strict=True))
    return (*new, loss.detach())


def budget(s: Observed) -> Budget:
    """Two gradients, the loss and the number of examples."""
    return Budget(collectives=4, payload_bytes=8 * (2 * len(s.args[2]) + 2))


def counts(s: Observed) -> list[int]:
    """The number of examples of each rank."""
    return [len(x) for x in s.xs]


def gives(*rules: Rule) -> Callable[[Observed], bool]:
    """A predicate: one of the rules gives all wrong parts of the results: scale, shift, loss."""

    def is_by(rule: Rule, s: Observed) -> bool:
        x, y, *parameters = s.args
        errors = [a * parameters[0] + parameters[1] - b for a, b in zip(x, y, strict=True)]
        sums = (
            [(2 * error * a).sum(0) for error, a in zip(errors, x, strict=True)],
            [(2 * error).sum(0) for error in errors],
            [(error**2).sum() for error in errors],
        )
        wrong = [
            (got, right, rank, part)
            for rank in range(s.n)
            for part, (got, right) in enumerate(zip(s.ys[rank], s.right[rank], strict=True))
            if not same(got, right)
        ]
        by_rule = [(rule(sums[part], counts(s), rank), part) for _, _, rank, part in wrong]
        predicted = [m if i == 2 else parameters[i] - LEARNING_RATE * m for m, i in by_rule]
        return bool(wrong) and same([got for got, *_ in wrong], predicted)

    return lambda s: any(is_by(rule, s) for rule in rules)


def means(sums: list[Tensor], counts: list[int]) -> list[Tensor]:
    """Each rank's mean over its own examples; zero where it has none."""
    return [total / max(count, 1) for total, count in zip(sums, counts, strict=True)]


def is_mixed(s: Observed) -> bool:
    """Whether scale and shift are wrong, and their sum is right."""
    return s.wrong_ranks == list(range(s.n)) and all(
        same((y[0] + y[1], y[2]), (right[0] + right[1], right[2]))
        for y, right in zip(s.ys, s.right, strict=True)
    )


def is_rounded(s: Observed) -> bool:
    """Whether results are nearly right, and a shorter dtype was in a collective."""
    short = (torch.float32, torch.float16, torch.bfloat16)
    is_near = all(torch.allclose(a, b, 1e-2, 2e-2) for y in s.ys for a, b in zip(y, s.right[0]))
    return is_near and any(e.dtype in short for r in range(s.n) for e in s.operations(r))


def disagreement(s: Observed, pattern: str) -> list[tuple[int, str]]:
    """(rank, what it does) of the ranks in a disagreement that labkit reported."""
    return [(int(rank), found) for rank, found in re.findall(rf"rank (\d+) {pattern}", s.error)]


def has_rows(s: Observed) -> bool:
    """Whether ranks pass different shapes, and the first dimension is that of their examples."""
    found = disagreement(s, r"passes shape \((\d*)")
    return bool(found) and all(
        rows == str(max(counts(s)[r], 1)) for r, rows in found if rows != "0"
    )


def skips(s: Observed) -> bool:
    """Whether ranks without examples returned alone, or are at another line than the others."""
    came_back = [rank for rank in range(s.n) if s.ranks[rank].returned]
    if came_back:
        return came_back == [rank for rank in range(s.n) if not counts(s)[rank]]
    (one, its_line), (other, others_line) = disagreement(s, r"[^:]*:(\d+)")
    return its_line != others_line and bool(counts(s)[one]) != bool(counts(s)[other])


def changed(s: Observed) -> bool:
    """Whether results are right, and scale or shift is not what it was."""
    return not s.wrong_ranks and any(
        not torch.equal(seen.args[i], s.args[i]) for seen in s.ranks for i in (2, 3)
    )


def reductions(form: str) -> Patch:
    """The three reductions in another form, such as `({}, op="mean")`."""
    names = ("loss", "grad_scale", "grad_shift")
    return patch(*(t for n in names for t in (f"({n}) / count", form.format(n))))


SCALE = "    grad_scale = group.all_reduce(grad_scale) / count\n"
SHIFT = "    grad_shift = group.all_reduce(grad_shift) / count\n"
MISTAKES = [
    Mistake(
        "averages the ranks' averages",
        "The result is a mean of each rank's own mean. So one example on a rank with few examples "
        "has more weight than one on a rank with many. Reduce sums and counts, then divide once.",
        seen=gives(
            lambda sums, counts, _: sum(means(sums, counts)) / len(counts),
            lambda sums, counts, _: sum(means(sums, counts)) / sum(c > 0 for c in counts),
        ),
        made_by=reductions('({} / max(len(x), 1), op="mean")'),
    ),
    Mistake(
        "divides by ranks, not by examples",
        "The result is the sum over all examples, divided by the number of ranks or of full "
        "batches. The loss is a mean over examples: divide by the number of all examples.",
        seen=gives(
            lambda sums, counts, _: sum(sums) / len(counts),
            lambda sums, counts, _: sum(sums) / len(counts) / FULL_BATCH,
        ),
        made_by=reductions('({}, op="mean")'),
    ),
    Mistake(
        "divides by the rank's own number of examples",
        "The result is the sum over all examples, divided by len(x). Each rank gets another "
        "result. Reduce the number of examples too.",
        hint=2,
        seen=gives(lambda sums, counts, rank: sum(sums) / max(counts[rank], 1)),
        made_by=reductions("({}) / max(len(x), 1)"),
    ),
    Mistake(
        "never divides",
        "The result is the sum over all examples. The loss is their mean, and its gradients are "
        "means too.",
        hint=2,
        seen=gives(lambda sums, *_: sum(sums)),
        made_by=reductions("({})"),
    ),
    Mistake(
        "divides twice",
        "The result is the mean over all examples, divided once more by the number of ranks or of "
        "examples. Sum, then divide once, by the number of all examples.",
        hint=2,
        seen=gives(
            lambda sums, counts, _: sum(sums) / sum(counts) / len(counts),
            lambda sums, counts, _: sum(sums) / sum(counts) ** 2,
            lambda sums, counts, _: sum(means(sums, counts)) / sum(counts),
        ),
        made_by=reductions('({}, op="mean") / count'),
    ),
    Mistake(
        "keeps a rank's own loss or gradient",
        "At least one of scale, shift and loss is computed from this rank's examples only. Reduce "
        "all three, otherwise the ranks' models drift apart.",
        hint=2,
        seen=gives(
            lambda sums, counts, rank: means(sums, counts)[rank],
            lambda sums, _, rank: sums[rank],
            lambda sums, counts, rank: sums[rank] / sum(counts),
        ),
        made_by=patch("group.all_reduce(loss) / count", "loss / max(len(x), 1)"),
    ),
    Mistake(
        "mixes the gradients of scale and shift",
        "One rank reduces the gradient of scale while another reduces that of shift. Collectives "
        "are matched by their order alone: these two are added to each other.",
        seen=is_mixed,
        made_by=patch(
            *(SHIFT, f"    if group.rank % 2 == 0:\n    {SHIFT}"),
            *(SCALE, f"    if group.rank % 2:\n    {SHIFT}{SCALE}"),
        ),
    ),
    Mistake(
        "loses digits",
        "A tensor in a collective has fewer digits than float64. Gradients, loss and the number "
        "of examples travel as float64, the model's dtype.",
        hint=2,
        seen=is_rounded,
        made_by=patch("(grad_scale) / count", "(grad_scale.float()).double() / count"),
    ),
    Mistake(
        "takes the mean of an empty batch",
        "The mean over no examples is NaN, and NaN times 0 is NaN too. Take the sum: that of an "
        "empty batch is 0.",
        hint=2,
        seen=lambda s: 0 in counts(s) and any(part.isnan().any() for y in s.ys for part in y),
        made_by=patch("(error**2).sum()", "(error**2).sum(1).mean() * len(x)"),
    ),
    Mistake(
        "updates scale or shift in place",
        "`scale -= ...` writes into the caller's tensor. `scale - ...` makes a new one.",
        hint=3,
        seen=changed,
        made_by=patch("    return scale - LEARN", "    return scale.add_(0.5) - 0.5 - LEARN"),
    ),
    Mistake(
        "a shape depends on the number of examples",
        "Ranks pass tensors with one row per example to one collective. Sum over the examples "
        "first: the shapes are then (), (D,) and (D,) on every rank.",
        hint=2,
        outcome=Outcome.HUNG,
        seen=has_rows,
        made_by=patch("(error**2).sum()", "(error**2).sum(1)", "(loss) / count", "(loss).sum()"),
    ),
    Mistake(
        "a dtype depends on the batch",
        "Ranks pass different dtypes to one collective. torch.zeros(1) is float32. The sum over "
        "an empty batch is zero by itself, in float64.",
        hint=2,
        outcome=Outcome.HUNG,
        seen=lambda s: bool(disagreement(s, r"passes (b?float|int)")),
        made_by=patch("(loss) /", "(loss if len(x) else torch.zeros(())) /"),
    ),
    Mistake(
        "a rank without examples skips a collective",
        "Every rank makes the same collectives, also with an empty batch. Its sums are zeros of "
        "the right shape and dtype, so no branch is needed.",
        hint=2,
        outcome=Outcome.HUNG,
        seen=skips,
        made_by=patch("group.all_reduce(loss) /", "(group.all_reduce(loss) if len(x) else loss) /"),
    ),
    Mistake(
        "sends examples",
        "More bytes travel than two gradients, a loss and a count have. What travels must not "
        "grow with the number of examples: sum over the rank's examples first.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: s.payload_bytes(0) > budget(s).payload_bytes,
        made_by=patch(
            "    error = x",
            '    rows = int(group.all_reduce(torch.tensor(len(x)), op="max"))\n'
            "    x, y = (torch.cat([t, t.new_full((rows - len(t), t.shape[1]), torch.nan)])\n"
            "            for t in (x, y))\n"
            "    x, y = (t[~t[:, 0].isnan()] for t in map(group.all_gather, (x, y)))\n"
            "    error = x",
            *("group.all_reduce(torch.tensor(float(len(x)), dtype=torch.float64))", "len(x)"),
            *("group.all_reduce(loss)", "loss"),
            *("group.all_reduce(grad_scale)", "grad_scale"),
            *("group.all_reduce(grad_shift)", "grad_shift"),
        ),
    ),
]

GRADER = OnRanks(
    name="fix_the_mismatch",
    functions=("train_step",),
    cases=cases,
    right=right,
    same=same,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    + ("broadcast", "gather", "scatter", "barrier"),
    world_sizes=(3, 2, 1),
    shown="every rank gets what one process with all examples computes, also where ranks have no "
    "examples; all ranks make the same collectives, at most 4, and no example travels",
)
