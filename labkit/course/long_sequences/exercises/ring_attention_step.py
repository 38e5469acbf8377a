"""Grade ring_attention_step: outputs, messages, what is computed while they travel, and memory."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.grade import grader as g
from labkit.grade.watched import BrokenRule, WatchedGroup, WatchedPending, learner_site

HEADS = 2
PRODUCTS = ("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "baddbmm_", "addbmm")


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Equal shards, scores of thousands, unequal shards."""
    even = n * draw.rng.randrange(20, 26)
    uneven = even + (draw.rng.randrange(1, n) if n > 1 else 0)
    asked = (even, 1, ""), (even, 300, ", scores of thousands"), (uneven, 1, ", unequal shards")
    listed = []
    for num_tokens, largest, what in asked:
        q, k, v = draw.same(3, HEADS, num_tokens, draw.rng.randrange(7, 9), dtype=torch.float64)
        shards = (g.ByRank(map(torch.clone, x.tensor_split(n, 1))) for x in (largest * q, k, v))
        listed.append(g.Case(f"{num_tokens} tokens{what}", *shards, num_tokens))
    return listed


class Receiving(WatchedGroup):
    """Remembers the memory of its receives."""

    def __init__(self, watch: Any) -> None:
        super().__init__(watch, watch.world)
        self.buffers: list[weakref.ref[torch.UntypedStorage]] = []

    def irecv(self, buffer: Tensor, src: int) -> WatchedPending:
        """Post a receive like Group.irecv, and remember its buffer."""
        pending = super().irecv(buffer, src)
        self.buffers.append(weakref.ref(buffer.untyped_storage()))
        return pending

    @property
    def received_bytes(self) -> int:
        """Bytes of received buffers that are still alive."""
        alive = {x._cdata: x.nbytes() for ref in self.buffers if (x := ref()) is not None}
        return sum(alive.values())


class Computing(TorchDispatchMode):
    """Notes products of matrices: whether blocks travel meanwhile, its size, received bytes."""

    def __init__(self, watch: Any) -> None:
        super().__init__()
        self.watch, self.group = watch, Receiving(watch)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in watched.Watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note a product of matrices; refuse torch's own attention."""
        name = func.overloadpacket.__name__
        if name.startswith("_scaled_dot_product") or name == "_safe_softmax":
            why = "torch's own attention has the answer; write it with torch's other operators"
            raise BrokenRule("calls the answer itself", why, learner_site())
        result = func(*args, **(kwargs or {}))
        if name in PRODUCTS:
            first, _ = [x for x in args if isinstance(x, Tensor)][-2:]
            started = [e.what for e in self.watch.events]
            under_way = {started[i] for i in self.watch.pending}
            overlaps = len(under_way) == 2 and started.count("isend") == started.count("irecv")
            size = result.numel() * first.shape[-1]
            what = "overlaps" if overlaps else "computes alone"
            self.watch.note(what, (size, self.group.received_bytes))
        return result


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """With a group and a mode that note more."""
    with Computing(watch) as computing:
        return watch.function(*args, computing.group)


def right(q: g.ByRank, k: g.ByRank, v: g.ByRank, num_tokens: int) -> g.ByRank:
    """Return the whole sequence at once."""
    later = torch.ones(num_tokens, num_tokens).triu(1).bool()
    scores = torch.cat(q, 1) @ torch.cat(k, 1).mT * q[0].shape[2] ** -0.5
    weights = scores.masked_fill(later, -torch.inf).softmax(2)
    return g.ByRank((weights @ torch.cat(v, 1)).tensor_split(len(q), 1))


def budget(s: g.Observed) -> g.Budget:
    """n - 1 blocks to the right; 3 blocks and 8 tensors of scores in memory."""
    blocks = [2 * k.nbytes for k in s.args[1]]
    return g.Budget(
        sends=2 * (s.n - 1),
        payload_bytes=[sum(blocks) - blocks[(rank + 1) % s.n] for rank in range(s.n)],
        peak_bytes=3 * blocks[0] + 8 * 8 * HEADS * s.xs[0].shape[1] ** 2,
    )


def num_keys(s: g.Observed, rank: int, what: str = "") -> float:
    """Return how many keys a rank computes with, per query and head."""
    H, t, K = s.xs[rank].shape
    return sum(e.value[0] for e in s.ranks[rank].notes if what in e.what) / (2 * H * t * K)


def computes_masked(s: g.Observed) -> bool:
    """Return whether a rank computes clearly more than its own block and earlier ones take."""
    seen = [num_keys(s, rank) for rank in range(s.n)]
    return any(k > 1.75 * sum(x.shape[1] for x in s.xs[: r + 1]) for r, k in enumerate(seen))


def waits_first(s: g.Observed) -> bool:
    """Return whether a rank computes while nothing travels, except the last rank on its last
    block."""
    return any(num_keys(s, r, "computes alone") > 0.4 * s.xs[r].shape[1] for r in range(s.n - 1))


