"""Random inputs of an uneven all-to-all: how many rows go where, and rows to be told apart."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from labkit.grade.evidence import Case, CaseEvidence

Tensor = torch.Tensor
Matrix = list[list[int]]
"""counts[r][s]: how many rows rank r has for rank s."""

_DTYPES = (torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.complex64)
_MAX_DELAY_S = 0.002


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """The cases of one world size, the plainest first: each rank has rows for every other."""
    n, width = world_size, rng.randrange(4, 9)
    late = rng.randrange(n)
    late_s = tuple(_MAX_DELAY_S * (rank == late) for rank in range(n))
    all_late_s = (_MAX_DELAY_S,) * n

    def case(  # a case whose label also says what goes where
        label: str,
        counts: Matrix,
        row: Sequence[int] = (width,),
        dtype: torch.dtype = torch.float32,
        lay_out: Callable[[Tensor], Tensor] = lambda x: x,
    ) -> Case:
        arguments = tuple((lay_out(_rows(sum(mine), row, dtype, rng)), mine) for mine in counts)
        name = str(dtype).removeprefix("torch.")
        about = f"{label}: rows of shape {tuple(row)}, {name}, counts {counts}"
        return Case(about, tuple((x, torch.tensor(mine)) for x, mine in arguments), (0.0,) * n)

    cases = [
        case("all counts differ", _different(n, rng)),
        case("some have none for some", _with_zeros(n, rng)),
        case("one rank gets everything", _all_to_one(n, rng)),
        case("one rank has nothing to send", _one_is_empty(n, rng)),
        case("equal counts", [[2] * n] * n),
        case("no rows at all", [[0] * n] * n),
        case("single numbers", _different(n, rng), row=()),
        case("rows of a matrix", _with_zeros(n, rng), row=(2, rng.randrange(2, 5))),
        case("rows without content", _different(n, rng), row=(0,)),
        *(case("dtypes", _with_zeros(n, rng), dtype=dtype) for dtype in rng.sample(_DTYPES, 3)),
        case("transposed", _different(n, rng), lay_out=lambda x: x.t().contiguous().t()),
        replace(case(f"rank {late} late", _with_zeros(n, rng)), delays_s=late_s),
        replace(case("every rank at its own pace", _different(n, rng)), delays_s=all_late_s),
        case("many rows", _many(n, rng), (64,), rng.choice((torch.uint8, torch.bfloat16))),
        case("one message changed", _different(n, rng)),
    ]
    if n == 1:  # which receives nothing
        return cases[:-1]
    return [*cases[:-1], replace(cases[-1], altered=(rng.randrange(n), rng.randrange(1, n)))]


def inputs_of(evidence: CaseEvidence) -> list[Tensor]:
    """By rank: x."""
    return [x for x, _ in evidence.case.arguments]


def counts_of(evidence: CaseEvidence) -> Matrix:
    """How many rows go where."""
    return [counts.tolist() for _, counts in evidence.case.arguments]


def blocks_of(evidence: CaseEvidence) -> list[list[Tensor]]:
    """blocks[r][s]: what rank r has for rank s."""
    return [list(x.split(counts.tolist())) for x, counts in evidence.case.arguments]


def row_bytes_of(evidence: CaseEvidence) -> int:
    """Bytes of one row."""
    x = inputs_of(evidence)[0]
    return x.element_size() * x.shape[1:].numel()


def _different(n: int, rng: random.Random) -> Matrix:
    """No two counts are equal, so that no block can be taken for another."""
    numbers = iter(rng.sample(range(1, n * n + 4), n * n))
    return [[next(numbers) for _ in range(n)] for _ in range(n)]


def _many(n: int, rng: random.Random) -> Matrix:
    """More rows than bytes or bfloat16 can count."""
    return [[rng.randrange(300, 800) for _ in range(n)] for _ in range(n)]


def _with_zeros(n: int, rng: random.Random) -> Matrix:
    """One other rank of each gets nothing."""
    counts = _different(n, rng)
    for rank in range(n):
        others = [other for other in range(n) if other != rank]
        if others:
            counts[rank][rng.choice(others)] = 0
    return counts


def _all_to_one(n: int, rng: random.Random) -> Matrix:
    favourite = rng.randrange(n)
    return [[rng.randrange(1, 9) * (s == favourite) for s in range(n)] for _ in range(n)]


def _one_is_empty(n: int, rng: random.Random) -> Matrix:
    counts, empty = _different(n, rng), rng.randrange(n)
    return [[0] * n if rank == empty else row for rank, row in enumerate(counts)]


def _rows(count: int, row: Sequence[int], dtype: torch.dtype, rng: random.Random) -> Tensor:
    """Random whole numbers that every dtype holds; of a few, no two rows are likely to be equal."""
    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    return torch.randint(0, 250, (count, *row), generator=generator).to(dtype)
