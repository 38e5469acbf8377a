"""ZeRO: data parallelism without its redundancy.

Start here: plain_zero1.py and plain_zero3.py, the ideas in the fewest lines. ZeRO-2's idea is in
solutions/zero2_gradients.py. Then each class shards one more thing:

    Zero1Optimizer       optimizer states     zero1.py, which uses states.py (shards) and flat.py
    Zero2Optimizer       and gradients        zero2.py
    FullyShardedModule   and parameters       zero3.py, passes.py, unit.py

One step of ZeRO-3 takes five files:

    zero3.py       the module: its hooks, its units, what the optimizer gets; hybrid sharding
    passes.py      when a unit is gathered, released and reduced
    unit.py        how a unit is gathered, released and reduced; this rank's shards by name
    flat.py        where each parameter lies in a flat tensor
    data_parallel/background.py     a thread for gathers and reductions while units compute

Beside these, for a second reading:

    local_optimizer.py   Zero1Optimizer as a torch optimizer; the local optimizer in it
    state_dict.py         optimizer states, sharded or whole
    states_on_disk.py     optimizer states on the CPU or on disk
    unequal_shards.py     ZeRO-1 with shards in proportion to free memory

collectives/backend.py has the collectives: the library's, a ring's, or those in shared memory.
examples/one_file/zero3.py is ZeRO-3 in plain torch.distributed, without labkit.
"""

from labkit.collectives.backend import LIBRARY, RING, SHARED_MEMORY, CollectiveBackend
from labkit.zero.state_dict import merged
from labkit.zero.states_on_disk import on_disk
from labkit.zero.zero1 import Zero1Optimizer
from labkit.zero.zero2 import Zero2Optimizer
from labkit.zero.zero3 import FullyShardedModule

__all__ = [
    "FullyShardedModule",
    "LIBRARY",
    "RING",
    "SHARED_MEMORY",
    "CollectiveBackend",
    "Zero1Optimizer",
    "Zero2Optimizer",
    "merged",
    "on_disk",
]
