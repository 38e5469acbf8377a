"""The tokens of a sequence that each rank holds, and checks of a rank's queries, keys and values.

    8 tokens, 2 ranks      rank 0           rank 1
    contiguous             0 1 2 3          4 5 6 7
    zigzag                 0 1 6 7          2 3 4 5        of four segments 0 and 3, and 1 and 2

Under a causal mask a late token attends to more keys than an early one. With contiguous shards the
last rank of n computes 2n - 1 times as much as the first, and the other ranks wait for it. Zigzag
cuts the sequence into 2n segments and gives rank r an early one, r, and a late one, 2n - 1 - r:
equal work. Sizes are those of torch.tensor_split, so any length is allowed, and segments may be
empty.

Placements are functions: placement(num_tokens, size, rank) -> the positions, as ranges of step 1.
Papers: Liu et al., "Ring Attention with Blockwise Transformers", arXiv:2310.01889 (contiguous);
Grattafiori et al., "The Llama 3 Herd of Models", arXiv:2407.21783, section 3.3.2 (zigzag).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit import arguments
from labkit.collectives import autograd
from labkit.comm import Group, tensor_arguments
from labkit.comm.group import chosen

Segments = tuple[range, ...]
Placement = Callable[[int, int, int], Segments]


def contiguous(num_tokens: int, size: int, rank: int) -> Segments:
    """Return one of n segments, the r-th for rank r."""
    return (_segment(num_tokens, size, rank),)


def zigzag(num_tokens: int, size: int, rank: int) -> Segments:
    """Return two of 2n segments, for rank r the r-th and the r-th from the end."""
    early, late = rank, 2 * size - 1 - rank
    return _segment(num_tokens, 2 * size, early), _segment(num_tokens, 2 * size, late)


def _segment(num_tokens: int, num_segments: int, number: int) -> range:
    """Cut as tensor_split does: the first num_tokens % num_segments are one token longer."""
    shortest, num_longer = divmod(num_tokens, num_segments)
    start = number * shortest + min(number, num_longer)
    return range(start, start + shortest + (number < num_longer))


@dataclass(frozen=True)
class SequenceSharding:
    """How a sequence of `num_tokens` is sharded over `size` ranks."""

    num_tokens: int
    size: int
    placement: Placement

    @property
    def placement_name(self) -> str:
        """Name of the placement, for labels: messages of different placements then do not match."""
        return getattr(self.placement, "__name__", repr(self.placement))

    def label(self, what: str, causal: bool) -> str:
        """Return a message's label. Messages of different attentions do not match."""
        return f"{what}, {'causal' if causal else 'no mask'}, {self.placement_name}"

    def segments(self, rank: int) -> Segments:
        """Return the positions that a rank holds, in the order in which it holds them."""
        return self.placement(self.num_tokens, self.size, rank)

    def length(self, rank: int) -> int:
        """Return how many tokens a rank holds."""
        return sum(map(len, self.segments(rank)))

    @property
    def lengths(self) -> list[int]:
        """Return how many tokens each rank holds."""
        return [self.length(rank) for rank in range(self.size)]

    def positions(self, rank: int) -> Tensor:
        """Return the positions that a rank holds, (length(rank),) of int64."""
        return torch.cat([torch.arange(each.start, each.stop) for each in self.segments(rank)])

    @property
    def places(self) -> Tensor:
        """Return each token's index in the shards joined in rank order: (num_tokens,)."""
        return torch.cat([self.positions(rank) for rank in range(self.size)]).argsort()


def sharding_of(
    group: Group, num_own: int, placement: Placement, num_tokens: int | None
) -> SequenceSharding:
    """Return the sharding of the sequence of which this rank holds `num_own` tokens.

    num_tokens: of the whole sequence; None if all ranks hold equally many. ValueError for a shard
    of another length than the placement gives this rank.
    """
    if num_tokens is None:
        num_tokens = group.size * num_own
    sharding = SequenceSharding(num_tokens, group.size, placement)
    if sharding.length(group.rank) != num_own:
        raise ValueError(
            f"rank {group.rank} of {group.size} holds {sharding.length(group.rank)} of "
            f"{num_tokens} tokens, but its shard has {num_own}; cut with shard_sequence, and pass "
            "num_tokens= of the whole sequence if ranks hold unequal numbers"
        )
    return sharding


