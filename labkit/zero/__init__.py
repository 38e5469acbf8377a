"""ZeRO: data parallelism without its redundancy.

Each class shards one thing more. Read in this order, and the files of a row from left to right:

    ShardedOptimizer     optimizer states     zero1.py, states.py, states.py, flat.py
    ShardedGradients     and gradients        zero2.py, data_parallel/communication_thread.py
    FullyShardedModule   and parameters       zero3.py, passes.py, unit.py

One step of ZeRO-3 alone takes five files:

    zero3.py       the module: which hooks call what, and what the optimizer gets
    passes.py      when a unit is gathered, released and reduced
    unit.py        how: a unit, its flat parameters, this rank's shards by name
    flat.py        where each parameter lies in a flat tensor
    data_parallel/communication_thread.py     gathers and reductions while others compute

Beside these, for a second reading:

    zero3.py       which modules are units, and which parameters belong to each
    zero3.py             shards within a host, replicas across hosts
    optimizer_within.py, optimizer_within.py   ShardedOptimizer as a torch optimizer; the optimizer within it
    state_dict.py         states in shards or whole
    states_on_disk.py     states elsewhere: on the CPU and on disk

The collectives are those of collectives/wire.py.
"""

from labkit.collectives.wire import LIBRARY, RING, SHARED_MEMORY, Wire
from labkit.zero.state_dict import merged
from labkit.zero.states_on_disk import on_disk
from labkit.zero.zero1 import ShardedOptimizer
from labkit.zero.zero2 import ShardedGradients
from labkit.zero.zero3 import FullyShardedModule

__all__ = [
    "FullyShardedModule",
    "LIBRARY",
    "RING",
    "SHARED_MEMORY",
    "ShardedGradients",
    "ShardedOptimizer",
    "Wire",
    "merged",
    "on_disk",
]
