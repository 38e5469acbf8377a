"""Exchange plain data between ranks, and raise one rank's error on all of them."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from labkit.comm import Group

T = TypeVar("T")


def memory_of(x: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, which must outlive them."""
    return memoryview((ctypes.c_char * x.nbytes).from_address(x.data_ptr())).cast("B")


def gather_plain(value: Any, group: Group) -> list[Any]:
    """Return every rank's value, by rank, on every rank. value: plain data that JSON has.

    Wire: an all-gather of 8 bytes, and one of the longest text.
    """
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    lengths = group.all_gather(torch.tensor([len(text)], device=group.device)).tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device="cpu")
    padded[: len(text)] = text
    rows = group.all_gather(padded[None].to(group.device)).cpu()
    return [json.loads(bytes(memory_of(row[:n]))) for row, n in zip(rows, lengths, strict=True)]


def result_or_error(act: Callable[[], T]) -> T | Exception:
    """Return the result of `act`, or the error that it raises."""
    try:
        return act()
    except Exception as error:
        return error


def agreed(
    result: T | Exception, kind: type[Exception], group: Group, *others: type[Exception]
) -> T:
    """Return the result, or raise `kind` on every rank if a rank has an error. Every rank calls it.

    others: types of errors that are raised as themselves, if the lowest rank with an error has one.

    An error on one rank alone would leave the others waiting in the next collective.
    Wire: `gather_plain`.
    """
    error, kinds = result if isinstance(result, Exception) else None, (kind, *others)
    number = next((i for i, each in enumerate(kinds) if isinstance(error, each)), 0)
    mine = None if error is None else [number, _text(error, kinds[number])]
    failed = [(rank, *each) for rank, each in enumerate(gather_plain(mine, group)) if each]
    if failed:
        text = "; ".join(f"rank {rank}: {text}" for rank, _, text in failed)
        raise kinds[failed[0][1]](text) from error
    assert not isinstance(result, Exception)
    return result


def _text(error: Exception, kind: type[Exception]) -> str:
    return str(error) if isinstance(error, kind) else f"{type(error).__name__}: {error}"
