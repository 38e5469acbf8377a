"""Grade online_softmax: output and log-sum-exp, each block once, and what is in memory."""

import math
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g

Block = tuple[Tensor, Tensor, Tensor]
FAR, MANY = 10_000.0, 32


def cases(draw: g.Draw) -> list[g.Case]:
    """Masks that hide keys, blocks and whole queries; large scores; many blocks."""
    sizes = draw.rng.sample(range(2, 9), 4)
    return [
        case(draw, "2 blocks, one of a single key", [1, sizes[0]]),
        case(draw, "4 blocks, each query sees keys of every block", sizes),
        case(draw, "4 blocks, some hidden from a query, 2 queries see no key", sizes, hides=True),
        case(draw, "scores up to 10,000 in float32", sizes, level=FAR, dtype=torch.float32),
        case(draw, "hidden keys that score 10,000 more", sizes, trap=FAR),
        case(draw, f"{MANY} blocks", [16] * MANY),
    ]


def case(
    draw: g.Draw,
    label: str,
    sizes: list[int],
    hides: bool = False,
    level: float = 0.0,
    trap: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> g.Case:
    """Queries and blocks. K has no square root that is a power of two.

    hides: queries 1 and 4 see no key, every other one starts with a hidden block.
    level: scores of a query are around level, -level, level / 2 or 0, later ones 2% further out.
    trap: one key per block, which no query sees, scores so much more than the others.
    """
    T, K, scale = 24, draw.rng.choice((7, 10, 11)), draw.rng.choice((0.25, 0.5, 0.75))
    dark = (draw.same(T, len(sizes)) < -0.25) & hides
    dark[::2, 0] = hides
    dark[:, -1] &= ~dark.all(1)
    dark[[1, 4]] |= hides
    q = 1.5 * draw.same(T, K, dtype=dtype)
    q[:, 0] = torch.tensor([level, -level, level / 2, 0.0] * (T // 4)) / scale
    q[:, 1] = trap / scale
    blocks = []
    for number, size in enumerate(sizes):
        k, v = draw.same(2, size, K, dtype=dtype)
        k[:, 0], k[:, 1], k[-1, 1] = (1 if number < 2 else 1.02), 0, 1
        seen = draw.same(T, size) < 0.25
        seen[torch.arange(T), torch.arange(T) % size] = True
        if trap:
            seen[:, 0], seen[:, -1] = True, False
        blocks.append((k, v, seen & ~dark[:, number, None]))
    return g.Case(label, q, blocks, scale)


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """With an iterator in place of the blocks."""
    q, blocks, scale = args

    def each_once() -> Iterator[Any]:
        """Copies of blocks. What changes in one shows as a changed argument."""
        memory: list[weakref.ref[torch.UntypedStorage]] = []
        for block in blocks:
            given = tuple(x.clone() for x in block)
            memory.append(weakref.ref(given[1].untyped_storage()))
            watch.note("blocks in memory", sum(ref() is not None for ref in memory))
            yield given
            for x, its in zip(block, given):
                x.copy_(its)

    return watch.function(q, each_once(), scale)


def right(q: Tensor, blocks: list[Block], scale: float) -> tuple[Tensor, Tensor]:
    """Return all keys at once, in float64."""
    k, v, mask = zip(*blocks)
    scores = scale * (q.double() @ torch.cat(k).double().T)
    scores = scores.masked_fill(~torch.cat(mask, 1), -math.inf)
    o = scores.softmax(1).nan_to_num(0) @ torch.cat(v).double()
    return o.to(q.dtype), scores.logsumexp(1).to(q.dtype)


def same(got: Any, expected: Any, case: g.Case) -> bool:
    """But for rounding: exp of a score of 10,000 has the error of 10,000 epsilons."""
    return g.close(got, expected, steps=1e5) and g.close(got[1], expected[1], steps=200)


def budget(s: g.Observed) -> g.Budget:
    """Two blocks and 8 tensors of scores; an eighth of them for each of four masks."""
    q, blocks, _ = s.args
    if len(blocks) < MANY:
        return g.Budget()
    k, _, mask = blocks[0]
    scores_bytes = mask.numel() * q.element_size()
    return g.Budget(peak_bytes=8.5 * scores_bytes + 2 * (2 * k.nbytes + mask.nbytes))


def keeps(s: g.Observed) -> bool:
    """Return whether blocks, or tensors made of them, stay in memory."""
    most = budget(s).peak_bytes or math.inf
    return s.ranks[0].peak_bytes > most or any(note.value > 2 for note in s.ranks[0].notes)


NO_MAX, ZEROS = "torch.full_like(sum_T1, -torch.inf)", "torch.zeros_like(sum_T1)"
LSE, SHIFT = "(max_T1 + sum_T1.log())", "new_T1.masked_fill(new_T1 == -torch.inf, 0)"
HIDE = ".masked_fill(~mask_TS, -torch.inf)"
LOOP = "    for k_SK, v_SK, mask_TS in blocks:"
SUM_RESCALED, SUM = "sum_T1 = sum_T1 * rescale_T1 +", "sum_T1 = sum_T1 +"
OUT_RESCALED, OUT = "o_TK = o_TK * rescale_T1 +", "o_TK = o_TK +"
TWICE = (LOOP, f"    for _ in blocks:\n        pass\n{LOOP}")
LAST = "        max_T1 = new_T1\n"
END = "o_TK / sum_T1.masked_fill(sum_T1 == 0, 1)"

MISTAKES = [
    g.Mistake(
        "makes NaN where a query sees no key",
        "In a masked block all scores are -inf, and -inf - -inf is NaN: subtract 0 where the "
        "maximum is -inf. At the end 0 / 0 is NaN too: do not divide where the sum is 0. "
        "What is NaN in one block stays NaN in later ones.",
        [
            g.patch(SHIFT, "new_T1"),
            g.patch(END, "o_TK / sum_T1"),
            g.patch(
                *(SHIFT, "new_T1", END, "(o_TK / sum_T1).nan_to_num(0)"),
                *(LSE, f"{LSE}.nan_to_num(-torch.inf, torch.inf, -torch.inf)"),
            ),
        ],
        hint=3,
    ),
    g.Mistake(
        "does not rescale what was summed before",
        "When the maximum grows, the sum and the output were computed with the old one. Both take "
        "the factor exp(old - new), which is 1 or less.",
        [
            g.patch(OUT_RESCALED, OUT),
            g.patch(OUT_RESCALED, OUT, SUM_RESCALED, SUM),
        ],
        hint=2,
    ),
    g.Mistake(
        "does not divide once, at the end",
        "A weight's denominator is the sum over all blocks, so no block's own softmax is part of "
        "the result. Add weighted values, and divide after the last block.",
        [
            g.patch(END, "o_TK"),
            g.patch(LAST, f"{LAST}        o_TK = {END}\n", f"return {END}", "return o_TK"),
            g.patch(
                *(f"{OUT_RESCALED} weights_TS", f"{OUT} scores_TS.softmax(1).nan_to_num(0)"),
                *(END, "o_TK"),
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "lets hidden keys count",
        "True is where a query may see a key. A hidden key's weight is exp(-inf) = 0. exp(0) is 1, "
        "and where all other scores are -10,000 or hidden, a score of -1e4 or -1e9 counts as well.",
        [
            g.patch(HIDE, ""),
            *(
                g.patch(HIDE, HIDE.replace("-torch.inf", lowest))
                for lowest in ("-1e9", "torch.finfo(q_TK.dtype).min")
            ),
        ],
        hint=3,
    ),
    g.Mistake(
        "subtracts the wrong maximum",
        "Each query has its own maximum, over all keys that it has seen so far: mask first, since "
        "a hidden key may score 10,000 more. Before any score it is -inf: with 0, scores of "
        "-10,000 vanish, and with no maximum exp(10,000) is inf.",
        [
            g.patch(NO_MAX, ZEROS),
            g.patch(
                NO_MAX, ZEROS, "torch.maximum(max_T1, scores_TS.amax(1, keepdim=True))", "max_T1"
            ),
            g.patch(HIDE, "", "    shift_T1", f"    scores_TS = scores_TS{HIDE}\n        shift_T1"),
        ],
        hint=3,
    ),
    g.Mistake(
        "returns another log-sum-exp",
        "The output is right. lse = maximum + log(sum of exp(score - maximum)), with the natural "
        "logarithm, over all blocks.",
        g.patch(LSE, "sum_T1.log()"),
        hint=3,
    ),
    g.Mistake(
        "goes through the blocks twice",
        "The iterator gives each block once, so a second loop over it finds nothing. Update "
        "maximum, sum and output in one loop.",
        [g.patch(*TWICE), g.patch(*TWICE, END, "o_TK / sum_T1")],
    ),
    g.Mistake(
        "keeps something of every block",
        "Memory grows with the number of blocks. The next block needs only the maximum, the sum "
        "and the output of each query: keep no list of blocks, scores or outputs, no torch.cat.",
        [
            g.patch("in blocks:", "in list(blocks):"),
            g.patch(LOOP, f"    kept = []\n{LOOP}", LAST, f"{LAST}        kept += [weights_TS]\n"),
        ],
        over_budget=keeps,
    ),
]

GRADER = g.Questions(
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
