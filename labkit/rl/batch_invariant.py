"""A GPT whose numbers for a row do not depend on the batch, the padding or the number of ranks.

A BLAS library chooses its kernel by the shape of a product. Kernels add in different orders, so one
row times one matrix gives other bits beside 3 rows than beside 300. A generator computes one token
of 8 sequences in a pass, a trainer all tokens of 64. Their log-probabilities of the same token then
differ in float32, and the policy that is trained is not the policy that sampled.

Here every product has one shape, whatever the batch:

    x_nD                 rows cut into tiles of 16, the last one filled with zeros
    w_FD                 cut into 4 blocks, by rows (query, key, value, up) or columns (out, down)
    tile @ block         one (16, D) x (D, F/4) or (16, D/4) x (D/4, F) product for each pair
    width                filled with zeros to a multiple of 16 columns

    columns of w cut     y = (p0 + p1) + (p2 + p3), always in this order
    on 2 ranks           rank 0 adds p0 + p1, rank 1 adds p2 + p3, both gather and add the two
    on 4 ranks           each has one of the four, all gather, and add in the same order

    attention            16 queries against all `context` keys of a head; a mask hides later ones

A row of a tile is computed like every other row of it, and a zero weight adds exactly nothing. (In
products of 5, 6, 7 or 9 columns MKL adds rows of one tile in two orders; hence the width.) So the
bits of a row follow from that row alone. Norms, GELU, softmax and sums of two tensors work row
by row or number by number in torch already. Backward uses plain products: only forward is compared.

It costs unused rows where a batch does not fill its tiles, keys that the mask hides, and 4 products
instead of one; examples/rl.py measures it.

Layout: a rank of t (1, 2 or 4) holds 4/t neighbouring blocks of each cut weight, and all of the
embedding, norms and head. Wire of a pass of n tokens: two all-gathers of n D numbers in each layer.
Papers: He and Thinking Machines Lab, "Defeating nondeterminism in LLM inference", 2025; Zhang et
al., "Deterministic inference across tensor parallel sizes", arXiv:2511.17826 (the tree of sums).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.comm import Group
from labkit.tensor_parallel.linear import Sharding, even_sharding

NUM_BLOCKS = 4
"""Blocks of a cut weight: the largest number of ranks that can share a product."""
ROWS = 16
"""Rows of a tile, and the multiple of columns."""


def _tiled(x: Tensor, dim: int) -> Tensor:
    """Return a copy with zeros at the end of a dim, to a multiple of ROWS, at least one."""
    shape = list(x.shape)
    shape[dim] = max(1, -(-shape[dim] // ROWS)) * ROWS
    filled = x.new_zeros(shape)
    filled.narrow(dim, 0, x.shape[dim]).copy_(x)
    return filled


def tree_sum(parts: Sequence[Tensor]) -> Tensor:
    """Add 1, 2 or 4 tensors in pairs, and the sums in pairs."""
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


class Blocks(NamedTuple):
    """The blocks of a weight on this rank."""

    dim: int
    """The cut dim: 0, rows of the weight (output features), or 1, its columns."""
    lengths: list[int]
    longest: int
    """The longest block of all ranks: the length in every product."""


def tiled_product(x_nD: Tensor, w_FD: Tensor, blocks: Blocks | None = None) -> Tensor:
    """Return y_nF = x w^T in tiles and blocks. blocks: None for one block."""
    dim, lengths, longest = blocks or Blocks(0, [len(w_FD)], len(w_FD))
    tiles_ZTD = _tiled(x_nD, 0).unflatten(0, (-1, ROWS))
    # Memory of their own: a library may look at addresses, too. C: blocks.
    if dim == 0:
        w_CFD = _tiled(_filled(w_FD.split(lengths), longest), 1)
        weights, tiles = w_CFD.transpose(1, 2).contiguous(), [tiles_ZTD] * len(lengths)
    else:
        weights = _tiled(_filled(w_FD.t().split(lengths), longest), 2)
        parts = tiles_ZTD.split(lengths, 2)
        tiles = [F.pad(x_ZTd, (0, longest - x_ZTd.shape[2])).contiguous() for x_ZTd in parts]
    y = [torch.bmm(x, w.expand(len(x), -1, -1)) for x, w in zip(tiles, weights, strict=True)]
    y_ZTF = tree_sum(y) if dim else torch.cat([a[..., :n] for a, n in zip(y, lengths)], 2)
    return y_ZTF.flatten(0, 1)[: len(x_nD), : len(w_FD)]


def _filled(parts: Sequence[Tensor], length: int) -> Tensor:
    """Return the parts in one tensor, each with zeros at its end up to this length."""
    filled = parts[0].new_zeros(len(parts), length, *parts[0].shape[1:])
    for into, part in zip(filled, parts, strict=True):
        into[: len(part)] = part
    return filled


class _TiledProduct(torch.autograd.Function):
    """A tiled product forward, plain products backward."""

    @staticmethod
    def forward(ctx: Any, x_nD: Tensor, w_FD: Tensor, blocks: Blocks | None) -> Tensor:
        ctx.save_for_backward(x_nD, w_FD)
        return tiled_product(x_nD, w_FD, blocks)

    @staticmethod
    def backward(ctx: Any, grad_nF: Tensor) -> Any:
        x_nD, w_FD = ctx.saved_tensors
        return grad_nF @ w_FD, grad_nF.t() @ x_nD, None


class InvariantLinear(nn.Linear):
    """A linear layer without a bias, in tiles and blocks. On a rank of a group, its share of one.

    dim: of the weight that is cut, 0 for its rows (output features) or 1 for its columns; None: the
    weight is one block, whole on every rank. unit: features that stay together, such as a head's.
    """

    def __init__(
        self, num_in: int, num_out: int, dim: int | None, unit: int = 1, group: Group | None = None
    ) -> None:
        self.group = group if group is not None and group.size > 1 else None
        self.shardings: dict[str, Sharding] = {}
        self.blocks: Blocks | None = None
        size = [num_out, num_in]
        if dim is not None:
            units = even_sharding(size[dim] // unit, dim, NUM_BLOCKS).ranges
            of_ranks = even_sharding(NUM_BLOCKS, 0, group.size if group else 1).ranges
            mine = of_ranks[group.rank if group else 0]
            lengths = [unit * len(part) for part in units]
            self.blocks = Blocks(dim, lengths[mine.start : mine.stop], max(lengths))
            size[dim] = sum(self.blocks.lengths)
            if self.group is not None:
                ends = [0, *(unit * part.stop for part in units)]
                ranges = tuple(range(ends[of.start], ends[of.stop]) for of in of_ranks)
                self.shardings = {"weight": Sharding(dim, ranges)}
        super().__init__(size[1], size[0], bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., F) for x (..., D). Wire: if columns are cut over ranks, an all-gather."""
        x_nD = x.reshape(-1, x.shape[-1])
        y_nF: Tensor = _TiledProduct.apply(x_nD, self.weight, self.blocks)
        if self.group is not None and self.blocks is not None and self.blocks.dim == 1:
            y_nF = tree_sum(self.group.all_gather(y_nF[None]).unbind())
        return y_nF.unflatten(0, x.shape[:-1])


