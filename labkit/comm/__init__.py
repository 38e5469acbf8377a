"""Groups of ranks that exchange tensors, and the journal of everything they did.

The only room that calls torch.distributed. Read in this order: group.py, primitives.py (what a
group can do), member.py (what each operation goes through), journal.py, agreement/agreement.py (how
ranks compare what they mean). shared_memory/, throttling/ and hosts/ are for those who need them.

Nothing of it is imported before it is used: operation.py and operation.py need no torch, and neither do
commands that launch no ranks.
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy

if TYPE_CHECKING:
    from labkit.comm.group import Group
    from labkit.comm.member import Pending
    from labkit.comm.mismatch import Disagreement
    from labkit.comm.operation import Operation, Region, Site, Timeline
    from labkit.comm.shared_memory import (
        SharedMemory,
        SymmetricMemory,
        shared_memory_all_gather,
        shared_memory_all_reduce,
        shared_memory_reduce_scatter,
    )
    from labkit.comm.throttle import Lateness
    from labkit.comm.topology import FatTree, Link, Topology
    from labkit.comm.virtual_time import replay

__getattr__, __dir__, __all__ = lazy(__name__)
