"""Grade online_softmax: output and log-sum-exp, each block once, and what is in memory."""

import math
import weakref
from collections.abc import Iterator, Sequence
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
        case(draw, "1 block", sizes[:1]),
        case(draw, "2 blocks, one of a single key", [1, sizes[0]]),
        case(draw, "4 blocks, every key is seen", sizes, most=math.inf),
        case(draw, "4 blocks, each query sees keys of every block", sizes),
        case(draw, "4 blocks, some hidden from a query", sizes, hides=True),
        case(draw, "4 blocks, 2 queries see no key", sizes, hides=True, blind=(1, 4)),
        case(draw, "scores up to 10,000 in float32", sizes, far=True, dtype=torch.float32),
        case(draw, "hidden keys that score 10,000 more", sizes, far=True, traps=True),
        case(draw, f"{MANY} blocks", [16] * MANY),
    ]


def case(
    draw: g.Draw,
    label: str,
    sizes: list[int],
    most: float = 0.25,
    hides: bool = False,
    blind: Sequence[int] = (),
    far: bool = False,
    traps: bool = False,
    dtype: torch.dtype = torch.float64,
) -> g.Case:
    """Queries and blocks. K has no square root that is a power of two.

    far: each query's scores are around a level of its own, and 2% further out in the last blocks.
    traps: one key per block, which no query sees, scores 10,000 more than the others.
    """
    T, K, scale = 24, draw.rng.choice((5, 6, 7, 10, 11)), draw.rng.choice((0.25, 0.5, 0.75))
    dark = (draw.same(T, len(sizes)) < -0.25) & hides
    dark[:, 0] = hides & (torch.arange(T) % 2 == 0)
    dark[:, -1] &= ~dark.all(1)
    dark[list(blind)] = True
    q = 1.5 * draw.same(T, K, dtype=dtype)
    if far:
        q[:, 0] = torch.tensor([FAR, -FAR, FAR / 2, 0.0] * (T // 4)) / 100 / scale
        q[:, 1] = 100 / scale
    blocks = []
    for number, size in enumerate(sizes):
        k, v = draw.same(2, size, K, dtype=dtype)
        seen = draw.same(T, size) < most
        seen[torch.arange(T), torch.arange(T) % (size - traps)] = True
        if far:
            k[:, 0], k[:, 1] = (100 if number < 2 else 102), 0
        if traps:
            k[-1, 1], seen[:, -1] = FAR / 100, False
        blocks.append((k, v, seen & ~dark[:, number, None]))
    return g.Case(label, q, blocks, scale)


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """With an iterator in place of the blocks."""
    q, blocks, scale = args
    given: list[list[Any]] = []

    def each_once() -> Iterator[Block]:
        """Copies of blocks. What changes in one shows as a changed argument."""
        for block in blocks:
            k, v, mask = (x.clone() for x in block)
            given.append([weakref.ref(x.untyped_storage()) for x in (k, v)])
            alive = sum(any(ref() is not None for ref in refs) for refs in given)
            watch.note("blocks in memory", alive)
            yield k, v, mask
            for x, its in zip(block, (k, v, mask)):
                x.copy_(its)
            del k, v, mask, its

    return watch.function(q, each_once(), scale)


def right(q: Tensor, blocks: list[Block], scale: float) -> tuple[Tensor, Tensor]:
    """All keys at once, in float64."""
    k, v, mask = zip(*blocks)
    scores = scale * (q.double() @ torch.cat(k).double().T)
    scores = scores.masked_fill(~torch.cat(mask, 1), -math.inf)
    o = scores.softmax(1).nan_to_num(0) @ torch.cat(v).double()
    return o.to(q.dtype), scores.logsumexp(1).to(q.dtype)


def same(got: Any, expected: Any, case: g.Case) -> bool:
    """But for rounding: a score is rounded K times, and once more where blocks are merged."""
    if not g.close(got, expected, steps=math.inf):  # types, shapes and dtypes
        return False
    q, blocks, scale = case.args
    k, v = (torch.cat(each) for each in list(zip(*blocks))[:2])
    largest = max(1.0, float(scale * (q.double().abs() @ k.double().abs().T).max()))
    room = 2 * torch.finfo(q.dtype).eps * (len(k) + (len(blocks) + q.shape[1]) * largest)
    rooms = room * float(v.abs().max()), room
    return all(torch.allclose(x, y, 0, most) for x, y, most in zip(got, expected, rooms))


def budget(s: g.Observed) -> g.Budget:
    """Two blocks and 8 tensors of scores; an eighth of them for each of four masks."""
    q, blocks, _ = s.args
    if len(blocks) < MANY:
        return g.Budget()
    k, _, mask = blocks[0]
    scores_bytes = mask.numel() * q.element_size()
    return g.Budget(peak_bytes=8.5 * scores_bytes + 2 * (2 * k.nbytes + mask.nbytes))


def keeps(s: g.Observed) -> bool:
    """Whether blocks, or what was made of them, stay in memory."""
    most = budget(s).peak_bytes or math.inf
    return s.ranks[0].peak_bytes > most or any(note.value > 2 for note in s.ranks[0].notes)


MAX = "new_T1 = torch.maximum(max_T1, scores_TS.amax(1, keepdim=True))"
NO_MAX = "torch.full_like(sum_T1, -torch.inf)"
SCORES, HIDE = "(scale * (q_TK @ k_SK.T))", ".masked_fill(~mask_TS, -torch.inf)"
LOOP = "    for k_SK, v_SK, mask_TS in blocks:"
SUM, SUM_RESCALED = "sum_T1 = sum_T1 +", "sum_T1 = sum_T1 * rescale_T1 +"
OUT, OUT_RESCALED = "o_TK = o_TK +", "o_TK = o_TK * rescale_T1 +"
ADDS = f"{OUT_RESCALED} weights_TS @ v_SK"
ADDS_OWN = f"{OUT} scores_TS.softmax(1).nan_to_num(0) @ v_SK"
LAST = "        max_T1 = new_T1\n"
END, LSE = "o_TK / sum_T1.masked_fill(sum_T1 == 0, 1)", "(max_T1 + sum_T1.log())"

MISTAKES = [
    g.Mistake(
        "makes NaN where a query sees no key",
        "In a masked block all scores are -inf, and -inf - -inf is NaN: subtract 0 where the "
        "maximum is -inf. At the end 0 / 0 is NaN too: do not divide where the sum is 0.",
        [
            g.patch("new_T1.masked_fill(new_T1 == -torch.inf, 0)", "new_T1"),
            g.patch(END, "o_TK / sum_T1"),
        ],
        hint=3,
    ),
    g.Mistake(
        "does not rescale what was summed before",
        "When the maximum grows, the sum and the output were computed with the old one. Both take "
        "the factor exp(old - new), which is 1 or less.",
        [
            g.patch(OUT_RESCALED, OUT),
            g.patch(SUM_RESCALED, SUM),
            g.patch(OUT_RESCALED, OUT, SUM_RESCALED, SUM),
        ],
        hint=2,
    ),
    g.Mistake(
        "does not divide once, at the end",
        "Weights of later blocks are added to the output, so it must not be divided before the "
        "last block. At the end it is divided by the sum of weights.",
        [
            g.patch(END, "o_TK"),
            g.patch(LAST, f"{LAST}        o_TK = {END}\n"),
        ],
        hint=2,
    ),
    g.Mistake(
        "does not add up the blocks",
        "The output is the sum or the mean of the blocks' own softmaxes. "
        "Add weights and weighted values of all blocks, and divide at the end.",
        [
            g.patch(ADDS, ADDS_OWN, END, "o_TK"),
            g.patch(
                *(LOOP, "    for count, (k_SK, v_SK, mask_TS) in enumerate(blocks, 1):"),
                *(ADDS, ADDS_OWN, END, "o_TK / count"),
            ),
        ],
    ),
    g.Mistake(
        "takes another scale",
        "Scores are scale * (q . k), with the scale that is given, once.",
        g.patch(SCORES, SCORES.replace("scale", "q_TK.shape[1] ** -0.5")),
    ),
    g.Mistake(
        "lets hidden keys count",
        "True is where a query may see a key. A hidden key's weight is exp(-inf) = 0. exp(0) is 1, "
        "and where all other scores are -10,000 or hidden, a score of -1e4 or -1e9 counts as well.",
        [
            g.patch(HIDE, ""),
            g.patch("~mask_TS", "mask_TS"),
            g.patch(HIDE, HIDE.replace("-torch.inf", "0")),
            g.patch(HIDE, HIDE.replace("-torch.inf", "-1e9")),
        ],
        hint=3,
    ),
    g.Mistake(
        "does not keep a growing maximum per query",
        "Each query has its own maximum, over all its scores so far. Before any score it is -inf: "
        "with 0, scores of -10,000 vanish, and with no maximum exp(10,000) is inf.",
        [
            g.patch(NO_MAX, "torch.zeros_like(sum_T1)"),
            g.patch(MAX, "new_T1 = torch.maximum(max_T1, scores_TS.max())"),
        ],
        hint=3,
    ),
    g.Mistake(
        "takes the maximum before it masks",
        "A hidden key may score 10,000 more than all that a query sees. Then exp(score - maximum) "
        "is 0 for every key that counts. Mask first.",
        g.patch(HIDE, "", "    shift_T1", f"    scores_TS = scores_TS{HIDE}\n        shift_T1"),
        hint=3,
    ),
    g.Mistake(
        "returns another log-sum-exp",
        "The output is right. lse = maximum + log(sum of exp(score - maximum)), with the natural "
        "logarithm, over all blocks.",
        [g.patch(LSE, lse) for lse in ("sum_T1.log()", "max_T1", "(max_T1 + sum_T1)")],
        hint=3,
    ),
    g.Mistake(
        "goes through the blocks twice",
        "The iterator gives each block once, so a second loop over it finds nothing. Update "
        "maximum, sum and output in one loop.",
        g.patch(LOOP, f"    for _ in blocks:\n        pass\n{LOOP}"),
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
