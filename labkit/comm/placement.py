"""Which GPU a rank is on, and which backend carries its messages."""

import torch


def shares_gpus(world_size: int, num_gpus: int) -> bool:
    """Whether some GPU has several ranks. nccl refuses that: "Duplicate GPU detected"."""
    return world_size > num_gpus


def placement(rank: int, world_size: int, device: str, num_gpus: int) -> tuple[str, torch.device]:
    """(backend, device) of a rank among `world_size` on this host.

    device: "cpu" or "cuda". Ranks that share GPUs talk through the host, with gloo: see staging.py.
    Raises RuntimeError where "cuda" was asked for and the rank sees no GPU.
    """
    if device == "cpu":
        return "gloo", torch.device("cpu")
    if num_gpus == 0:
        raise RuntimeError(
            f"rank {rank} was to use a GPU, but sees none; something changed since the run was "
            "started, CUDA_VISIBLE_DEVICES for example. Use device='cpu'"
        )
    backend = "gloo" if shares_gpus(world_size, num_gpus) else "nccl"
    return backend, torch.device("cuda", rank % num_gpus)
