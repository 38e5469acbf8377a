"""Groups of ranks that exchange tensors, and the journal of everything they did.

Only this room and hosts/ communicate through torch.distributed. Read in this order:

    group.py             Group: making it, splitting it, closing it
    primitives.py        its operations; tensor_arguments.py checks what they are given
    member.py            the steps that all operations share; Pending
    journal.py           the file that has each operation before it starts; operation.py is how
                         others read it, callers.py finds the line that called
    mismatch_detector.py ranks compare operations before they start, in tables of shared_rows.py;
                         mismatch.py has the rules
    connect.py           how a rank joins the world
    topology.py          links; throttle.py lets messages take their time, virtual_time.py replays
                         a run over them
    traffic.py           bytes that gloo's collectives put on the wire

When you need them: shared_memory/ (collectives without a network), recorder.py (collectives
that torch itself issues), staging.py (ranks that share a GPU), owned_folder.py
(folders that are removed once their process is gone).

A module is imported when it is first used. operation.py and mismatch.py need no torch, so commands
that launch no ranks start without it.
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy

if TYPE_CHECKING:
    from labkit.comm.group import Group
    from labkit.comm.member import Pending
    from labkit.comm.mismatch import OperationMismatch
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
