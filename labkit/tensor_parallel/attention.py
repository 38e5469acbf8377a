"""The two halves of a block: each is a column layer, a rank-local function and a row layer.

    x -> query, key, value (column) -> attention over this rank's heads -> out (row)
    x -> up (column) -> GELU -> down (row)

Heads are independent until `out` mixes them, and features of the MLP until `down`.

Each rank has a block of H/n query heads. With grouped-query attention (G key-value heads, each for
H/G query heads) a rank needs only the key-value heads of its query heads:

    G = 4, n = 2    rank 0: kv heads 0, 1                  rank 1: 2, 3
    G = 2, n = 4    rank 0 and 1: kv head 0, both whole    rank 2 and 3: 1      copies of n/G ranks

Copies get gradients from different query heads; the head's gradient is their sum. vLLM copies heads
in the same way for inference. Megatron-LM refuses more ranks than key-value heads. Newer versions
cut the heads instead, and gather keys and values: no copies, but activations to send.

Layout: query_fD, key_fD, value_fD, up_fD are Shard(0), out_Df and down_Df Shard(1).
Wire, for B*T*D numbers each: forward one sum (g), backward one sum (f); see activation_layout.py.
Papers: Megatron-LM, arXiv:1909.08053, section 3; Ainslie et al., "GQA", arXiv:2305.13245.
"""

from __future__ import annotations

from math import gcd

from torch import Tensor, nn
from torch.nn import functional as F

from labkit import arguments
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.model import MLP, Attention, attend
from labkit.tensor_parallel.activation_layout import ActivationLayout, Replicated
from labkit.tensor_parallel.fused import column_linear, row_linear
from labkit.tensor_parallel.gradients import summed_over
from labkit.tensor_parallel.linear import ShardedWeight, even_sharding, head_sharding


class ParallelAttention(nn.Module):
    """Causal self-attention. Each rank holds a share of the heads.

    ValueError if the ranks cannot share the heads evenly; it lists the numbers of ranks that can.
    With more ranks than key-value heads, ranks hold copies, whose gradients backward adds up.
    """

    def __init__(
        self, attention: Attention, group: Group | None, copies: Group | None = None
    ) -> None:
        """attention: the whole module, the same on every rank; this rank's share is copied from it.

        copies: the group of ranks with this rank's key-value heads, from `copies_of`. None: call
        `copies_of` here, so that every rank of `group` must construct this together.
        """
        super().__init__()
        group = chosen(group)
        self.head_dim, self.rotary = attention.head_dim, attention.rotary
        num_heads = attention.query.out_features // self.head_dim
        num_kv_heads = attention.key.out_features // self.head_dim
        shares = HeadShares(num_heads, num_kv_heads, group.size)
        ranks = range(group.size)
        of_queries = [shares.queries(rank) for rank in ranks]
        query_sharding = head_sharding(of_queries, self.head_dim, 0)
        out_sharding = head_sharding(of_queries, self.head_dim, 1)
        of_keys = head_sharding([shares.keys(rank) for rank in ranks], self.head_dim, 0)
        self.group, self.copies = group, copies or copies_of(num_heads, num_kv_heads, group)
        self.query = ShardedWeight(attention.query.weight, query_sharding, group)
        self.key = ShardedWeight(attention.key.weight, of_keys, group)
        self.value = ShardedWeight(attention.value.weight, of_keys, group)
        self.out = ShardedWeight(attention.out.weight, out_sharding, group)

    def forward(self, x: Tensor, layout: ActivationLayout | None = None) -> Tensor:
        """x and the result in this layout; None: replicated, x_BTD."""
        layout = layout or Replicated(self.group)
        key: Tensor
        value: Tensor
        key, value = self.key.weight, self.value.weight
        if self.copies is not None:
            key, value = summed_over(self.copies, key, value)
        q_BTf, k_BTf, v_BTf = column_linear(x, layout, self.query.weight, key, value)
        y_BTf = attend(q_BTf, k_BTf, v_BTf, self.head_dim, self.rotary)
        return row_linear(y_BTf, layout, self.out.weight)


class ParallelMLP(nn.Module):
    """The MLP, x -> x. Each rank holds a share of the F features; n need not divide F."""

    def __init__(self, mlp: MLP, group: Group | None) -> None:
        """mlp: the whole module, the same on every rank; this rank's share is copied from it.

        `group`: None for torch.distributed's default one.
        """
        super().__init__()
        self.group = group = chosen(group)
        ffn = mlp.up.out_features
        self.up = ShardedWeight(mlp.up.weight, even_sharding(ffn, 0, group.size), group)
        self.down = ShardedWeight(mlp.down.weight, even_sharding(ffn, 1, group.size), group)

    def forward(self, x: Tensor, layout: ActivationLayout | None = None) -> Tensor:
        """x and the result in this layout; None: replicated, x_BTD."""
        layout = layout or Replicated(self.group)
        (y_BTf,) = column_linear(x, layout, self.up.weight)
        return row_linear(F.gelu(y_BTf), layout, self.down.weight)


class HeadShares:
    """The heads of each rank. ValueError unless n divides H, and G divides n or n divides G."""

    def __init__(self, num_heads: int, num_kv_heads: int, num_ranks: int) -> None:
        H, G, n = self.num_heads, self.num_kv_heads, self.num_ranks = (
            num_heads,
            num_kv_heads,
            num_ranks,
        )
        if n not in (choices := head_choices(H, G)):
            what = f"{H} heads" if H == G else f"{H} heads with {G} key-value heads"
            raise ValueError(
                f"{n} ranks cannot share {what} evenly; these numbers of ranks can: "
                f"{', '.join(map(str, choices))}"
            )

    def queries(self, rank: int) -> range:
        """Return the query heads of a rank."""
        each = self.num_heads // self.num_ranks
        return range(rank * each, (rank + 1) * each)

    def keys(self, rank: int) -> range:
        """Return the key-value heads of a rank: those that its query heads read."""
        heads_per_kv = self.num_heads // self.num_kv_heads
        mine = self.queries(rank)
        return range(mine[0] // heads_per_kv, mine[-1] // heads_per_kv + 1)

    @property
    def num_copies(self) -> int:
        """Number of ranks that hold the same key-value heads."""
        return self.num_ranks // gcd(self.num_ranks, self.num_kv_heads)

    def copies(self, rank: int) -> int:
        """Return the number of a rank's set of copies; consecutive ranks have the same set."""
        return rank // self.num_copies


def head_choices(num_heads: int, num_kv_heads: int) -> list[int]:
    """Return the numbers of ranks that share the heads evenly, see HeadShares."""
    return [
        n for n in arguments.divisors(num_heads) if num_kv_heads % n == 0 or n % num_kv_heads == 0
    ]


def copies_of(num_heads: int, num_kv_heads: int, group: Group) -> Group | None:
    """Return the group of ranks that hold this rank's key-value heads; None if no other does.

    One group serves all layers. ValueError: see HeadShares. Wire: that of Group.split.
    """
    shares = HeadShares(num_heads, num_kv_heads, group.size)
    if shares.num_copies == 1:
        return None
    copies = group.split(shares.copies(group.rank))
    assert isinstance(copies, Group)
    return copies
