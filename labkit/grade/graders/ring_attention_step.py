"""Grade ring_attention_step: outputs, messages, their order, what is computed and in memory."""

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.grade.grader import (
    Budget,
    ByRank,
    Case,
    Draw,
    Mistake,
    Observed,
    OnRanks,
    Outcome,
    patch,
    program,
)
from labkit.grade.graders.online_softmax import follow
from labkit.grade.observed import MESSAGES, RECEIVES
from labkit.grade.watched import BrokenRule, learner_site

Tensor = torch.Tensor
HEADS = 2
PRODUCTS = ("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "baddbmm_", "addbmm")
EXPONENTIALS = ("exp", "exp_", "exp2", "exp2_", "_softmax", "_log_softmax", "logsumexp")


def cases(n: int, draw: Draw) -> list[Case]:
    """Equal shards, scores of thousands, unequal shards."""
    even = n * draw.rng.randrange(20, 26)
    uneven = even + (draw.rng.randrange(1, n) if n > 1 else 0)
    return [
        case(f"{even} tokens", n, even, 1.0, draw),
        case(f"{even} tokens, scores of thousands", n, even, 300.0, draw),
        case(f"{uneven} tokens, unequal shards", n, uneven, 1.0, draw),
    ]


def case(label: str, n: int, num_tokens: int, largest: float, draw: Draw) -> Case:
    """Queries, keys and values."""
    q, k, v = draw.same(3, HEADS, num_tokens, draw.rng.randrange(5, 9), dtype=torch.float64)
    shards = [ByRank(x.clone() for x in each.tensor_split(n, 1)) for each in (largest * q, k, v)]
    return Case(label, *shards, num_tokens)


class Receiving:
    """A watched group that remembers the memory of its receives."""

    def __init__(self, group: Any) -> None:
        self.group, self.buffers = group, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)

    def irecv(self, buffer: Tensor, src: int) -> Any:
        """As the group's."""
        self.buffers.append(weakref.ref(buffer.untyped_storage()))
        return self.group.irecv(buffer, src)

    def recv(self, buffer: Tensor, src: int) -> Tensor:
        """As the group's."""
        self.buffers.append(weakref.ref(buffer.untyped_storage()))
        return self.group.recv(buffer, src)

    @property
    def received_bytes(self) -> int:
        """Of the memory that is still there."""
        alive = {x._cdata: x.nbytes() for ref in self.buffers if (x := ref()) is not None}
        return sum(alive.values())


class Computing(TorchDispatchMode):
    """Notes what is computed, what has been received by then, and tensors of (t, T)."""

    def __init__(self, watch: Any, group: Receiving, num_tokens: int, block_bytes: int) -> None:
        super().__init__()
        self.watch, self.group, self.num_tokens = watch, group, num_tokens
        self.most_bytes = 2 * block_bytes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in watched.Watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note products of matrices and exponentials before they are computed."""
        name = func.overloadpacket.__name__
        if name in PRODUCTS:
            first, second = [x for x in args if isinstance(x, Tensor)][-2:]
            self.note(2 * first.numel() * (second.shape[-1] if second.dim() > 1 else 1), 0)
        elif name in EXPONENTIALS:
            self.note(0, args[0].numel())
        elif name.startswith("_scaled_dot_product") or name == "_safe_softmax":
            why = "torch's own attention has the answer; write it with torch's other operators"
            raise self.watch.refuse(BrokenRule("calls the answer itself", why, learner_site()))
        result = func(*args, **(kwargs or {}))
        shape = result.shape if isinstance(result, Tensor) and self.group.size > 1 else ()
        if (
            self.num_tokens in shape
            and sum(x >= self.num_tokens // self.group.size for x in shape) > 1
        ):
            self.watch.note("as long as the sequence", list(shape))
        return result

    def note(self, flops: int, exponentials: int) -> None:
        """Add what is computed to the events."""
        if self.group.received_bytes > self.most_bytes:
            gc.collect()
        self.watch.note("computes", (flops, exponentials, self.group.received_bytes))


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """With a group and a mode that note more."""
    group = Receiving(watch.group)
    q, k, v, num_tokens = args
    longest = -(-num_tokens // group.size)
    with Computing(watch, group, num_tokens, 2 * k[:, :1].nbytes * longest):
        return watch.function(*args, group)


def right(q: ByRank, k: ByRank, v: ByRank, num_tokens: int) -> ByRank:
    """The whole sequence at once."""
    return ByRank(attention(q, k, v, torch.ones(num_tokens, num_tokens).tril().bool()))


def attention(q: ByRank, k: ByRank, v: ByRank, mask: Tensor, scale: float = 0.0) -> list[Tensor]:
    """By rank, with a mask of all positions; 0 where nothing is seen."""
    sizes = [x.shape[1] for x in q]
    q, k, v = (torch.cat(each, 1) for each in (q, k, v))
    scores = q @ k.mT * (scale or q.shape[2] ** -0.5)
    weights = scores.masked_fill(~mask, -torch.inf).softmax(2).nan_to_num(0)
    return list((weights @ v).split(sizes, 1))


def same(got: Any, expected: Tensor, case: Case) -> bool:
    """Right but for rounding."""
    if not isinstance(got, Tensor) or (got.shape, got.dtype) != (expected.shape, expected.dtype):
        return False
    return bool(((got - expected).abs() <= tolerance(case)).all())


def tolerance(case: Case) -> float:
    """A score is rounded K times, and n times as blocks are merged."""
    q, k, v = (torch.cat(each, 1).abs() for each in case.args[:3])
    largest = max(1.0, float((q @ k.mT).max()) * q.shape[2] ** -0.5)
    roundings = q.shape[1] + (len(case.args[0]) + q.shape[2]) * largest
    return 2 * torch.finfo(q.dtype).eps * roundings * float(v.max())


def block_bytes(s: Observed, rank: int) -> int:
    """Of a rank's keys and values."""
    return 2 * s.args[1][rank % s.n].nbytes


