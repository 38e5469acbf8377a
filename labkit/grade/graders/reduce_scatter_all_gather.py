"""Grade reduce_scatter_all_gather: exact sums, one call of each collective, little padding."""

import torch

from labkit.grade import grader
from labkit.grade.grader import Budget, ByRank, Case, Draw, Mistake, Observed, Outcome, patch


def cases(n: int, draw: Draw) -> list[Case]:
    """Sizes that n divides and others, shapes whose rows n does not divide, and layouts."""
    return [
        Case("12 float32 elements", draw(12)),
        Case("13 float32 elements", draw(13)),
        # Padding whole rows costs more than padding the flat tensor.
        Case(f"shape ({n + 1}, 5)", draw(n + 1, 5)),
        Case("a single number", draw()),
        Case("2 elements", draw(2)),
        Case("no elements", draw(0, 3)),
        Case("a transposed (5, 4, 3)", draw(3, 4, 5, permute=(2, 1, 0))),
        # Sums of these are not exact in any floating-point dtype.
        Case("int64, (2, 5, 7)", draw(2, 5, 7, dtype=torch.int64, low=-(2**60), high=2**60)),
        Case("bfloat16, 23 elements", draw(23, dtype=torch.bfloat16)),
    ]


def right(xs: ByRank) -> torch.Tensor:
    """The sum, on every rank."""
    return sum(xs[1:], xs[0].clone())


def budget(s: Observed) -> Budget:
    """Two calls, with x and one nth of x, both rounded up."""
    return Budget(collectives=2, payload_bytes=(s.n + 1) * nth(s) * s.xs[0].element_size())


