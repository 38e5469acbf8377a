"""Groups of ranks that exchange tensors, and the journal of everything they did.

The only room that calls torch.distributed. Read in this order: group.py, primitives.py (what a
group can do), member.py (what each operation goes through), journal.py, agreement/agreement.py (how
ranks compare what they mean). shared_memory/, throttling/ and hosts/ are for those who need them.

Nothing of it is imported before it is used: operation.py and operation.py need no torch, and neither do
commands that launch no ranks.
"""

import importlib
from typing import TYPE_CHECKING, Any

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
    "replay",
    "shared_memory_all_gather",
    "shared_memory_all_reduce",
    "shared_memory_reduce_scatter",
]

_HOMES = {
    "Disagreement": "mismatch",
    "FatTree": "topology",
    "Group": "group",
    **dict.fromkeys(("Operation", "Region", "Site", "Timeline"), "operation"),
    "Pending": "member",
    "Lateness": "throttle",
    "replay": "virtual_time",
    **dict.fromkeys(("Link", "Topology"), "topology"),
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = _HOMES.get(name, "shared_memory")
        return getattr(importlib.import_module(f"labkit.comm.{home}"), name)
    raise AttributeError(f"module 'labkit.comm' has no attribute {name!r}")
