"""ZeRO: data parallelism without its redundancy.

The ladder: zero1 shards optimizer states, zero2 gradients too, zero3 parameters too.

    zero1.py  ShardedOptimizer     sharded_states.py, on a shard.py of a flat.py tensor; inner.py is
                                   the optimizer within, state_dict.py what it has learned
    zero2.py  ShardedGradients     staging.py: a bucket, from its first gradient until it is reduced
    zero3.py  FullyShardedModule   passes.py says when each unit.py of flat_unit.py is gathered and
                                   released
    hybrid.py, offload.py          shards within a host; states on the CPU and on disk
    wire.py                        the two collectives; they travel on the group's Lane
"""

from labkit.zero.state_dict import merged
from labkit.zero.wire import LIBRARY, RING, SHARED_MEMORY, Wire
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
