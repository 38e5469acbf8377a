"""Grade ring_attention_step: outputs, messages, their order, what is computed and in memory."""

import gc
import math
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.grade import grader as g
from labkit.grade.observed import MESSAGES, RECEIVES
from labkit.grade.watched import BrokenRule, learner_site

HEADS = 2
PRODUCTS = ("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "baddbmm_", "addbmm")
EXPONENTIALS = ("exp", "exp_", "exp2", "exp2_", "_softmax", "_log_softmax", "logsumexp")


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Equal shards, scores of thousands, unequal shards."""
    even = n * draw.rng.randrange(20, 26)
    uneven = even + (draw.rng.randrange(1, n) if n > 1 else 0)
    listed = []
    for num_tokens, largest, what in (
        (even, 1.0, ""),
        (even, 300.0, ", scores of thousands"),
        (uneven, 1.0, ", unequal shards"),
    ):
        q, k, v = draw.same(3, HEADS, num_tokens, draw.rng.randrange(5, 9), dtype=torch.float64)
        shards = (g.ByRank(map(torch.clone, x.tensor_split(n, 1))) for x in (largest * q, k, v))
        listed.append(g.Case(f"{num_tokens} tokens{what}", *shards, num_tokens))
    return listed


class Receiving:
    """A watched group that remembers the memory of its receives."""

    def __init__(self, group: Any) -> None:
        self.group, self.buffers = group, []

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.group, name)

        def receive(buffer: Tensor, src: int) -> Any:
            self.buffers.append(weakref.ref(buffer.untyped_storage()))
            return operation(buffer, src)

        return receive if name in RECEIVES else operation

    @property
    def received_bytes(self) -> int:
        """Of the memory that is still there."""
        alive = {x._cdata: x.nbytes() for ref in self.buffers if (x := ref()) is not None}
        return sum(alive.values())


class Computing(TorchDispatchMode):
    """Notes what is computed, what has been received by then, and tensors of (t, T)."""

    def __init__(self, watch: Any, k: Tensor, num_tokens: int) -> None:
        super().__init__()
        self.watch, self.group, self.num_tokens = watch, Receiving(watch.group), num_tokens
        self.per_pair = 4 * k.shape[2]
        self.most_bytes = 4 * k[:, :1].nbytes * -(-num_tokens // watch.group.size)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in watched.Watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note products of matrices and exponentials before they are computed."""
        name = func.overloadpacket.__name__
        if name in PRODUCTS:
            first, second = [x for x in args if isinstance(x, Tensor)][-2:]
            flops = 2 * first.numel() * (second.shape[-1] if second.dim() > 1 else 1)
            self.note(flops / self.per_pair, 0)
        elif name in EXPONENTIALS:
            self.note(0, args[0].numel())
        elif name.startswith("_scaled_dot_product") or name == "_safe_softmax":
            why = "torch's own attention has the answer; write it with torch's other operators"
            raise self.watch.refuse(BrokenRule("calls the answer itself", why, learner_site()))
        result = func(*args, **(kwargs or {}))
        shape, n = result.shape if isinstance(result, Tensor) else (), self.group.size
        is_long = [x >= self.num_tokens // n for x in shape]
        if n > 1 and self.num_tokens in shape and sum(is_long) > 1:
            self.watch.note("grows")
        return result

    def note(self, products: float, exponentials: int) -> None:
        """Add to the events how many pairs of a query and a key are computed."""
        if self.group.received_bytes > self.most_bytes:
            gc.collect()
        self.watch.note("computes", (products, exponentials))
        if self.group.received_bytes > self.most_bytes:
            self.watch.note("grows")


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """With a group and a mode that note more."""
    with Computing(watch, args[1], args[3]) as computing:
        return watch.function(*args, computing.group)


def right(q: g.ByRank, k: g.ByRank, v: g.ByRank, num_tokens: int) -> g.ByRank:
    """The whole sequence at once."""
    later = torch.ones(num_tokens, num_tokens).triu(1).bool()
    scores = torch.cat(q, 1) @ torch.cat(k, 1).mT * q[0].shape[2] ** -0.5
    weights = scores.masked_fill(later, -torch.inf).softmax(2)
    return g.ByRank((weights @ torch.cat(v, 1)).tensor_split(len(q), 1))


def same(got: Any, expected: Tensor, case: g.Case) -> bool:
    """But for rounding: a score is rounded K times, and n times as blocks are merged."""
    if not g.close(got, expected, steps=math.inf):  # type, shape and dtype
        return False
    q, k, v = (torch.cat(each, 1).abs() for each in case.args[:3])
    largest = max(1.0, float((q @ k.mT).max()) * q.shape[2] ** -0.5)
    roundings = q.shape[1] + (len(case.args[0]) + q.shape[2]) * largest
    room = 2 * torch.finfo(expected.dtype).eps * roundings * float(v.max())
    return torch.allclose(got, expected, 0, room)


def budget(s: g.Observed) -> g.Budget:
    """n - 1 blocks to the right; 3 blocks and 8 tensors of scores in memory."""
    blocks = [2 * k.nbytes for k in s.args[1]]
    return g.Budget(
        sends=2 * (s.n - 1),
        payload_bytes=[sum(blocks) - blocks[(rank + 1) % s.n] for rank in range(s.n)],
        peak_bytes=3 * blocks[0] + 8 * 8 * HEADS * s.xs[0].shape[1] ** 2,
    )


def computed(s: g.Observed, rank: int, begin: int = 0, end: int | None = None) -> tuple[float, ...]:
    """Pairs of queries and keys that a rank computes products and exponentials for, from its event
    `begin` to `end`."""
    events = s.ranks[rank].events[begin:end]
    return tuple(map(sum, zip((0, 0), *(e.value for e in events if e.what == "computes"))))


def overlaps(s: g.Observed) -> bool:
    """Whether blocks travel in both directions while the rank computes, in all steps."""
    for rank, x in enumerate(s.xs):
        events = s.ranks[rank].events
        ends = {e.began: i for i, e in enumerate(events) if e.what == "wait"}
        for step in range(min(rank + 1, s.n - 1)):
            travel = []
            for kinds in (MESSAGES, RECEIVES):
                begun = [i for i, e in enumerate(events) if e.what in kinds]
                is_whole = begun and events[begun[0]].nbytes > 1.5 * s.args[1][rank].nbytes
                num = 1 if is_whole else 2  # messages of a block
                travel += begun[num * step : num * (step + 1)]
            pairs = HEADS * x.shape[1] * s.xs[rank - step].shape[1] / (2 if step == 0 else 1)
            # Most of them. Products may be written by elements: then exponentials tell.
            end = min((ends.get(i, len(events)) for i in travel), default=0)
            if travel and max(computed(s, rank, max(travel), end)) < 0.5 * pairs:
                return False
    return True


def computes_masked(s: g.Observed) -> bool:
    """Whether a rank computes clearly more than its own block and earlier ones take."""
    return any(
        computed(s, rank)[0] > 1.75 * HEADS * x.shape[1] * sum(y.shape[1] for y in s.xs[: rank + 1])
        for rank, x in enumerate(s.xs)
    )


COMPUTE = "        if source <= rank:"
WAIT = "        for each in under_way:\n            each.wait()\n"
NEW_MAX = "new_Ht1 = torch.maximum(max_Ht1, scores_Hts.amax(2, keepdim=True))"
LATER = "sum(sizes[:source]) + torch.arange(sizes[source]) > positions_t1"
WITHIN = "torch.arange(sizes[source]) > torch.arange(sizes[rank])[:, None]"
MASK, SCALE = "scores_Hts.masked_fill(is_later_ts, -torch.inf)", " * q_HtK.shape[2] ** -0.5"
NOT_RESCALED = ("sum_Ht1 * rescale_Ht1 +", "sum_Ht1 +", "o_HtK * rescale_Ht1 +", "o_HtK +")
OWN_SOFTMAX = ("rescale_Ht1 + weights_Hts @ block[1]", "1 + scores_Hts.softmax(2) @ block[1]")
RETURN = "return o_HtK / sum_Ht1"

MISTAKES = [
    g.Mistake(
        "gives keys other positions than theirs",
        "Positions count from the start of the sequence, not of a block: all keys of an earlier "
        "rank's block are seen, none of a later one's. Blocks come from the left, so after `step` "
        "steps the block in hand is that of rank (rank - step) % n.",
        [
            g.patch(LATER, WITHIN),
            g.patch(LATER, WITHIN, COMPUTE, "        if True:"),
            g.patch(
                *(COMPUTE, "        claimed = (rank + step) % n\n        if True:"),
                *(LATER, LATER.replace("sizes[:source]", "sizes[:claimed]")),
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "sees the wrong positions",
        "The query at position i sees the positions 0 to i: its own and all earlier ones. It sees "
        "no later one, neither in later blocks nor within its own block.",
        [
            g.patch(MASK, "scores_Hts"),
            g.patch("> positions_t1", ">= positions_t1"),
            g.patch("> positions_t1", "< positions_t1", "source <= rank", "source >= rank"),
        ],
    ),
    g.Mistake(
        "merges blocks with wrong weights",
        "Merge blocks as online softmax does. When the maximum grows, sum and output take the "
        "factor exp(old - new). The division comes at the end.",
        [
            g.patch(*NOT_RESCALED),
            g.patch(*NOT_RESCALED, NEW_MAX, "new_Ht1 = scores_Hts.amax(2, keepdim=True)"),
            g.patch(*OWN_SOFTMAX, RETURN, "return o_HtK"),
            g.patch(*OWN_SOFTMAX, RETURN, "return o_HtK / (rank + 1)"),
        ],
    ),
    g.Mistake(
        "takes another scale",
        "Scores are q . k / sqrt(K), with the K features of a head.",
        g.patch(SCALE, ""),
    ),
    g.Mistake(
        "makes NaN of a masked block",
        "The last rank sees every block and has no NaN. Other ranks have: all scores of a later "
        "rank's block are -inf, and -inf - -inf is NaN. Leave such blocks out.",
        g.patch(COMPUTE, "        if True:", NEW_MAX, "new_Ht1 = scores_Hts.amax(2, True)"),
        seen=lambda s: s.n > 1 and bool(s.ys[0].isnan().all()) and s.n - 1 not in s.wrong_ranks,
        hint=3,
    ),
    g.Mistake(
        "subtracts no maximum, or one of masked scores",
        "exp of a score of thousands is infinite, and exp(score - a much larger masked score) is "
        "0. Subtract the largest score so far that the query sees.",
        g.patch(NEW_MAX, "new_Ht1 = torch.zeros_like(max_Ht1)"),
        seen=lambda s: s.xs[0].abs().max() > 100 and not all(y.isfinite().all() for y in s.ys),
        hint=3,
    ),
    g.Mistake(
        "sends other things than n - 1 blocks to the right",
        "All messages go to rank + 1. A block has visited every rank after n - 1 steps; one more "
        "would send it home. Blocks are not padded: num_tokens and n say how long each is.",
        g.patch("        if step < n - 1:", "        if n > 1:"),
        over_budget=lambda s: any(
            s.payload_bytes(rank) > budget(s).payload_bytes[rank]
            or any(e.peer != (rank + 1) % s.n for e in s.messages(rank))
            for rank in range(s.n)
        ),
        hint=3,
    ),
    g.Mistake(
        "does not compute while blocks travel",
        "In each step, post irecv and isend, compute with the block in hand, and then wait for "
        "both. Otherwise a step takes as long as both together. If all blocks are gathered first, "
        "memory grows with the sequence as well.",
        g.patch(WAIT, "", COMPUTE, WAIT + COMPUTE),
        over_budget=lambda s: not overlaps(s),
        hint=2,
    ),
    g.Mistake(
        "computes blocks that are wholly masked",
        "All keys of a later rank's block have weight 0. Pass such blocks on, and leave them out "
        "of the computation.",
        g.patch(COMPUTE, "        if True:"),
        over_budget=computes_masked,
        hint=2,
    ),
    g.Mistake(
        "needs memory that grows with the sequence",
        "More than two received blocks are in memory while a rank computes, or a tensor is (T, T) "
        "or (t, T). Keep no list of blocks and no buffer of the whole sequence, and make the "
        "(t, t) mask of one block from the positions of its queries and keys.",
        [
            g.patch(COMPUTE, f"        kept = [arriving] + (kept if step else [])\n{COMPUTE}"),
            g.patch(
                LATER,
                "torch.ones(num_tokens, num_tokens).triu(1).bool()"
                ".split(sizes)[rank].split(sizes, 1)[source]",
            ),
        ],
        over_budget=lambda s: any(e.what == "grows" for seen in s.ranks for e in seen.notes),
    ),
]

GRADER = g.OnRanks(
    functions=("ring_attention",),
    cases=cases,
    right=right,
    same=same,
    call=call,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("isend", "irecv", "send", "recv"),
    world_sizes=(4, 3, 2, 1),  # with fewer than 4, all blocks are hardly more than a rank may have
    closed=("labkit.context_parallel",),
    watch_memory=True,
    shown="each rank's output is that of causal attention over the whole sequence; blocks travel "
    "while the rank computes, at most two received ones are in memory, masked ones are left out",
)