def attention(q_XtK: Tensor, k_XsK: Tensor, v_XsK: Tensor, places_Xt: Tensor, keys: int) -> Tensor:
    """Return y_XtK: each query attends to the keys up to its place.

    X: pairs of a sequence and a head. places_Xt: the query's position, which is that of its own
    key. keys: the number of keys in every product, at least s; those that are missing are zeros.
    ValueError: there are more keys.
    """
    (_, num_queries, K), num_keys = q_XtK.shape, k_XsK.shape[1]
    if num_keys > keys:
        raise ValueError(
            f"{num_keys} tokens in a sequence, and attention computes {keys} keys: end sequences "
            "before, or raise the context"
        )
    q_XTK, places_XT = _tiled(q_XtK * K**-0.5, 1), _tiled(places_Xt, 1)
    tiles = q_XTK.shape[1] // ROWS
    k_XsK, v_XsK = (F.pad(x, (0, 0, 0, keys - num_keys)) for x in (k_XsK, v_XsK))
    # Y: the tiles of all pairs. Z: keys or features, filled to whole tiles.
    k_XKZ, v_XsZ = _tiled(k_XsK, 1).transpose(1, 2).contiguous(), _tiled(v_XsK, 2)
    k_YKZ, v_YsZ = (x[:, None].expand(-1, tiles, -1, -1).flatten(0, 1) for x in (k_XKZ, v_XsZ))
    scores_YTs = torch.bmm(q_XTK.view(-1, ROWS, K), k_YKZ)[..., :keys]
    is_later_YTs = torch.arange(keys, device=q_XtK.device) > places_XT.view(-1, ROWS, 1)
    weights_YTs = scores_YTs.masked_fill(is_later_YTs, float("-inf")).softmax(-1)
    y_XTZ = torch.bmm(weights_YTs, v_YsZ).unflatten(0, (-1, tiles)).flatten(1, 2)
    return y_XTZ[:, :num_queries, :K]
