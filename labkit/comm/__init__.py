"""Groups of ranks that exchange tensors, and the journal of everything they did.

The only room that calls torch.distributed.
"""

from labkit.comm.disagreement import Disagreement
from labkit.comm.group import Group
from labkit.comm.operation import Operation, Region, Site, Timeline
from labkit.comm.pending import Pending

__all__ = ["Disagreement", "Group", "Operation", "Pending", "Region", "Site", "Timeline"]
