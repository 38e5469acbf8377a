"""Two linear layers whose weights are cut over the ranks, and need no word between them.

    y_BTf = x_BTD w_fD^T     ColumnLinear: a rank holds some rows of w_FD, that is, some of the
                             features that come out (columns of the paper's A = w^T)
    z_BTD = y_BTf w_Df^T     RowLinear: a rank holds the columns of w_DF that belong to its features
                             y_BTf, and computes a part of the sum over f; the parts are added up

What a column layer puts out, cut by features, is what a row layer takes in, and anything that works
feature by feature (GELU) fits in between. In the other order, a row layer's sum would have to be
completed, and a column layer's features gathered: twice the talk.

F need not divide by n: shares differ by one feature, as torch.tensor_split cuts.

Wire, for B*T*D numbers (Replicated; SequenceSharded sends as much, by two halves):
    ColumnLinear    forward nothing, backward one all-reduce of x's gradient (f)
    RowLinear       forward one all-reduce of the output, backward nothing (g)
Paper: Megatron-LM, arXiv:1909.08053, section 3.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from labkit import arguments
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.tensor_parallel.activation_layout import Replicated, enter, leave
from labkit.tensor_parallel.cut import REPLICATED, even_cut
from labkit.tensor_parallel.fused import require_fitting


class ColumnLinear(nn.Module):
    """x (..., D), whole on every rank -> y (..., f), this rank's features of x W^T + bias.

    Holds w_fD, and of the bias its own features. `linear`: the whole layer, of which this rank's
    share is copied. Every rank passes the same, of one seed or broadcast; this is not checked.
    Shard(0) of both.
    """

    def __init__(self, linear: nn.Linear, group: Group | None = None) -> None:
        super().__init__()
        _require_whole(linear)
        self.group = chosen(group)
        cut = even_cut(linear.out_features, 0, self.group.size)
        self.cuts = {"weight": cut, "bias": cut}
        self.weight = cut.parameter(linear.weight, self.group.rank)
        self.bias = None if linear.bias is None else cut.parameter(linear.bias, self.group.rank)

    def forward(self, x: Tensor) -> Tensor:
        """This rank's features. Wire: nothing; in backward one all-reduce of x's gradient.

        ValueError for x with other features than the whole layer takes.
        """
        require_fitting("x", x, self.weight, "all features; gather_features joins the ranks'")
        return F.linear(enter(x, Replicated(self.group)), self.weight, self.bias)


class RowLinear(nn.Module):
    """y (..., f), this rank's features -> z (..., D), whole on every rank: y W^T + bias.

    Holds w_Df, Shard(1), and the whole bias, which is added once, to the complete sum. `linear`: as
    for ColumnLinear.
    """

    def __init__(self, linear: nn.Linear, group: Group | None = None) -> None:
        super().__init__()
        _require_whole(linear)
        self.group = chosen(group)
        cut, rank = even_cut(linear.in_features, 1, self.group.size), self.group.rank
        self.cuts = {"weight": cut}
        self.weight = cut.parameter(linear.weight, rank)
        self.bias = None if linear.bias is None else REPLICATED.parameter(linear.bias, rank)

    def forward(self, y: Tensor) -> Tensor:
        """The whole output. Wire: one all-reduce of it; in backward nothing.

        ValueError for y with other features than this rank's.
        """
        instead = "this rank's features: a column layer's output, or what share_features cuts out"
        require_fitting("y", y, self.weight, instead)
        z = leave(F.linear(y, self.weight), Replicated(self.group))
        return z if self.bias is None else z + self.bias


def _require_whole(linear: nn.Linear) -> None:
    instead = "give the whole torch.nn.Linear, of which each rank's share is copied"
    arguments.instance("linear", linear, nn.Linear, instead)