def grows(s: g.Observed) -> bool:
    """Return whether more than two blocks are alive, or a tensor is larger than these and (H, t,
    t)."""
    H, t, K = s.xs[0].shape
    two_blocks = 4 * H * t * K
    return s.n > 1 and any(
        seen.largest > max(two_blocks, H * t**2)
        or any(e.value[1] > 8 * two_blocks for e in seen.notes)
        for seen in s.ranks
    )


COMPUTE = "        if source <= rank:"
POSTS = "        if step < n - 1:\n            arriving"
WAITS = "        if step < n - 1:\n            incoming"
WAIT = "            incoming.wait()\n            outgoing.wait()\n"
NEW_MAX = "new_Ht1 = torch.maximum(max_Ht1, scores_Hts.amax(2, keepdim=True))"
OWN_MAX = "new_Ht1 = scores_Hts.amax(2, keepdim=True)"
LATER = "sum(sizes[:source]) + torch.arange(sizes[source]) > positions_t1"
WITHIN = "torch.arange(sizes[source]) > torch.arange(sizes[rank])[:, None]"
MASKED = "scores_Hts.masked_fill(is_later_ts, -torch.inf)"
OUT_RESCALED, OUT = "o_HtK * rescale_Ht1 +", "o_HtK +"
NOT_RESCALED = ("sum_Ht1 * rescale_Ht1 +", "sum_Ht1 +", OUT_RESCALED, OUT)

MISTAKES = [
    g.Mistake(
        "masks the wrong keys",
        "The query at position i sees the positions 0 to i of the sequence, in its own block and "
        "earlier ones. Positions count from the start of the sequence, not of a block. After "
        "`step` steps the block in hand is that of rank (rank - step) % n.",
        [
            g.patch(LATER, WITHIN),
            g.patch(MASKED, "scores_Hts"),
            g.patch(MASKED, "scores_Hts", COMPUTE, "        if True:"),
            g.patch("(rank - step) % n", "(rank + step) % n"),
        ],
        hint=2,
    ),
    g.Mistake(
        "leaves out a block",
        "A rank computes with n blocks: first with its own, then with the n - 1 that arrive. It "
        "sends n - 1 times.",
        g.patch(COMPUTE, f"{COMPUTE[:-1]} and step < max(1, n - 1):"),
        hint=2,
    ),
    g.Mistake(
        "merges blocks with wrong weights",
        "Merge blocks as online softmax does. When the maximum grows, sum and output take the "
        "factor exp(old - new). The division comes at the end.",
        [
            g.patch(OUT_RESCALED, OUT),
            g.patch(*NOT_RESCALED),
            g.patch(*NOT_RESCALED, NEW_MAX, OWN_MAX),
        ],
    ),
    g.Mistake(
        "makes NaN of scores",
        "exp of a score of thousands is infinite: subtract the largest score so far. Where a query "
        "sees no key of a block, that is -inf, and -inf - -inf is NaN: leave later blocks out.",
        [
            g.patch(NEW_MAX, "new_Ht1 = torch.zeros_like(max_Ht1)"),
            g.patch(COMPUTE, "        if True:", NEW_MAX, OWN_MAX),
        ],
        wrong=lambda s: bool(s.ys[0].isnan().any()),  # rank 0 needs no block but its own
        hint=3,
    ),
    g.Mistake(
        "sends other things than n - 1 blocks to the right",
        "All messages go to rank + 1. A block has visited every rank after n - 1 steps; one more "
        "would send it home. Blocks are not padded: num_tokens and n say how long each is.",
        g.patch(
            POSTS,
            "        if n > 1:\n            arriving",
            WAITS,
            "        if n > 1:\n            incoming",
        ),
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
        "both. Otherwise a step takes as long as both together.",
        g.patch(WAIT, "", COMPUTE, f"        if step < n - 1:\n{WAIT}{COMPUTE}"),
        over_budget=lambda s: waits_first(s) and not computes_masked(s),
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
            g.patch(COMPUTE, f"        kept = [block] + (kept if step else [])\n{COMPUTE}"),
            g.patch(
                LATER,
                "torch.ones(num_tokens, num_tokens).triu(1).bool()"
                ".split(sizes)[rank].split(sizes, 1)[source]",
            ),
        ],
        over_budget=grows,
    ),
]

GRADER = g.OnRanks(
    functions=("ring_attention",),
    cases=cases,
    right=right,
    same=g.within(5000),
    call=call,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("isend", "irecv", "send", "recv"),
    world_sizes=(4, 3, 2, 1),  # with fewer than 4, all blocks are hardly more than a rank may have
    closed=("labkit.context_parallel",),
    picture=lambda s: "\n".join(
        f"rank {r}: products with {num_keys(s, r):.0f} keys per query, "
        f"{num_keys(s, r, 'computes alone'):.0f} of them without overlap"
        for r in range(s.n)
    ),
    watch_memory=True,
    shown="each rank's output is that of causal attention over the whole sequence; blocks travel "
    "while the rank computes, at most two received ones are in memory, masked ones are left out",
)