def budget(s: Observed) -> Budget:
    """n - 1 blocks to the right; 3 blocks and 8 tensors of scores in memory."""
    block, longest = block_bytes(s, 0), s.xs[0].shape[1]
    scores = 8 * HEADS * longest**2
    return Budget(
        sends=2 * (s.n - 1),
        payload_bytes=[sum(block_bytes(s, r - i) for i in range(s.n - 1)) for r in range(s.n)],
        peak_bytes=3 * block + 8 * scores,
    )


class Places:
    """Positions of queries i (T, 1) and keys j (T), and the ranks that have them."""

    def __init__(self, s: Observed) -> None:
        self.n, self.sizes = s.n, torch.tensor([x.shape[1] for x in s.xs])
        self.begins = self.sizes.cumsum(0) - self.sizes
        self.j = torch.arange(s.args[3])
        self.source = torch.arange(s.n).repeat_interleave(self.sizes)
        self.i, self.rank = self.j[:, None], self.source[:, None]
        self.causal, self.step = self.j <= self.i, (self.rank - self.source) % s.n
        self.local = self.j - self.begins[self.source] <= self.i - self.begins[self.rank]

    def claimed(self, block: Tensor) -> Tensor:
        """The mask, if a rank takes a block for that of rank `block`, by step."""
        return self.j - self.begins[self.source] + self.begins[block % self.n] <= self.i


def gives(*masks: Callable[[Places], Tensor]) -> Callable[[Observed], bool]:
    """Whether outputs are wrong, and those of one of these masks."""
    return lambda s: are(s, *(attention(*s.args[:3], mask(Places(s))) for mask in masks))


def are(s: Observed, *choices: Sequence[Tensor]) -> bool:
    """Whether outputs are wrong, and one of these, where NaN, inf and 0 are the same."""
    got, room = [y.nan_to_num(0, 0, 0) for y in s.ys], tolerance(s.case)
    return bool(s.wrong_ranks) and any(
        all(bool(((y - x.nan_to_num(0, 0, 0)).abs() <= room).all()) for y, x in zip(got, each))
        for each in choices
    )


def ring(s: Observed, **rules: Any) -> list[Tensor]:
    """Outputs by rank, block after block as they arrive, by rules of online softmax."""
    q, k, v, _ = s.args
    p = Places(s)
    outputs = []
    for rank in range(s.n):
        heads = []
        for head in range(HEADS):
            blocks = []
            for source in range(rank, -1, -1):
                seen = p.causal[(p.rank == rank)[:, 0]][:, p.source == source]
                blocks.append((k[source][head], v[source][head], seen))
            heads.append(follow(q[rank][head], blocks, q[0].shape[2] ** -0.5, **rules)[0])
        outputs.append(torch.stack(heads))
    return outputs


