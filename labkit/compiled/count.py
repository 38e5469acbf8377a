"""The collectives that torch itself performs, counted: of fully_shard, DTensor or a compiled graph.

    with CountCollectives() as counted:
        loss(model, batch).backward()
    counted.nbytes["all_gather"], counted.calls["reduce_scatter"]

labkit's own strategies go through a Group, whose journal has more (Run.traffic). torch's do not.
gloo performs a reduce-scatter of fully_shard as an all-reduce. Here it counts as a reduce-scatter,
as nccl would send it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_KINDS = {
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
}


class CountCollectives(TorchDispatchMode):
    """A context that counts torch's own all-gathers, reduce-scatters and all-reduces."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[str, int, torch.dtype, int]] = []
        """Kind, numbers of the whole tensor, dtype, ranks that share it, in order of the calls."""

    @property
    def calls(self) -> Counter[str]:
        """Calls by kind."""
        return Counter(kind for kind, *_ in self.order)

    @property
    def nbytes(self) -> Counter[str]:
        """Bytes of the whole tensors by kind. A ring sends (n-1)/n of them."""
        total: Counter[str] = Counter()
        for kind, numel, dtype, _ in self.order:
            total[kind] += numel * dtype.itemsize
        return total

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Perform an operation, and note it if it is a collective."""
        result = op(*args, **(kwargs or {}))
        is_collective = op.namespace in ("c10d", "_c10d_functional")
        kind = _KINDS.get(op.overloadpacket.__name__) if is_collective else None
        if kind is not None:
            found = [x for x in tree_leaves((args, result)) if isinstance(x, Tensor)]
            sizes = [x.numel() for x in found]
            self.order.append((kind, max(sizes), found[0].dtype, max(sizes) // min(sizes)))
        return result
