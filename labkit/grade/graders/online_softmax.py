"""Grade online_softmax: output and log-sum-exp, each block once, and what is in memory."""

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch

from labkit.grade.grader import Budget, Case, Draw, Mistake, Observed, Outcome, Questions, patch

Tensor = torch.Tensor
Block = tuple[Tensor, Tensor, Tensor]
Pair = tuple[Tensor, Tensor]
INF, FAR, MANY = math.inf, 10_000.0, 32


def cases(draw: Draw) -> list[Case]:
    """Masks that hide keys, blocks and whole queries; large scores; many blocks."""
    sizes = draw.rng.sample(range(2, 9), 4)
    return [
        case(draw, "1 block", sizes[:1]),
        case(draw, "2 blocks, one of a single key", [1, sizes[0]]),
        case(draw, "4 blocks, every key is seen", sizes, masks="none"),
        case(draw, "4 blocks, each query sees keys of every block", sizes),
        case(draw, "4 blocks, some hidden from a query", sizes, masks="blocks"),
        case(draw, "4 blocks, 2 queries see no key", sizes, masks="queries"),
        case(draw, "scores up to 10,000 in float32", sizes, far=True, dtype=torch.float32),
        case(draw, "hidden keys that score 10,000 more", sizes, far=True, hidden=True),
        case(draw, f"{MANY} blocks", [16] * MANY),
    ]


