"""What ranks tell each other beside tensors: plain data, and errors that all of them raise."""

from __future__ import annotations

import json
from typing import Any

import torch

from labkit.comm import Group


def gather_plain(value: Any, group: Group) -> list[Any]:
    """Every rank's value, by rank, on every rank. value: what JSON can say.

    Wire: an all-gather of 8 bytes, and one of the longest text.
    """
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    lengths = group.all_gather(torch.tensor([len(text)], device=group.device)).tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(text)] = text
    rows = group.all_gather(padded[None].to(group.device)).cpu()
    return [json.loads(bytes(row[:n].tolist())) for row, n in zip(rows, lengths, strict=True)]


def raise_everywhere(error: Exception | None, kind: type[Exception], group: Group) -> None:
    """Raise `kind` on every rank where one has an error; it says which rank and why."""
    texts = gather_plain(None if error is None else f"{type(error).__name__}: {error}", group)
    if failed := [f"rank {rank}: {text}" for rank, text in enumerate(texts) if text]:
        raise kind("; ".join(failed)) from error