def merges_wrongly(s: Observed) -> bool:
    """Whether outputs are sums or means of single blocks' softmaxes, or rescaled wrongly."""
    p = Places(s)
    of_blocks = [attention(*s.args[:3], p.causal & (p.source == x)) for x in range(s.n)]
    sums = [sum(each) for each in zip(*of_blocks)]
    rescaled = [ring(s, rescales=each) for each in ((False, False), (True, False), (False, True))]
    divided = [ring(s, divides=each) for each in ("never", "each block", "each, and the end")]
    return are(s, sums, [x / (r + 1) for r, x in enumerate(sums)], *rescaled, *divided)


def transfers(s: Observed, rank: int, kinds: tuple[str, ...], first: int) -> list[list[int]]:
    """Places of the messages of each step among the rank's events; a block is one, or two."""
    events, found = s.ranks[rank].events, []
    left = [i for i, e in enumerate(events) if e.what in kinds]
    for step in range(s.n - 1):
        count = 1 if left and events[left[0]].nbytes >= block_bytes(s, first - step) else 2
        found += [left[:count]] if left[:count] else []
        left = left[count:]
    return found


def waited(s: Observed, rank: int, place: int) -> int:
    """Where the operation at this place was waited for."""
    events = s.ranks[rank].events
    return next(
        (i for i, e in enumerate(events) if e.what == "wait" and e.began == place), len(events)
    )


def computes(s: Observed, rank: int, step: int, begin: int, end: int) -> bool:
    """Whether the rank computes most of a step's block between two places."""
    t, K = s.xs[rank].shape[1:]
    pairs = [HEADS * t * s.xs[rank - i].shape[1] for i in range(rank + 1)]
    pairs[0] = HEADS * t * (t + 1) / 2
    work = [(i, e.value) for i, e in enumerate(s.ranks[rank].events) if e.what == "computes"]
    # Products may be written by elements: then exponentials tell.
    part = int(sum(value[0] for _, value in work) < 2 * K * sum(pairs))
    done = sum(value[part] for i, value in work if begin < i < end)
    return done >= 0.5 * pairs[step] * (1 if part else 4 * K)


def overlaps(s: Observed) -> bool:
    """Whether blocks travel in both directions while the rank computes, in all steps."""
    for rank in range(s.n):
        receives = transfers(s, rank, RECEIVES, rank - 1)
        sends = transfers(s, rank, MESSAGES, rank)
        for step in range(min(rank + 1, s.n - 1)):
            places = sum(receives[step : step + 1] + sends[step : step + 1], [])
            ends = [waited(s, rank, place) for place in places]
            if places and not computes(s, rank, step, max(places), min(ends)):
                return False
    return True


def gathers(s: Observed) -> bool:
    """Whether the last rank has waited for all blocks before it computes with its own."""
    last = transfers(s, s.n - 1, RECEIVES, s.n - 2)[-1:]
    return (
        s.n > 2 and bool(last) and not computes(s, s.n - 1, 0, -1, waited(s, s.n - 1, last[0][0]))
    )


def noted(s: Observed, what: str) -> list[Any]:
    """Values of these notes, of all ranks."""
    return [e.value for seen in s.ranks for e in seen.notes if e.what == what]


def computes_masked(s: Observed) -> bool:
    """Whether a rank computes clearly more products than its own block and earlier ones take."""
    for rank, x in enumerate(s.xs):
        keys = sum(each.shape[1] for each in s.xs[: rank + 1])
        flops = sum(e.value[0] for e in s.ranks[rank].notes if e.what == "computes")
        if flops > 1.75 * 4 * x.numel() * keys:
            return True
    return False


def sends_others(s: Observed) -> bool:
    """Whether a rank sends to others than its right neighbour, or more bytes than its blocks."""
    peers = {(rank, e.peer) for rank in range(s.n) for e in s.messages(rank)}
    most = budget(s).payload_bytes
    is_more = any(s.payload_bytes(rank) > most[rank] for rank in range(s.n))
    return is_more or any(peer != (rank + 1) % s.n for rank, peer in peers)


