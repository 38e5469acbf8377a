"""torch.compile with the passes of graph_pass.py, forward and backward.

    model --Dynamo--> graph --AOTAutograd--> joint graph --partition--> forward, backward
                                                              |            |        |
                          gathers are computed again ---------+          passes   passes

Dynamo executes Python with stand-ins for tensors, and writes down the operations. AOTAutograd
traces forward and backward into one joint graph. The partition cuts it in two. Results that
backward needs are saved, or computed again. Gathering a parameter again is such a recomputation. So
`reshard_after_forward` marks all parameter nodes for it, as activation checkpointing does.

Each rank compiles by itself. If ranks have different orders of collectives, they hang or mix
their data. So ranks compare the orders once, before the first step (one all-gather). A rank that
compiles again, for inputs of another shape, compares with its own first graph: the others do not
compile with it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Interpreter
from torch.utils.checkpoint import CheckpointPolicy

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.compiled.graph import collectives, parameter_nodes
from labkit.compiled.graph_pass import bucketed, overlapped


class CompiledStep:
    """A function that torch.compile has traced, and its graphs."""

    def __init__(
        self,
        function: Callable[..., Any],
        group: Group,
        reshard_after_forward: bool,
        bucket_bytes: int | None,
        ahead: int | None,
        fullgraph: bool,
    ) -> None:
        from torch._dynamo.backends.common import aot_autograd  # takes seconds to import

        self.traced: dict[str, Graph] = {}
        """The graphs before the passes: "forward", "backward"; a second graph is "forward 2"."""
        self.changed: dict[str, Graph] = {}
        """The graphs that are executed."""
        self.watch: AbstractContextManager[Any] = nullcontext()
        """Entered while a graph is executed: a Meter, a CountCollectives. Entered around the whole
        call, a dispatch mode would keep torch.compile from using its graphs."""
        self._group, self._bucket_bytes, self._ahead = group, bucket_bytes, ahead
        self._reshard, self._fullgraph = reshard_after_forward, fullgraph
        backend = aot_autograd(
            fw_compiler=self._of("forward"),
            bw_compiler=self._of("backward"),
            inference_compiler=self._of("inference"),
            partition_fn=self._partition,
        )
        self._function = torch.compile(function, backend=backend, fullgraph=fullgraph)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function's result. The first call traces, compiles and compares."""
        return self._function(*args, **kwargs)

    def _partition(self, joint: GraphModule, inputs: Sequence[Any], **how: Any) -> Any:
        from torch._functorch.partitioners import default_partition

        if self._reshard:
            for node in parameter_nodes(joint.graph):
                node.meta.update(recompute=CheckpointPolicy.MUST_RECOMPUTE, ac_graph_id=0)
        return default_partition(joint, inputs, **how)

    def _of(self, kind: str) -> Callable[[GraphModule, Sequence[Any]], Any]:
        def compiler(module: GraphModule, inputs: Sequence[Any]) -> Any:
            number = sum(each.startswith(kind) for each in self.traced) + 1
            name = kind if number == 1 else f"{kind} {number}"
            self.traced[name], self.changed[name] = copied(module.graph), module.graph
            self.change(module)
            module.recompile()
            first = self.changed[kind] if self._fullgraph and number > 1 else None
            return self._executed(module, name, first)

        return compiler

    def change(self, module: GraphModule) -> None:
        """Apply the passes to one graph, in place. A subclass may have others."""
        if self._bucket_bytes is not None:
            bucketed(module.graph, self._bucket_bytes)
        if self._ahead != 0:
            overlapped(module.graph, self._ahead)

    def _executed(
        self, module: GraphModule, name: str, first: Graph | None
    ) -> Callable[[list[Any]], Any]:
        is_compared = first is not None and order_of(first) == order_of(module.graph)

        def run(values: list[Any]) -> Any:
            nonlocal is_compared
            if not is_compared:  # while it is compiled, tensors have no values to compare
                require_equal_orders(module.graph, self._group, name)
                is_compared = True
            with self.watch:
                return Interpreter(module).boxed_run(values)

        run._boxed_call = True  # type: ignore[attr-defined]  # inputs are freed after their last use
        return run


def compiled_step(
    function: nn.Module | Callable[..., Any],
    group: Group | None = None,
    *,
    reshard_after_forward: bool = True,
    bucket_bytes: int | None = 2**22,
    ahead: int | None = 1,
    fullgraph: bool = True,
) -> CompiledStep:
    """Compile a module whose parameters gather themselves (simple_fsdp), or a function of it.

    reshard_after_forward: gather again in backward instead of keeping whole parameters.
    bucket_bytes: as in `bucketed`; None: no buckets. ahead: as in `overlapped`; 0: no other order.
    fullgraph: raise an error at a graph break, instead of compiling the parts between them.
    """
    group = chosen(group)
    return CompiledStep(function, group, reshard_after_forward, bucket_bytes, ahead, fullgraph)


def require_equal_orders(graph: Graph, group: Group, name: str) -> None:
    """Raise RuntimeError unless all ranks have the same collectives in the same order."""
    order = order_of(graph)
    mine = torch.tensor([len(order), zlib.crc32(repr(order).encode())], device=group.device)
    with group.label(f"order of collectives, {name}"):
        of_ranks = group.all_gather(mine).view(-1, 2)
    if not (of_ranks == of_ranks[0]).all():
        counts = [f"rank {rank}: {count}" for rank, (count, _) in enumerate(of_ranks.tolist())]
        raise RuntimeError(
            f"the {name} graphs of the ranks have other collectives, or in another order "
            f"({', '.join(counts)}). The ranks would hang or mix data. Give all ranks the same "
            "module, dtypes and options, and let no condition in forward depend on the rank"
        )


def order_of(graph: Graph) -> list[tuple[str, str, int, object]]:
    """Return what ranks must agree on: kinds, dtypes, sizes and groups, in their order."""
    return [(c.kind, str(c.dtype), c.own_numel, c.group) for c in collectives(graph)]


def copied(graph: Graph) -> Graph:
    """Return a copy of a graph, which later changes leave alone."""
    copy = Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy
