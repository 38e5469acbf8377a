"""A rank's value in a file that may be opened by somebody else.

Plain data and tensors are stored so that torch.load(weights_only=True) reads them, which runs no
code from the file. Other objects need pickle, and a pickle can run any code: those are read only
where the reader says that the folder is to be trusted.
"""

import io
import pickle
import textwrap
from typing import Any

import torch

SAFE, PICKLE, LEFT_BEHIND, DAMAGED = "tensors", "pickle", "left on its host", "damaged"

_THE_REST = "To look at the rest: Run.load(..., partial=True)"


class UntrustedValue(ValueError):
    """A value that only pickle restores, in a folder that the reader has not said to trust."""


def encode(dumped: bytes) -> tuple[str, bytes]:
    """The kind and the bytes to store, from what `payload.dump_value` made."""
    try:
        buffer = io.BytesIO()
        torch.save(pickle.loads(dumped), buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception:  # some class that weights_only does not know, or that is not known here
        return PICKLE, dumped
    return SAFE, buffer.getvalue()


def decode(kind: str, data: bytes, rank: int, *, trust: bool) -> Any:
    """The value of `rank`. Raises UntrustedValue for a pickle without `trust`, and ValueError."""
    if kind == LEFT_BEHIND:
        raise ValueError(
            f"what rank {rank} returned was too large to travel, and stayed in the folder of its "
            "own host; name that folder too: Run.load(folder, its_folder)"
        )
    if kind == DAMAGED:
        raise ValueError(
            f"what rank {rank} returned cannot be read: rank-{rank}.value is missing, cut short, "
            f"or not the one that belongs to rank-{rank}.json. {_THE_REST}"
        )
    if kind == PICKLE and not trust:
        raise UntrustedValue(
            f"what rank {rank} returned is stored as a pickle, and reading a pickle can run any "
            "code. If you know who wrote this folder: Run.load(..., trust=True). "
            f"{_THE_REST}"
        )
    try:
        if kind == PICKLE:
            return pickle.loads(data)
        return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 300)
        raise ValueError(
            f"what rank {rank} returned cannot be read here, from rank-{rank}.value: {reason}. "
            f"{_THE_REST}"
        ) from error
