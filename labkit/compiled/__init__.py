"""A compiler's view: sharded parameters whose gathers are nodes of a graph, and passes over it.

Read in this order:

    parametrization.py reading a parameter gathers it: simple_fsdp(); gathers of 8 bits
    graph.py           what a traced graph sends, in which order, and how much of it lives at once
    graph_pass.py      buckets of collectives; gathers started earlier, waits moved later
    compile.py         torch.compile with these passes, forward and backward
    count.py           the collectives that torch itself performs, of any strategy

zero/ has the same strategy with hooks, which no compiler sees: FullyShardedModule.
"""

from labkit.compiled.compile import CompiledStep, compiled_step, require_equal_orders
from labkit.compiled.count import CountCollectives
from labkit.compiled.graph import collectives, events
from labkit.compiled.graph_pass import bucketed, overlapped
from labkit.compiled.parametrization import full_parameters, simple_fsdp

__all__ = [
    "CompiledStep",
    "CountCollectives",
    "bucketed",
    "collectives",
    "compiled_step",
    "events",
    "full_parameters",
    "overlapped",
    "require_equal_orders",
    "simple_fsdp",
]
