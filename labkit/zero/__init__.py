"""ZeRO: data parallelism without its redundancy.

Read in this order. Each class shards one thing more:

    zero1.py  ShardedOptimizer     optimizer states. flat.py: parameters in one tensor; shard.py: a
                                   rank's part of it; arrival.py: gradients in another such tensor
    zero2.py  ShardedGradients     and gradients. staging.py: a bucket, from its first gradient
                                   until it is reduced
    zero3.py  FullyShardedModule   and parameters. passes.py: when a unit is gathered, released and
                                   reduced; unit.py and flat_unit.py: how

Beside them:

    sharded_states.py, groups.py, inner.py, state_dict.py    ShardedOptimizer as a torch optimizer
    left_out.py, clipping.py        parameters without a gradient; the norm over all ranks
    units.py                        which modules are units
    hybrid.py, offload.py           shards within a host; states on the CPU and on disk

The collectives are those of collectives/wire.py. In backward they run on the group's communication
thread (data_parallel).
"""

from labkit.collectives.wire import LIBRARY, RING, SHARED_MEMORY, Wire
from labkit.zero.state_dict import merged
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
]