def shard_sequence(
    x: Tensor, group: Group | None = None, placement: Placement = contiguous, dim: int = 1
) -> Tensor:
    """Return this rank's tokens of a whole sequence that every rank has.

    x: any shape, tokens along `dim`. Only the size of that dim changes. The result is a view of x
    for one segment, and a copy for two. Wire: nothing. Gradients flow to this rank's x, at its own
    tokens.
    """
    group = chosen(group)
    dim = _checked_dim(x, dim)
    segments = placement(x.shape[dim], group.size, group.rank)
    parts = [x.narrow(dim, each.start, len(each)) for each in segments]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def gather_sequence(
    x: Tensor,
    group: Group | None = None,
    placement: Placement = contiguous,
    dim: int = 1,
    *,
    num_tokens: int | None = None,
) -> Tensor:
    """Return the whole sequence on every rank, in order, from each rank's shard.

    x: any shape, this rank's tokens along `dim`. num_tokens: of the whole sequence; None if all
    ranks hold equally many. In backward each rank gets, for its tokens, the sum over the ranks.
    Wire: forward, the shard to each other rank: n - 1 times its bytes; backward, the gradients of
    the other ranks' tokens, each to its owner. Errors: see `sharding_of`.
    """
    group = chosen(group)
    dim = _checked_dim(x, dim)
    sharding = sharding_of(group, x.shape[dim], placement, num_tokens)
    # An all-to-all: all-gather needs shards of one length. Backward of `expand` sums the n copies.
    rows = x.movedim(dim, 0)
    copies = rows.expand(group.size, *rows.shape).flatten(0, 1)
    whole = autograd.all_to_all(
        copies, group, send_splits=[len(rows)] * group.size, recv_splits=sharding.lengths
    )
    if placement is not contiguous:
        whole = whole.index_select(0, sharding.places.to(x.device))
    return whole.movedim(0, dim)


def _checked_dim(x: Tensor, dim: int) -> int:
    """Return the dim that counts tokens, from 0."""
    if not -x.dim() <= dim < x.dim():
        raise ValueError(
            f"dim={dim} of a tensor of shape {tuple(x.shape)}; give the dim that counts tokens"
        )
    return dim % x.dim()


def checked_sharding(
    q_BHtK: Tensor,
    k_BGtK: Tensor,
    v_BGtK: Tensor,
    group: Group,
    causal: bool,
    placement: Placement,
    num_tokens: int | None,
) -> SequenceSharding:
    """Check q, k and v, and return the sharding of the sequence whose shards they are.

    TypeError for anything but tensors of one real floating-point dtype. ValueError for shapes that
    do not fit each other, for G heads of keys that do not divide H of queries, and for a shard of
    another length than the placement's.
    """
    tensors = {"q": q_BHtK, "k": k_BGtK, "v": v_BGtK}
    for name, x in tensors.items():
        tensor_arguments.tensor(x, group)
        if x.dim() != 4:
            raise ValueError(
                f"{name} has {x.dim()} dims, not 4: (batch, heads, time, head features); "
                "try x.unflatten(2, (num_heads, -1)).transpose(1, 2)"
            )
        if not x.is_floating_point() or x.dtype != q_BHtK.dtype:
            raise TypeError(
                f"q, k, v are {', '.join(str(each.dtype) for each in tensors.values())}; give one "
                "floating-point dtype, such as torch.bfloat16, to all"
            )
    _require_fitting_shapes(q_BHtK, k_BGtK, v_BGtK)
    return sharding_of(group, q_BHtK.shape[2], placement, num_tokens)


def _require_fitting_shapes(q_BHtK: Tensor, k_BGtK: Tensor, v_BGtK: Tensor) -> None:
    B, H, t, K = q_BHtK.shape
    G = k_BGtK.shape[1]
    if k_BGtK.shape != v_BGtK.shape or k_BGtK.shape != (B, G, t, K):
        raise ValueError(
            f"q {tuple(q_BHtK.shape)}, k {tuple(k_BGtK.shape)}, v {tuple(v_BGtK.shape)}: k and v "
            "must be equal in shape, and differ from q in the number of heads only"
        )
    if not H or not K or G < 1 or H % G:
        choices = ", ".join(map(str, arguments.divisors(H))) if H else "heads of queries first"
        raise ValueError(
            f"{G} heads of keys do not divide {H} heads of queries of {K} features into groups; "
            f"give {choices}"
        )


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums: float32 for 16-bit numbers, otherwise the dtype itself."""
    return torch.promote_types(dtype, torch.float32)