def nth(s: Observed) -> int:
    """Elements of one nth of x, rounded up."""
    return -(-s.xs[0].numel() // s.n)


def handed(s: Observed, what: str) -> int:
    """The most elements that rank 0 handed to one call of a collective; 0 where it made none."""
    return max((e.numel for e in s.operations(0, what)), default=0)


def padded(s: Observed, x: torch.Tensor) -> torch.Tensor:
    """The flat x with zeros at the end, so that n divides it."""
    return torch.cat([x.flatten(), x.new_zeros(-x.numel() % s.n)])


def drops_the_remainder(s: Observed) -> bool:
    """Whether the sums are right up to the last multiple of n, and no further."""
    covered, right = s.xs[0].numel() // s.n * s.n, s.right[0].flatten()
    y = s.y.flatten()
    is_right = torch.equal(y[:covered], right[:covered]) and y.dtype == right.dtype
    return is_right and 0 < covered < right.numel() >= y.numel()


def has_zeros_inside(s: Observed) -> bool:
    """Whether the result is the right one with zeros put in between, and cut at the end."""
    y, right = s.y, s.right[0]
    kept = y[y != 0]
    is_moved = kept.numel() > 0 and torch.equal(kept, right[right != 0][: kept.numel()])
    has_form = y.shape == right.shape and y.dtype == right.dtype
    return has_form and is_moved and 0 in s.wrong_ranks and not drops_the_remainder(s)


def parts_of_x(s: Observed) -> list[torch.Tensor]:
    """What comes out where each rank gathers its part of x."""
    parts = [padded(s, x).tensor_split(s.n)[rank] for rank, x in enumerate(s.xs)]
    return [torch.cat(parts)[: s.xs[0].numel()].view(s.xs[0].shape)] * s.n


FLAT = "group.reduce_scatter(torch.cat([x.flatten(), padding]))"

MISTAKES = [
    Mistake(
        "returns the average",
        "The contract is the sum. Dividing by n is up to the caller.",
        seen=lambda s: s.is_answer([(r / s.n).to(r.dtype) for r in s.right]),
        made_by=patch("view(x.shape)", "div(group.size).to(x.dtype).view(x.shape)"),
    ),
    Mistake(
        "drops the remainder",
        "The last numel % n elements are not in the sum. Add zeros to the flat x until n divides "
        "its size, and cut the result to numel.",
        hint=2,
        seen=drops_the_remainder,
        made_by=patch(
            FLAT,
            "group.reduce_scatter(x.flatten()[: x.numel() // group.size * group.size])",
            "total[: x.numel()].view(x.shape)",
            "torch.cat([total, x.flatten()[len(total) :]]).view(x.shape)",
        ),
    ),
    Mistake(
        "returns the padding too",
        "The result has more elements than x: the zeros that were added until n divides the size. "
        "Cut the gathered tensor to numel.",
        hint=2,
        seen=lambda s: s.y.numel() > s.xs[0].numel() and s.xs[0].numel() % s.n > 0,
        made_by=patch(
            "total[: x.numel()].view(x.shape)", "total if len(padding) else total.view(x.shape)"
        ),
    ),
    Mistake(
        "the padding ends up inside the result",
        "The sums are right and in the wrong places, with zeros between them. Pad the flat x once, "
        "at its end: then the padding is at the end of the gathered tensor too.",
        hint=2,
        seen=has_zeros_inside,
        made_by=patch(
            "torch.cat([x.flatten(), padding])",
            "torch.cat([p for part in x.flatten().tensor_split(group.size) for p in\n"
            "        (part, part.new_zeros(-(-x.numel() // group.size) - len(part)))])",
        ),
    ),
    Mistake(
        "gathers x and not the sums",
        "Chunk r of the result is rank r's own x. reduce_scatter does not change its argument. "
        "Gather what it returned: the sums.",
        hint=3,
        seen=lambda s: s.is_answer(parts_of_x(s)),
        made_by=patch(
            "chunk = group",
            "padded = torch.cat([x.flatten(), padding])\n    group",
            "group.all_gather(chunk)",
            "group.all_gather(padded.tensor_split(group.size)[group.rank])",
        ),
    ),
    Mistake(
        "stops after the reduce_scatter",
        "Each rank has one nth of the sum, every rank another one. The all_gather gives all of it "
        "to all ranks.",
        seen=lambda s: handed(s, "reduce_scatter") > 0 and handed(s, "all_gather") == 0,
        made_by=patch("total = group.all_gather(chunk)", "return chunk"),
    ),
    Mistake(
        "crashes where n does not divide the size",
        "reduce_scatter cuts dim 0 into n equal blocks. Flatten x, and add zeros at its end until "
        "n divides the size.",
        hint=3,
        seen=lambda s: (
            s.n > 1
            and any(
                not e.shape or e.shape[0] % s.n
                for r in range(s.n)
                for e in s.operations(r)[-1:]
                if e.what == "reduce_scatter"
            )
        ),
        outcome=Outcome.CRASHED,
        made_by=patch(FLAT, "group.reduce_scatter(x.flatten())"),
    ),
    Mistake(
        "does not cut the padding off",
        "The gathered tensor has the zeros at its end too, so it has not the shape of x. Cut it to "
        "numel first.",
        hint=2,
        seen=lambda s: s.xs[0].numel() % s.n > 0 and handed(s, "all_gather") > 0,
        outcome=Outcome.CRASHED,
        made_by=patch("total[: x.numel()].view", "total.view"),
    ),
    Mistake(
        "crashes where x is not contiguous",
        "view(-1) needs elements that lie in memory in their order. flatten() and reshape(-1) work "
        "for a transposed x too.",
        hint=3,
        seen=lambda s: "view" in s.error and not s.xs[0].is_contiguous(),
        outcome=Outcome.CRASHED,
        made_by=patch("x.flatten()", "x.view(-1)"),
    ),
    Mistake(
        "gathers more than one nth",
        "A rank passes to the all_gather the nth of the sum that is complete on it, no more. "
        "Gathering whole tensors and adding them costs n - 1 times x per rank.",
        seen=lambda s: (
            handed(s, "all_gather") > nth(s)
            and handed(s, "all_gather") * s.n > handed(s, "reduce_scatter")
        ),
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            FLAT, "x[None]", "total[: x.numel()].view(x.shape)", "total.sum(0).to(x.dtype)"
        ),
    ),
    Mistake(
        "more than one call of each",
        "One of each is enough for any size. Elements that are left over where n does not divide "
        "the size travel with the others, in a tensor padded to the next multiple of n.",
        hint=2,
        seen=lambda s: any(len(s.operations(0, what)) > 1 for what in GRADER.allowed),
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            "group.all_gather(chunk)",
            "[group.all_gather(half[None]) for half in chunk.tensor_split(2)]\n"
            "    total = torch.cat(total, dim=1).flatten()",
        ),
    ),
    Mistake(
        "pads where nothing is left over",
        "n divides the size, and yet n elements are added: n - numel % n is n there. -numel % n is "
        "0 there, and the same otherwise.",
        hint=3,
        seen=lambda s: (
            s.xs[0].numel() % s.n == 0 and handed(s, "reduce_scatter") == s.xs[0].numel() + s.n
        ),
        outcome=Outcome.OVER_BUDGET,
        made_by=patch("-x.numel() % group.size", "group.size - x.numel() % group.size"),
    ),
    Mistake(
        "pads whole rows",
        "Rows were added until n divides their number. Flatten first: then less than n elements "
        "are enough.",
        hint=2,
        seen=lambda s: (
            s.xs[0].dim() > 1
            and handed(s, "reduce_scatter") == -(-len(s.xs[0]) // s.n) * s.n * s.xs[0][0].numel()
            and handed(s, "reduce_scatter") > nth(s) * s.n
        ),
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            "padding = x.new_zeros(-x.numel() % group.size)",
            "rows = x if x.dim() else x[None]\n"
            "    padding = x.new_zeros(-len(rows) % group.size, *rows.shape[1:])",
            "torch.cat([x.flatten(), padding])",
            "torch.cat([rows, padding])",
            "total[: x.numel()]",
            "total[: len(rows)]",
        ),
    ),
]

GRADER = grader.OnRanks(
    name="reduce_scatter_all_gather",
    cases=cases,
    right=right,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("reduce_scatter", "all_gather"),
    closed=("labkit.collectives",),
    shown="the sums are exact for any size and shape, with one reduce_scatter, one all_gather and "
    "the least padding",
)
