"""Grade reduce_scatter_all_gather: exact sums, one call of each collective, little padding."""

import torch

from labkit.grade import grader as g


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Sizes that n divides and others, shapes whose rows n does not divide, and layouts."""
    # Sums of these are not exact in any floating-point dtype.
    huge = draw(2, 5, 7, dtype=torch.int64, low=-(2**60), high=2**60)
    return [
        g.Case("12 float32 elements", draw(12)),
        g.Case("13 float32 elements", draw(13)),
        # Padding whole rows costs more than padding the flat tensor.
        g.Case(f"shape ({n + 1}, 5)", draw(n + 1, 5)),
        g.Case("a single number", draw()),
        g.Case("2 elements", draw(2)),
        g.Case("no elements", draw(0, 3)),
        g.Case("a transposed (5, 4, 3)", draw(3, 4, 5, permute=(2, 1, 0))),
        g.Case("int64, (2, 5, 7)", huge),
        g.Case("bfloat16, 23 elements", draw(23, dtype=torch.bfloat16)),
    ]


def nth(s: g.Observed) -> int:
    """Elements of one nth of x, rounded up."""
    return -(-s.xs[0].numel() // s.n)


def budget(s: g.Observed) -> g.Budget:
    """Two calls, with x and one nth of x, both rounded up."""
    return g.Budget(collectives=2, payload_bytes=(s.n + 1) * nth(s) * s.xs[0].element_size())


def handed(s: g.Observed, what: str) -> int:
    """Return the most elements that rank 0 handed to one call of a collective; 0 where it made
    none."""
    return max((e.numel for e in s.operations(0, what)), default=0)


PADDED = "torch.cat([x.flatten(), padding])"

MISTAKES = [
    g.Mistake(
        "drops the remainder",
        "The last numel % n elements are not in the sum. Add zeros to the flat x until n divides "
        "its size, and cut the result to numel.",
        g.patch(
            *(PADDED, "x.flatten()[: x.numel() // group.size * group.size]"),
            *("total[: x.numel()]", "torch.cat([total, x.flatten()[len(total) :]])"),
        ),
        hint=2,
    ),
    g.Mistake(
        "gathers x and not the sums",
        "Chunk r of the result is rank r's own x. reduce_scatter does not change its argument. "
        "Gather what it returned: the sums.",
        g.patch(
            *(f"chunk = group.reduce_scatter({PADDED})", f"chunk = {PADDED}"),
            "group.all_gather(chunk)",
            "group.all_gather(chunk.tensor_split(group.size)[group.rank])",
        ),
        hint=3,
    ),
    g.Mistake(
        "stops after the reduce_scatter",
        "Each rank has one nth of the sum, every rank another one. The all_gather gives all of it "
        "to all ranks.",
        g.patch("total = group.all_gather(chunk)", "return chunk"),
        wrong=lambda s: handed(s, "reduce_scatter") > 0 and handed(s, "all_gather") == 0,
    ),
    g.Mistake(
        "crashes where n does not divide the size",
        "reduce_scatter cuts dim 0 into n equal blocks. Flatten x, and add zeros at its end until "
        "n divides the size. Cut them off what the all_gather returns.",
        g.patch(PADDED, "x.flatten()"),
        crashed=lambda s: s.xs[0].numel() % s.n > 0 and handed(s, "reduce_scatter") > 0,
        hint=3,
    ),
    g.Mistake(
        "gathers more than one nth",
        "A rank passes to the all_gather the nth of the sum that is complete on it, no more. "
        "Gathering whole tensors and adding them costs n - 1 times x per rank.",
        g.patch(
            *(f"group.reduce_scatter({PADDED})", "x[None]"),
            *("total[: x.numel()].view(x.shape)", "total.sum(0).to(x.dtype)"),
        ),
        over_budget=lambda s: (
            handed(s, "all_gather") > nth(s) and handed(s, "reduce_scatter") <= nth(s) * s.n
        ),
    ),
    g.Mistake(
        "pads more than it has to",
        "Less than n elements of padding are enough. Flatten x before you pad, so that no whole "
        "rows are added; and add -numel % n, for n - numel % n is n where nothing is left over.",
        g.patch("-x.numel() % group.size", "group.size - x.numel() % group.size"),
        over_budget=lambda s: handed(s, "reduce_scatter") > nth(s) * s.n,
        hint=2,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=sum,  # on every rank
    budget=budget,
    mistakes=MISTAKES,
    allowed=("reduce_scatter", "all_gather"),
    closed=("labkit.collectives",),
    shown="the sums are exact for any size and shape, with one reduce_scatter, one all_gather and "
    "the least padding",
)
