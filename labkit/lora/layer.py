"""LoRA: two thin matrices beside each frozen weight, and only these two are trained.

    x_BTI --+-- W_OI, frozen ---------------(+)--> y_BTO     y = W x + s B A x
            |                                |
            +-- A_rI -- h_BTr -- B_Or -- s --+               s = alpha / r

B starts at 0, so that an adapter changes nothing before its first step. r (I + O) numbers are
trained instead of I O. Backward still goes through W to the layers below. It leaves out the
product for W's own gradient.

Several adapters share one base. Each row of a batch names its adapter, or None for the base alone:

    rows                 p  c  -  p  c        W x: one product for all five rows
    grouped by adapter   p  p | c  c          B A x: one product for p's rows, one for c's

Layout: A and B lie whole on every rank, except beside tensor-parallel layers (sharded.py).
Wire: nothing here. DDP reduces r (I + O) numbers for each adapted layer.
Papers: Hu et al., "LoRA", arXiv:2106.09685; Sheng et al., "S-LoRA", arXiv:2311.03285, and Chen et
al., "Punica", arXiv:2310.18547, for rows of several adapters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.serving.quantized import QuantizedLinear


class Adapter(nn.Module):
    """Compute s B A x, the change of a layer's output: x (..., I) to (..., O)."""

    def __init__(self, a_rI: Tensor, b_Or: Tensor, scale: float) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.Parameter(a_rI), nn.Parameter(b_Or), scale

    def forward(self, x: Tensor) -> Tensor:
        """Return the change of the output. A x comes first: B A would have O I numbers."""
        return F.linear(F.linear(x, self.a), self.b) * self.scale

    def product(self) -> Tensor:
        """Return s B A, of the weight's shape (O, I)."""
        return self.scale * (self.b @ self.a)


class LoRALinear(nn.Module):
    """A frozen linear layer, and adapters beside it by name.

    base: nn.Linear, or a QuantizedLinear, whose weight is codes. `use_adapters` says which rows of
    a batch get which adapter.
    """

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.adapters = nn.ModuleDict()
        self.routing: Routing | None = None
        self.merged: str | None = None

    @property
    def weight_shape(self) -> tuple[int, int]:
        """(O, I) of the whole weight."""
        if isinstance(self.base, QuantizedLinear):
            return self.base.out_features, self.base.in_features
        assert isinstance(self.base, nn.Linear)
        return self.base.out_features, self.base.in_features

    def forward(self, x: Tensor) -> Tensor:
        """Return W x and the adapters' changes. RuntimeError for a batch of another length than
        the rows that `use_adapters` was given."""
        return self.with_changes(self.base(x), x)

    def with_changes(self, y: Tensor, x: Tensor) -> Tensor:
        """Add s B A x of each row's adapter to y = W x."""
        if self.routing is None or self.merged is not None:
            return y
        if (name := self.routing.for_all) is not None:
            return y + self.adapters[name](x)
        order_n, counts = self.routing.grouped(len(x))
        order_n = order_n.to(x.device)
        parts = x.index_select(0, order_n).split(list(counts.values()))
        changes = [
            self.adapters[name](part)
            for name, part in zip(counts, parts, strict=True)
            # With no rows its gradient is zeros: ranks of DDP then reduce the same parameters.
            if len(part) or torch.is_grad_enabled()
        ]
        return y.index_add(0, order_n, torch.cat(changes)) if changes else y

    def add(self, name: str, a_rI: Tensor, b_Or: Tensor, scale: float) -> None:
        """Put an adapter beside the weight; the tensors are of the whole layer."""
        self.adapters[name] = Adapter(a_rI, b_Or, scale)


class Routing:
    """The adapter of each row of a batch, for one layer."""

    def __init__(self, rows: str | Sequence[str | None], names: Iterable[str]) -> None:
        """rows: a name for all rows, or one for each. names: the adapters that the layer has."""
        self.for_all = rows if isinstance(rows, str) else None
        self._num_rows = len(rows)
        indices: dict[str | None, list[int]] = {name: [] for name in names}
        for index, name in enumerate([] if self.for_all else rows):
            if name in indices:
                indices[name].append(index)
        self._order_n = torch.tensor([i for each in indices.values() for i in each])
        self._order_n = self._order_n.long()  # an empty list makes float32
        self._counts = {name: len(indices[name]) for name in names}

    def grouped(self, num_rows: int) -> tuple[Tensor, dict[str, int]]:
        """Return the rows that have an adapter, grouped by it, and how many each adapter has."""
        if num_rows != self._num_rows:
            raise RuntimeError(
                f"the batch has {num_rows} rows, and use_adapters was given {self._num_rows}; call "
                "use_adapters with a name for each row of this batch"
            )
        return self._order_n, self._counts