COMPUTE = "        if source <= rank:"
WAIT = "        for each in under_way:\n            each.wait()\n"
NEW_MAX = "new_Ht1 = torch.maximum(max_Ht1, scores_Hts.amax(2, keepdim=True))"
LATER = "is_later_ts = sum(sizes[:source]) + torch.arange(sizes[source]) > positions_t1"
GATHERS = """
import torch


def ring_attention(q_HtK, k_HtK, v_HtK, num_tokens, group):
    n, rank = group.size, group.rank
    sizes = [len(x) for x in torch.arange(num_tokens).tensor_split(n)]
    blocks = {rank: torch.stack([k_HtK, v_HtK])}
    for step in range(n - 1):
        mine, its = (rank - step) % n, (rank - step - 1) % n
        blocks[its] = torch.empty(2, len(q_HtK), sizes[its], q_HtK.shape[2], dtype=q_HtK.dtype)
        receive = group.irecv(blocks[its], (rank - 1) % n)
        group.isend(blocks[mine], (rank + 1) % n).wait()
        receive.wait()
    k, v = torch.cat([blocks[source] for source in range(rank + 1)], 2)
    scores = q_HtK @ k.mT * q_HtK.shape[2] ** -0.5
    positions = sum(sizes[:rank]) + torch.arange(sizes[rank])[:, None]
    return scores.masked_fill(torch.arange(k.shape[1]) > positions, -torch.inf).softmax(2) @ v
"""

