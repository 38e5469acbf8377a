"""LoRA beside ColumnLinear and RowLinear: one half of an adapter is sharded, the other is whole.

                   W             A              B               whole half: gradient
    ColumnLinear   w_fI rows     A_rI whole     b_fr rows       A's, a partial sum on each rank
    RowLinear      w_Of columns  a_rf columns   B_Or whole      B's, a partial sum on each rank

Column: h = A x is the same on every rank, and a rank adds b_f h to its own output features. The
adapter uses the x that has entered the parallel region, so the all-reduce of x's gradient, which
the base needs anyway, carries the adapter's part too. But a rank's gradient of h comes from its own
features only, and so does that of A.

Row: a rank computes a_f y_f, a partial sum of h, and adds B times it to its partial sum of the
output. B is linear, so the all-reduce of the output, which the base needs anyway, adds up the
adapter's change too. A rank's gradient of B comes from its own partial sum of h.

So an adapter adds no collective to forward, and to backward one all-reduce of the whole half's
gradient: r I numbers beside a column layer, r O beside a row layer. No token is in this number.
S-LoRA shards both halves: less memory, but a collective of B T r numbers in forward.

Wire for each adapted layer: 2(n-1)/n of r I or r O numbers per rank and backward pass.
Paper: Sheng et al., "S-LoRA", arXiv:2311.03285, section 6, for the other choice.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.lora.layer import Adapter, LoRALinear
from labkit.model import GPT
from labkit.tensor_parallel import (
    REPLICATED,
    ColumnLinear,
    Replicated,
    RowLinear,
    enter_parallel_region,
    leave_parallel_region,
    summed_over,
)

_COLUMN = ("query", "key", "value", "up")


class ShardedAdapter(Adapter):
    """This rank's half of an adapter, and the other half whole; see the table above."""

    def __init__(
        self, a_rI: Tensor, b_Or: Tensor, scale: float, base: ColumnLinear | RowLinear
    ) -> None:
        """a_rI, b_Or: of the whole layer, the same on every rank."""
        sharding, self.group = base.shardings["weight"], base.group
        self.is_column = isinstance(base, ColumnLinear)
        of_a, of_b = (REPLICATED, sharding) if self.is_column else (sharding, REPLICATED)
        rank = base.group.rank
        super().__init__(of_a.share(a_rI, rank).clone(), of_b.share(b_Or, rank).clone(), scale)
        self.shardings = {"a": of_a, "b": of_b}

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's change. Wire: backward one all-reduce of the whole half's gradient."""
        if self.is_column:
            (a,) = summed_over(self.group, self.a)
            return F.linear(F.linear(x, a), self.b) * self.scale
        (b,) = summed_over(self.group, self.b)
        return F.linear(F.linear(x, self.a), b) * self.scale


class ShardedLoRALinear(LoRALinear):
    """A ColumnLinear or RowLinear and adapters beside it, inside its parallel region."""

    base: ColumnLinear | RowLinear

    @property
    def weight_shape(self) -> tuple[int, int]:
        """(O, I) of the whole weight, over all ranks."""
        num_out, num_in = self.base.shardings["weight"].full_shape(self.base.weight)
        return num_out, num_in

    def forward(self, x: Tensor) -> Tensor:
        """Return what the base returns, with the adapters' changes. Wire: the base's."""
        layout, bias = Replicated(self.base.group), self.base.bias
        if isinstance(self.base, ColumnLinear):
            x = enter_parallel_region(x, layout)
            return self.with_changes(F.linear(x, self.base.weight, bias), x)
        z = self.with_changes(F.linear(x, self.base.weight), x)
        z = leave_parallel_region(z, layout)
        return z if bias is None else z + bias

    def add(self, name: str, a_rI: Tensor, b_Or: Tensor, scale: float) -> None:
        """Put this rank's part of an adapter beside the weight."""
        self.adapters[name] = ShardedAdapter(a_rI, b_Or, scale, self.base)


def shard_linears(model: GPT, group: Group | None = None) -> GPT:
    """Replace the linear layers of a GPT's blocks by ColumnLinear and RowLinear, in place.

    The weights must be the same on every rank. Embedding, norms and head stay whole, and each
    column layer reduces its own gradient of x: tensor_parallel.parallelize joins and shards these.
    ValueError if the ranks cannot share the heads evenly.
    """
    group = chosen(group)
    config = model.config
    if config.num_heads % group.size or config.kv_heads % group.size:
        raise ValueError(
            f"{group.size} ranks cannot share {config.num_heads} heads with {config.kv_heads} "
            "key-value heads evenly; give a number of ranks that divides both"
        )
    for block in model.blocks:
        for module in block.modules():
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear):
                    kind = ColumnLinear if name in _COLUMN else RowLinear
                    setattr(module, name, kind(child, group))
    return model
