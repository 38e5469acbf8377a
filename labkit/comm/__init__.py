"""Groups of ranks that exchange tensors, and the journal of everything they did.

The only room that calls torch.distributed. Read in this order: group.py, primitives.py (what a
group can do), member.py (what each operation goes through), journal.py, agreement/agreement.py (how
ranks compare what they mean). shared_memory/, throttling/ and hosts/ are for those who need them.
"""

from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.fat_tree import FatTree
from labkit.comm.group import Group
from labkit.comm.operation import Operation, Region, Site, Timeline
from labkit.comm.pending import Pending
from labkit.comm.shared_memory import (
    SharedMemory,
    SymmetricMemory,
    shared_memory_all_gather,
    shared_memory_all_reduce,
    shared_memory_reduce_scatter,
)
from labkit.comm.throttling.lateness import Lateness
from labkit.comm.topology import Link, Topology

__all__ = [
    "Disagreement",
    "FatTree",
    "Group",
    "Link",
    "Operation",
    "Lateness",
    "Pending",
    "Region",
    "SharedMemory",
    "Site",
    "SymmetricMemory",
    "Timeline",
    "Topology",
    "shared_memory_all_gather",
    "shared_memory_all_reduce",
    "shared_memory_reduce_scatter",
]
