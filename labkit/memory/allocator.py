"""What torch's allocator on a GPU says, to stand beside what the meter has followed.

The two differ by design. The allocator rounds a request up to 512 bytes, and counts workspaces that
live inside an operation and tensors of which the meter never heard; the meter knows of what kind a
byte is. Where the meter's peak is far below the allocator's, something is not followed.
"""

from collections.abc import Iterable

import torch


class AllocatorPeaks:
    """The most bytes that were given out at once on each GPU, while somebody looked."""

    def __init__(self) -> None:
        self.peak_bytes: dict[str, int] = {}
        """By device, such as "cuda:0". Empty where there is none, or none is used yet."""

    def begin(self, others: Iterable["AllocatorPeaks"]) -> None:
        """Count from here. `others` are counting already; what they have seen is kept.

        Resets torch.cuda's own peaks: whoever reads those meanwhile has them from here too.
        """
        for other in others:
            other.note()
        for device in _devices_in_use():
            torch.cuda.reset_peak_memory_stats(device)

    def note(self) -> None:
        """Take in what there has been since somebody began."""
        for device in _devices_in_use():
            peak, name = torch.cuda.max_memory_allocated(device), f"cuda:{device}"
            self.peak_bytes[name] = max(peak, self.peak_bytes.get(name, 0))


def _devices_in_use() -> Iterable[int]:
    # Asking about a device that nobody has used yet would take half a GB of it for a context.
    return range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