MISTAKES = [
    Mistake(
        "masks by positions within the blocks",
        "Query i of the shard sees keys 0 to i of every block here. Positions count from the start "
        "of the sequence: all keys of an earlier rank's block are seen, none of a later one's.",
        hint=2,
        seen=gives(lambda p: p.local, lambda p: p.local & (p.source <= p.rank)),
        made_by=patch(LATER, "is_later_ts = torch.ones(sizes[rank], sizes[source]).triu(1).bool()"),
    ),
    Mistake(
        "sees the wrong positions",
        "The query at position i sees the positions 0 to i: its own and all earlier ones. It sees "
        "no later one, neither in later blocks nor within its own block.",
        seen=gives(
            lambda p: p.causal | True,
            lambda p: p.source <= p.rank,
            lambda p: p.j < p.i,
            lambda p: (p.j < p.i) & (p.i > p.begins[p.rank]),  # NaN of its own block stays
            lambda p: p.j >= p.i,
            lambda p: torch.where(p.source == p.rank, p.causal, p.source > p.rank),
        ),
        made_by=patch("scores_Hts.masked_fill(is_later_ts, -torch.inf)", "scores_Hts"),
    ),
    Mistake(
        "takes a block for another rank's",
        "Blocks come from the left, so after `step` steps the block in hand is that of rank "
        "(rank - step) % n. Its keys have the positions of that shard.",
        hint=3,
        seen=gives(
            lambda p: p.claimed(p.rank + p.step),
            lambda p: p.claimed(p.rank - p.step - 1),
            lambda p: p.claimed(p.rank - p.step + 1),
            lambda p: p.claimed(p.step),
            lambda p: p.claimed(p.rank),
        ),
        made_by=patch(
            *(COMPUTE, "        claimed = (rank + step) % n\n        if True:"),
            *(LATER, LATER.replace("sizes[:source]", "sizes[:claimed]")),
        ),
    ),
    Mistake(
        "leaves out a block",
        "A rank computes with n blocks: first with its own, then with the n - 1 that arrive. It "
        "sends n - 1 times.",
        hint=2,
        seen=gives(
            lambda p: p.causal & (p.step < p.n - 1),
            lambda p: p.causal & (p.step > 0),
            lambda p: p.causal & (p.step == 0),
        ),
        made_by=patch(COMPUTE, "        if source <= rank and step in range(max(1, n - 1)):"),
    ),
    Mistake(
        "merges blocks with wrong weights",
        "Merge blocks as online softmax does. When the maximum grows, sum and output take the "
        "factor exp(old - new). The division comes at the end.",
        seen=merges_wrongly,
        made_by=patch("o_HtK = o_HtK * rescale_Ht1", "o_HtK = o_HtK"),
    ),
    Mistake(
        "takes another scale",
        "Scores are q . k / sqrt(K), with the K features of a head.",
        seen=lambda s: are(
            s, *(attention(*s.args[:3], Places(s).causal, s.xs[0].shape[2] ** -x) for x in (0, 1))
        ),
        made_by=patch(" * q_HtK.shape[2] ** -0.5", ""),
    ),
    Mistake(
        "makes NaN of a masked block",
        "The last rank sees every block and has no NaN. Other ranks have: all scores of a later "
        "rank's block are -inf, and -inf - -inf is NaN. Leave such blocks out.",
        hint=3,
        seen=lambda s: s.n > 1 and bool(s.ys[0].isnan().all()) and not s.ys[-1].isnan().any(),
        made_by=patch(COMPUTE, "        if True:", NEW_MAX, "new_Ht1 = scores_Hts.amax(2, True)"),
    ),
    Mistake(
        "subtracts no maximum, or one of masked scores",
        "exp of a score of thousands is infinite, and exp(score - a much larger masked score) is "
        "0. Subtract the largest score so far that the query sees.",
        seen=lambda s: (
            float(s.xs[0].abs().max()) > 100 and not all(y.isfinite().all() for y in s.ys)
        ),
        made_by=patch(NEW_MAX, "new_Ht1 = torch.zeros_like(max_Ht1)"),
    ),
    Mistake(
        "receives a block into a buffer of another size",
        "Where n does not divide the sequence, shards differ by one token: the block that arrives "
        "may be longer or shorter than the one in hand. num_tokens and n say how long it is.",
        hint=3,
        outcome=Outcome.HUNG,
        seen=lambda s: s.args[3] % s.n > 0,
        made_by=patch("sizes[(source - 1) % n]", "sizes[rank]"),
    ),
    Mistake(
        "sends other things than n - 1 blocks to the right",
        "All messages go to rank + 1. A block has visited every rank after n - 1 steps; one more "
        "would send it home. Blocks are not padded: num_tokens and n say how long each is.",
        hint=3,
        outcome=Outcome.OVER_BUDGET,
        seen=sends_others,
        made_by=patch("        if step < n - 1:", "        if n > 1:"),
    ),
    Mistake(
        "gathers all blocks before it computes",
        "That is an all-gather: memory grows with the sequence, and the computation waits for all "
        "transfers. Compute with each block while the next one arrives.",
        outcome=Outcome.OVER_BUDGET,
        seen=gathers,
        made_by=program(GATHERS),
    ),
    Mistake(
        "does not compute while blocks travel",
        "In each step, post irecv and isend, compute with the block in hand, and then wait for "
        "both. Otherwise a step takes as long as both together.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: not overlaps(s) and not gathers(s),
        made_by=patch(WAIT, "", COMPUTE, WAIT + COMPUTE),
    ),
    Mistake(
        "computes blocks that are wholly masked",
        "All keys of a later rank's block have weight 0. Pass such blocks on, and leave them out "
        "of the computation.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=computes_masked,
        made_by=patch(COMPUTE, "        if True:"),
    ),
    Mistake(
        "keeps blocks that it is done with",
        "More than two received blocks are in memory while a rank computes. A block that was used "
        "and passed on is not needed: keep no list, and no buffer of the whole sequence.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: (
            not gathers(s)
            and any(value[2] > 2 * block_bytes(s, 0) for value in noted(s, "computes"))
        ),
        made_by=patch(COMPUTE, "        kept = [arriving] + (kept if step else [])\n" + COMPUTE),
    ),
    Mistake(
        "makes a tensor as long as the sequence",
        "A (T, T) or (t, T) tensor, such as a mask of all positions, grows with the sequence. Make "
        "the (t, t) mask of one block from the positions of its queries and keys.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: not gathers(s) and bool(noted(s, "as long as the sequence")),
        made_by=patch(
            LATER,
            "later_TT = torch.ones(num_tokens, num_tokens, dtype=torch.bool).triu(1)\n"
            "            rows_ts = later_TT.split(sizes)[rank]\n"
            "            is_later_ts = rows_ts.split(sizes, 1)[source]",
        ),
    ),
]

GRADER = OnRanks(
    name="ring_attention_step",
    functions=("ring_attention",),
    cases=cases,
    right=right,
    same=same,
    call=call,
    num_arguments=5,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("isend", "irecv", "send", "recv"),
    world_sizes=(4, 3, 2, 1),  # with fewer than 4, all blocks are hardly more than a rank may have
    closed=("labkit.context_parallel",),
    watch_memory=True,
    shown="each rank's output is that of causal attention over the whole sequence; blocks travel "
    "while the rank computes, at most two received ones are in memory, masked ones are left out",
)
