"""Numbers that carry their origin, so that a picture can be drawn from what a run really returned.

Rank r's cell c (from 0) is (c + 1) * 10**r: the decimal place says whose it is, the digit which.

    rank 0     1     2     3              all_reduce gives every rank
    rank 1    10    20    30                  111   222   333
    rank 2   100   200   300              and 110 is the sum of ranks 1 and 2 alone
"""

from collections.abc import Sequence
from typing import Any

import torch

MAX_CELLS = 9  # one decimal digit
MAX_RANKS = 15  # float64 and int64 hold 15 decimal digits exactly


def tagged(rank: int, num_cells: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """`num_cells` numbers that say where they come from: what to feed a primitive to watch it.

    Returns (num_cells,). Raises ValueError for more than 9 cells or a rank above 14, which one
    decimal digit per rank cannot carry, and for a dtype that cannot hold the sums exactly.
    """
    if not 0 <= rank < MAX_RANKS:
        raise ValueError(f"rank {rank} has no decimal place of its own; use ranks 0 to 14")
    if not 1 <= num_cells <= MAX_CELLS:
        raise ValueError(f"{num_cells} cells do not fit one decimal digit; use 1 to 9")
    if dtype not in (torch.float64, torch.int64):
        raise ValueError(f"{dtype} rounds sums of tags; use torch.float64 or torch.int64")
    return torch.arange(1, num_cells + 1, dtype=dtype) * 10**rank


def contributors(value: float) -> dict[int, int] | None:
    """Which cell of which rank is in a sum of tags: {rank: cell}; None if it is no such sum.

    contributors(330) == {1: 2, 2: 2}; contributors(0) == {}; contributors(2.5) is None.
    A cell that was counted twice shows as the wrong cell: 2 is cell 1 once, or cell 0 twice.
    """
    if value < 0 or value != int(value) or value >= 10**MAX_RANKS:
        return None
    digits = str(int(value))[::-1]
    return {rank: int(digit) - 1 for rank, digit in enumerate(digits) if digit != "0"}


def cells_of(value: Any) -> list[float] | None:
    """What a rank holds as a flat list of numbers; None where it holds nothing (None or empty)."""
    if value is None:
        return None
    tensor = torch.as_tensor(value)
    numbers: Sequence[float] = tensor.detach().to("cpu", torch.float64).flatten().tolist()
    return list(numbers) or None
