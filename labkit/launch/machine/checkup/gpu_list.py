"""GPUs that torch sees, or why it sees none."""

from pathlib import Path

import torch

from labkit.launch.devices import why_no_gpu
from labkit.launch.machine.checkup.finding import Finding, Level, size_text

_NVIDIA = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidia0"), Path("/dev/nvidiactl"))


def gpus() -> Finding:
    """How many, and which."""
    try:
        names = [_name(number) for number in range(torch.cuda.device_count())]
    except Exception as error:  # a driver that does not fit raises what it likes
        return _unusable(f"torch cannot ask the driver: {str(error).splitlines()[0]}")
    if names:
        return Finding("GPUs", f"{len(names)}: {', '.join(names)}")
    if any(path.exists() for path in _NVIDIA):
        return _unusable(f"there is an NVIDIA driver, but torch sees no GPU: {why_no_gpu()}")
    return Finding("GPUs", "none, and none needed: everything here runs on the CPU")


def _name(number: int) -> str:
    found = torch.cuda.get_device_properties(number)
    return f"{found.name} ({size_text(found.total_memory)})"


def _unusable(text: str) -> Finding:
    return Finding(
        "GPUs",
        text,
        Level.WARNING,
        'runs with device="cuda" are refused; all others use the CPU',
        "install a build of torch for CUDA (make clean, then make lab "
        "TORCH_INDEX=https://download.pytorch.org/whl/cu130), and unset CUDA_VISIBLE_DEVICES",
    )
