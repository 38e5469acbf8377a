"""What a rank's memory holds, by kind: followed storage by storage, from allocation to release.

    meter = Meter(module, optimizer)
    with meter:
        loss(module, batch).backward()
        optimizer.step()
    meter.usage.peak_bytes, meter.usage.at_peak["activations"]

Every operation passes a dispatch mode, which sees what it allocates; a weak reference tells when a
storage is gone. What a storage IS may turn out later: an output becomes an activation when autograd
saves it, and a gradient when it lands in `.grad`. So allocations and releases are written down, and
kinds are counted at the end:

    parameters        of the module
    gradients         in .grad, or marked
    optimizer states  in optimizer.state: master copies, moments
    buffers           the module's buffers, buckets, gathered units: what is marked so
    activations       what autograd has saved for backward
    other             results that are on their way, inputs, workspaces

A storage counts once, whatever views there are of it, with all its bytes; of several kinds that fit
the first in this list counts. Seen is what operations of this thread allocate: on CPU a backward
pass runs in it too; workspaces inside an operation are not seen. On a GPU torch's allocator sees
those, and `usage.allocator_peak_bytes` has its figures for the same time.

    meter.py allocation.py   what is followed        allocator.py   the allocator's own figures
    usage.py                 what comes of it
"""

from labkit.memory.meter import Meter, announce
from labkit.memory.usage import KINDS, Usage

__all__ = ["KINDS", "Meter", "Usage", "announce"]
