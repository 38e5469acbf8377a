"""The two halves of a block, each a column layer, something rank-local, and a row layer.

    x -> query, key, value (column) -> attention over this rank's heads -> out (row)
    x -> up (column) -> GELU -> down (row)

Heads do not talk to each other until `out` mixes them, and features of the MLP not until `down`.
Layout: query_fD, key_fD, value_fD, up_fD are Shard(0), out_Df and down_Df Shard(1).
Wire, for B*T*D numbers each: forward one sum (g), backward one sum (f); see activation_layout.py.
Paper: Megatron-LM, arXiv:1909.08053, section 3.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from labkit import arguments
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.model import MLP, Attention, attend
from labkit.tensor_parallel.activation_layout import ActivationLayout, Replicated
from labkit.tensor_parallel.cut import ShardedWeight, even_cut, head_cut
from labkit.tensor_parallel.fused import column_linear, row_linear
from labkit.tensor_parallel.gradients_tp import summed_over
from labkit.tensor_parallel.heads import HeadShares


class ParallelMLP(nn.Module):
    """x -> x through F features, of which each rank holds a share. F need not divide by n."""

    def __init__(self, mlp: MLP, group: Group | None) -> None:
        """mlp: the whole one, the same on every rank; the shares are copies.

        `group`: None for torch.distributed's default one. TypeError for another module.
        """
        super().__init__()
        arguments.instance("mlp", mlp, MLP, "give the MLP of a block of labkit.model.GPT")
        self.group = group = chosen(group)
        ffn = mlp.up.out_features
        self.up = ShardedWeight(mlp.up.weight, even_cut(ffn, 0, group.size), group)
        self.down = ShardedWeight(mlp.down.weight, even_cut(ffn, 1, group.size), group)

    def forward(self, x: Tensor, layout: ActivationLayout | None = None) -> Tensor:
        """x and the result in this layout; None: replicated, x_BTD."""
        layout = layout or Replicated(self.group)
        (y_BTf,) = column_linear(x, layout, self.up.weight)
        return row_linear(F.gelu(y_BTf), layout, self.down.weight)


class ParallelAttention(nn.Module):
    """Causal self-attention, of whose heads each rank holds a share.

    ValueError where the ranks cannot share the heads evenly: it names the numbers that can. With
    more ranks than key-value heads, ranks hold copies, whose gradients are added up in backward.
    """

    def __init__(
        self, attention: Attention, group: Group | None, copies: Group | None = None
    ) -> None:
        """attention: the whole one, the same on every rank; the shares are copies.

        copies: the ranks that hold this rank's key-value heads, as `copies_of` finds them, which
        every rank of `group` calls; None: it is called here. TypeError for another module.
        """
        super().__init__()
        instead = "give the attention of a block of labkit.model.GPT"
        arguments.instance("attention", attention, Attention, instead)
        group = chosen(group)
        self.head_dim, self.rotary = attention.head_dim, attention.rotary
        num_heads = attention.query.out_features // self.head_dim
        num_kv_heads = attention.key.out_features // self.head_dim
        shares = HeadShares(num_heads, num_kv_heads, group.size)
        ranks = range(group.size)
        of_queries = [shares.queries(rank) for rank in ranks]
        query_cut = head_cut(of_queries, self.head_dim, 0)
        out_cut = head_cut(of_queries, self.head_dim, 1)
        of_keys = head_cut([shares.keys(rank) for rank in ranks], self.head_dim, 0)
        self.group, self.copies = group, copies or copies_of(num_heads, num_kv_heads, group)
        self.query = ShardedWeight(attention.query.weight, query_cut, group)
        self.key = ShardedWeight(attention.key.weight, of_keys, group)
        self.value = ShardedWeight(attention.value.weight, of_keys, group)
        self.out = ShardedWeight(attention.out.weight, out_cut, group)

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


def copies_of(num_heads: int, num_kv_heads: int, group: Group) -> Group | None:
    """The ranks that hold this rank's key-value heads; None where no other does.

    One group serves all layers. ValueError: see HeadShares. Wire: that of Group.split.
    """
    shares = HeadShares(num_heads, num_kv_heads, group.size)
    if shares.num_copies == 1:
        return None
    copies = group.split(shares.copies(group.rank))
    assert isinstance(copies, Group)
    return copies