def case(
    draw: Draw,
    label: str,
    sizes: list[int],
    masks: str = "keys",
    far: bool = False,
    hidden: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """Queries and blocks. K has no square root that is a power of two.

    far: each query's scores are around a level of its own, and 2% further out in the last blocks.
    hidden: one key per block, which no query sees, scores 10,000 more than the others.
    """
    T, K, scale = 24, draw.rng.choice((5, 6, 7, 10, 11)), draw.rng.choice((0.25, 0.5, 0.75))
    dark = draw.same(T, len(sizes)) < (-0.25 if masks in ("blocks", "queries") else -INF)
    if masks in ("blocks", "queries"):
        dark[::2, 0], dark[1::2, 0] = True, False
        dark[:, -1] &= ~dark.all(1)
        dark[1:5:3] |= masks == "queries"
    q = 1.5 * draw.same(T, K, dtype=dtype)
    if far:
        q[:, 0] = torch.tensor([FAR, -FAR, FAR / 2, 0.0] * (T // 4)) / 100 / scale
        q[:, 1] = 100 / scale
    blocks = []
    for number, size in enumerate(sizes):
        k, v = draw.same(2, size, K, dtype=dtype)
        seen = (draw.same(T, size) < 0.25) | (masks == "none")
        seen[torch.arange(T), torch.arange(T) % (size - hidden)] = True
        if far:
            k[:, 0], k[:, 1] = (100 if number < 2 else 102), 0
        if hidden:
            k[-1, 1], seen[:, -1] = FAR / 100, False
        blocks.append((k, v, seen & ~dark[:, number, None]))
    return Case(label, q, blocks, scale)


class Blocks:
    """Gives copies of blocks, each once, and notes how many are in memory."""

    def __init__(self, watch: Any, blocks: list[Block]) -> None:
        self.watch, self.left, self.storages = watch, list(blocks), []
        self.given: tuple[Block, Block] | None = None

    def __iter__(self) -> "Blocks":
        return self

    def __next__(self) -> Block:
        """The next block."""
        self.end()
        if not self.left:
            self.watch.note("asked for more blocks")
            raise StopIteration
        whole = self.left.pop(0)
        self.given = whole, tuple(x.clone() for x in whole)
        self.storages += [[weakref.ref(x.untyped_storage()) for x in self.given[1][:2]]]
        alive = [each for each in self.storages if any(ref() is not None for ref in each)]
        self.watch.note("blocks in memory", len(alive))
        return self.given[1]

    def end(self) -> None:
        """Let go of the last block. What changed in it shows as a changed argument."""
        for mine, its in zip(*self.given or ()):
            mine.copy_(its)
        self.given = None


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """With an iterator in place of the blocks."""
    q, blocks, scale = args
    iterator = Blocks(watch, blocks)
    returned = watch.function(q, iterator, scale)
    iterator.end()
    return returned


def joined(blocks: list[Block]) -> Block:
    """All blocks as one."""
    k, v, mask = zip(*blocks)
    return torch.cat(k), torch.cat(v), torch.cat(mask, 1)


def right(q: Tensor, blocks: list[Block], scale: float) -> Pair:
    """All keys at once, in float64."""
    k, v, mask = joined(blocks)
    scores = (scale * (q.double() @ k.double().T)).masked_fill(~mask, -INF)
    return (scores.softmax(1).nan_to_num(0) @ v.double()).to(q.dtype), scores.logsumexp(1).to(
        q.dtype
    )


def tolerances(q: Tensor, blocks: list[Block], scale: float) -> tuple[float, float]:
    """For o and for lse: a score is rounded K times, and B times where blocks are merged."""
    k, v, _ = joined(blocks)
    largest = max(1.0, float(scale * (q.double().abs() @ k.double().abs().T).max()))
    room = 2 * torch.finfo(q.dtype).eps * (len(k) + (len(blocks) + q.shape[1]) * largest)
    return room * float(v.abs().max()), room


def same(got: Any, expected: Pair, case: Case) -> bool:
    """Right but for rounding."""
    if not isinstance(got, tuple | list) or len(got) != 2:
        return False
    for one, other in zip(got, expected):
        if not isinstance(one, Tensor) or (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
    return all(map(near, got, expected, tolerances(*case.args)))


def near(got: Tensor, expected: Tensor, most: float) -> bool:
    """Within `most`; infinities where they should be."""
    return bool(((got == expected) | ((got - expected).abs() <= most)).all())


def budget(s: Observed) -> Budget:
    """Two blocks and 8 tensors of scores; an eighth of them for each of four masks."""
    q, blocks, _ = s.args
    if len(blocks) < MANY:
        return Budget()
    k, _, mask = blocks[0]
    scores_bytes = mask.numel() * q.element_size()
    return Budget(peak_bytes=8.5 * scores_bytes + 2 * (2 * k.nbytes + mask.nbytes))


def larger(old: Tensor, scores: Tensor) -> Tensor:
    """The maximum so far, of each query."""
    return torch.maximum(old, scores.amax(1, keepdim=True))


def follow(
    q: Tensor,
    blocks: list[Block],
    scale: float,
    first_max: float = -INF,
    next_max: Callable[[Tensor, Tensor], Tensor] = larger,
    sign: int = 1,
    rescales: tuple[bool, bool] = (True, True),
    divides: str = "at the end",
    hidden: float = -INF,
    sees: Callable[[Tensor], Tensor] = lambda mask: mask,
    is_late: bool = False,
    sums_hidden: bool = False,
) -> Pair:
    """Block by block, by rules that can be wrong.

    rescales: sum, output. is_late: hides keys after the maximum is taken.
    """
    o, total = torch.zeros_like(q), q.new_zeros(len(q), 1)
    maximum = torch.full_like(total, first_max)
    for k, v, mask in blocks:
        everything = scale * (q @ k.T)
        lowest = max(hidden, torch.finfo(q.dtype).min) if hidden > -INF else hidden
        scores = everything.masked_fill(~sees(mask), lowest)
        new = next_max(maximum, everything if is_late else scores)
        shift = new.masked_fill(new == -INF, 0)
        weights = torch.exp(scores - shift)
        factor = torch.exp(sign * (maximum - shift))
        factor = factor.nan_to_num(1, 1, 1) if sign < 0 else factor
        counted = torch.exp(everything - shift) if sums_hidden else weights
        total = total * (factor if rescales[0] else 1) + counted.sum(1, keepdim=True)
        o = o * (factor if rescales[1] else 1) + weights @ v
        maximum = new
        if divides.startswith("each"):
            o = o / total.masked_fill(total == 0, 1)
    if divides.endswith("end"):
        o = o / total.masked_fill(total == 0, 1)
    return o, (maximum + total.log()).squeeze(1)


def gives(*rules: dict[str, Any]) -> Callable[[Observed], bool]:
    """Whether the output is wrong, and what `follow` gives by one of these rules."""
    return outputs(*(lambda s, its=its: follow(*s.args, **its)[0] for its in rules))


def outputs(*formulas: Callable[[Observed], Tensor], part: int = 0) -> Callable[[Observed], bool]:
    """Whether the output (part 0) or the log-sum-exp (1) is wrong, and one of these formulas'."""

    def seen(s: Observed) -> bool:
        got, most, correct = finite(s.y[part]), tolerances(*s.args)[part], finite(s.right[0][part])
        if near(s.y[part], s.right[0][part], most):
            return False
        wrong = (finite(formula(s)) for formula in formulas)
        return any(
            not near(each, correct, most)
            and near(got, each, most * max(1, float(each.abs().max())))
            for each in wrong
        )

    return seen


def finite(x: Tensor) -> Tensor:
    """What overflows may be NaN, inf or 0."""
    return x.double().nan_to_num(0, 0, 0)


def makes_nan(s: Observed) -> bool:
    """Whether there is NaN, and only for queries that see no key of some block."""
    rows = s.y[0].isnan().any(1) | s.y[1].isnan()
    sees_all = torch.stack([mask.any(1) for _, _, mask in s.args[1]]).all(0)
    return bool(rows.any()) and not bool((rows & sees_all).any())


def is_all_nan(s: Observed) -> bool:
    """Whether there is nothing but NaN, with small scores: exp(new - old) is inf at first."""
    return bool(s.y[0].isnan().all()) and float(finite(largest(s)).abs().max()) < 100


def largest(s: Observed) -> Tensor:
    """The maximum of each query's scores."""
    k, _, mask = joined(s.args[1])
    return (s.args[2] * (s.xs @ k.T)).masked_fill(~mask, -INF).amax(1)


def noted(s: Observed, what: str) -> list[Any]:
    """Values of these notes."""
    return [e.value for e in s.ranks[0].notes if e.what == what]


rescales_wrongly = gives(
    *({"rescales": each} for each in ((False, False), (True, False), (False, True))), {"sign": -1}
)
counts_hidden = gives({"sees": torch.ones_like}, {"sees": torch.logical_not}, {"sums_hidden": True})
MAX = "new_T1 = torch.maximum(max_T1, scores_TS.amax(1, keepdim=True))"
HIDE = ".masked_fill(~mask_TS, -torch.inf)"
LOOP = "    for k_SK, v_SK, mask_TS in blocks:"
LAST = "        max_T1 = new_T1\n"
END = "o_TK / sum_T1.masked_fill(sum_T1 == 0, 1)"

MISTAKES = [
    Mistake(
        "makes NaN where a query sees no key",
        "In a masked block all scores are -inf, and -inf - -inf is NaN: subtract 0 where the "
        "maximum is -inf. At the end 0 / 0 is NaN too: do not divide where the sum is 0.",
        hint=3,
        seen=makes_nan,
        made_by=patch("new_T1.masked_fill(new_T1 == -torch.inf, 0)", "new_T1"),
    ),
    Mistake(
        "does not rescale what was summed before",
        "When the maximum grows, the sum and the output were computed with the old one. Both take "
        "the factor exp(old - new), which is 1 or less.",
        hint=2,
        seen=lambda s: rescales_wrongly(s) or is_all_nan(s),
        made_by=patch("o_TK = o_TK * rescale_T1", "o_TK = o_TK"),
    ),
    Mistake(
        "does not divide once, at the end",
        "Weights of later blocks are added to the output, so it must not be divided before the "
        "last block. At the end it is divided by the sum of weights.",
        hint=2,
        seen=gives(
            {"divides": "never"}, {"divides": "each block"}, {"divides": "each, and the end"}
        ),
        made_by=patch(END, "o_TK"),
    ),
    Mistake(
        "does not add up the blocks",
        "The output is that of one block, or the sum or the mean of the blocks' own softmaxes. "
        "Add weights and weighted values of all blocks, and divide at the end.",
        seen=outputs(
            lambda s: right(s.xs, s.args[1][:1], s.args[2])[0],
            lambda s: right(s.xs, s.args[1][-1:], s.args[2])[0],
            lambda s: sum(right(s.xs, [block], s.args[2])[0] for block in s.args[1]),
            lambda s: sum(right(s.xs, [b], s.args[2])[0] for b in s.args[1]) / len(s.args[1]),
        ),
        made_by=patch(LAST, LAST + "        break\n"),
    ),
    Mistake(
        "takes another scale",
        "Scores are scale * (q . k), with the scale that is given, once.",
        seen=outputs(
            lambda s: right(s.xs, s.args[1], 1.0)[0],
            lambda s: right(s.xs, s.args[1], s.xs.shape[1] ** -0.5)[0],
            lambda s: right(s.xs, s.args[1], s.args[2] ** 2)[0],
        ),
        made_by=patch("(scale * (q_TK @ k_SK.T))", "(q_TK @ k_SK.T)"),
    ),
    Mistake(
        "lets hidden keys count",
        "True is where a query may see a key. All other keys have no weight, neither in the output "
        "nor in the sum.",
        seen=lambda s: finite(s.y[0]).any() and counts_hidden(s),
        made_by=patch(HIDE, ""),
    ),
    Mistake(
        "gives hidden keys a finite score",
        "A hidden key's weight is exp(-inf) = 0. exp(0) is 1, and where a query sees no key, or "
        "only scores of -10,000, a score of -1e4 or -1e9 counts as well.",
        hint=3,
        seen=gives(*({"hidden": score} for score in (0, -1e3, -1e4, -1e9, -1e30, -1e308))),
        made_by=patch(HIDE, ".masked_fill(~mask_TS, -1e9)"),
    ),
    Mistake(
        "subtracts no maximum, or one that starts at 0",
        "exp(10,000) is inf, and exp(-10,000) is 0. The largest score seen so far is subtracted. "
        "Before any score it is -inf: with 0, scores of -10,000 vanish.",
        hint=3,
        seen=gives({"first_max": 0.0}, {"first_max": 0.0, "next_max": lambda old, scores: old}),
        made_by=patch("torch.full_like(sum_T1, -torch.inf)", "torch.zeros_like(sum_T1)"),
    ),
    Mistake(
        "takes the maximum before it masks",
        "A hidden key may score 10,000 more than all that a query sees. Then exp(score - maximum) "
        "is 0 for every key that counts. Mask first.",
        hint=3,
        seen=gives({"is_late": True}),
        made_by=patch(
            *(HIDE, ""),
            *("    shift_T1 = ", f"    scores_TS = scores_TS{HIDE}\n        shift_T1 = "),
        ),
    ),
    Mistake(
        "does not keep a growing maximum per query",
        "The maximum is over all blocks so far, and each query has its own. With another one "
        "exp(score - maximum) overflows, or all weights of a query are 0.",
        hint=3,
        seen=gives(
            {"next_max": lambda old, scores: torch.maximum(old, scores.max())},
            {"next_max": lambda old, scores: torch.where(old == -INF, larger(old, scores), old)},
        ),
        made_by=patch(MAX, "new_T1 = torch.maximum(max_T1, scores_TS.max())"),
    ),
    Mistake(
        "returns another log-sum-exp",
        "The output is right. lse = maximum + log(sum of exp(score - maximum)), with the natural "
        "logarithm, over all blocks.",
        hint=3,
        seen=outputs(
            lambda s: s.right[0][1] - largest(s),
            lambda s: s.right[0][1] - 2 * largest(s),
            largest,
            lambda s: torch.exp(s.right[0][1] - largest(s)),
            lambda s: torch.exp(s.right[0][1]),
            lambda s: s.right[0][1] / math.log(2),
            lambda s: largest(s) + (s.right[0][1] - largest(s)) / math.log(2),
            lambda s: right(s.xs, s.args[1][-1:], s.args[2])[1],
            part=1,
        ),
        made_by=patch("(max_T1 + sum_T1.log())", "sum_T1.log()"),
    ),
    Mistake(
        "goes through the blocks twice",
        "The iterator gives each block once, so a second loop over it finds nothing. Update "
        "maximum, sum and output in one loop.",
        seen=lambda s: len(noted(s, "asked for more blocks")) > 1,
        made_by=patch(
            LOOP,
            "    for k_SK, _, mask_TS in blocks:\n"
            "        scores_TS = (q_TK @ k_SK.T).masked_fill(~mask_TS, -torch.inf)\n"
            "        max_T1 = torch.maximum(max_T1, scale * scores_TS.amax(1, keepdim=True))\n"
            + LOOP,
        ),
    ),
    Mistake(
        "keeps blocks that it has seen",
        "More than two blocks are in memory. The next block needs only the maximum, the sum and "
        "the output of each query: no list, no torch.cat.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: max(noted(s, "blocks in memory")) > 2,
        made_by=patch("in blocks:", "in list(blocks):"),
    ),
    Mistake(
        "keeps something of every block",
        "Memory grows with the number of blocks, such as with a list of scores or of outputs. Add "
        "each block to what was summed before.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: (
            len(s.args[1]) == MANY
            and max(noted(s, "blocks in memory")) <= 2
            and s.ranks[0].peak_bytes > budget(s).peak_bytes
        ),
        made_by=patch(
            LOOP, "    kept = []\n" + LOOP, LAST, LAST + "        kept.append(weights_TS)\n"
        ),
    ),
]

GRADER = Questions(
    name="online_softmax",
    cases=cases,
    right=right,
    same=same,
    call=call,
    budget=budget,
    mistakes=MISTAKES,
    closed=("labkit.context_parallel",),
    watch_memory=True,
    shown="output and log-sum-exp are those of all keys at once, with scores of 10,000 in float32 "
    "and with masked blocks; each block is seen once, and memory does not grow with their number",
)
