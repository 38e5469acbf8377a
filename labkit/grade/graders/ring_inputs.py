"""Random inputs of an all-reduce, and the sums that they must give.

All but one case hold whole numbers, small enough that every partial sum is exact in its dtype: any
order of adding gives the same, so the results must be equal to the last bit, and a wrong sum can be
taken apart into its summands (provenance.py).
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from labkit.grade import provenance
from labkit.grade.evidence import Case

Tensor = torch.Tensor

# Magnitudes whose sum over 6 ranks is exact in the dtype (bfloat16 counts to 256, uint8 to 255),
# but for the wide ones in no other: int32 must not pass when it is added as float32.
_INTEGERS = {torch.int64: 2**60, torch.int32: 2**28, torch.uint8: 42}
_NUMBERS = {
    torch.float64: 2**50,
    torch.complex64: 1000,
    torch.bfloat16: 30,
    torch.float16: 30,
}
_LARGEST = {torch.float32: 1000, **_INTEGERS, **_NUMBERS}
_MAX_DELAY_S = 0.002


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """The cases of one world size, the plainest first."""
    n = world_size
    segment = provenance.segments_needed(n) + rng.randrange(8, 24)
    remainder = rng.randrange(1, n) if n > 1 else 0
    uneven = n * segment + remainder
    small = {1, n - 1, n + remainder} - {0}
    shape = (rng.randrange(2, 6), rng.randrange(2, 6), rng.randrange(2, 6))
    other_dtypes = rng.sample(list(_INTEGERS), 2) + rng.sample(list(_NUMBERS), 2)
    late = rng.randrange(n)
    late_s = tuple(_MAX_DELAY_S if rank == late else 0.0 for rank in range(n))

    def plain(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
        """Whole numbers of a shape, anew for each rank."""
        return lambda: whole_numbers(shape, dtype, rng)

    def case(label: str, make: Callable[[], Tensor], delays_s: Sequence[float] = ()) -> Case:
        """A case of one tensor per rank; `label` may name its numel, dtype and shape."""
        arguments = tuple((make(),) for _ in range(n))
        name = str(arguments[0][0].dtype).removeprefix("torch.")
        delays_s = tuple(delays_s) or (0.0,) * n
        return Case(label.format(dtype=name, **_named(arguments[0][0])), arguments, delays_s)

    flat = "{numel} {dtype} elements"
    altered = (rng.randrange(n), 1 + rng.randrange(max(2 * (n - 1), 1)))
    cases = [
        case(flat, plain(n * segment)),
        # One too many: only here does torch.chunk cut otherwise than it should for every n > 2.
        case(flat, plain(n * segment + 1)),
        case("{dtype} of shape {shape}", plain(0, shape[0])),
        *(case(flat, plain(numel)) for numel in sorted(small)),
        *(case(flat, plain(uneven, dtype=dtype)) for dtype in other_dtypes),
        case("a single {dtype} number, shape ()", plain()),
        case("{dtype} of shape {shape}", plain(*shape)),
        case("{dtype} of shape {shape}, transposed", lambda: plain(*shape)().transpose(0, 2)),
        case("every other one of {twice} {dtype} elements", lambda: plain(2 * uneven)()[::2]),
        case(f"{flat}, rank {late} late", plain(uneven), late_s),
        case(f"{flat}, every rank at its own pace", plain(uneven), (_MAX_DELAY_S,) * n),
        case("{numel} random {dtype} elements", _fractions(n * 8000 + remainder, rng)),
        replace(case(f"{flat}, one message changed", plain(n * segment)), altered=altered),
    ]
    return cases if n > 1 else cases[:-1]  # one rank alone receives nothing


def expected_sum(case: Case) -> tuple[Tensor, Tensor]:
    """The right result, in a wide dtype, and by how much an element may differ from it.

    Whole numbers: not at all. Others: each of the n - 1 additions, in any order, rounds by at most
    eps/2 of a partial sum, and no partial sum exceeds sum(|x|).
    """
    inputs = [arguments[0] for arguments in case.arguments]
    x_RN = torch.stack(inputs)
    if not x_RN.is_floating_point() and not x_RN.is_complex():
        total = x_RN.to(torch.int64).sum(0)
        return total, torch.zeros_like(total)
    wide_RN = x_RN.to(torch.complex128 if x_RN.is_complex() else torch.float64)
    total = wide_RN.sum(0)
    if holds_whole_numbers(inputs[0]):
        return total, torch.zeros_like(total.abs())
    eps = torch.finfo(inputs[0].dtype).eps
    return total, (len(inputs) - 1) * eps * wide_RN.abs().sum(0)


def is_wrong(output: Tensor, total: Tensor, tolerance: Tensor) -> Tensor:
    """Where `output` is not the sum: a mask, over the flattened elements."""
    difference = (output.to(total.dtype) - total).abs()
    return ~(difference <= tolerance).flatten()  # NaN is not <= anything


def holds_whole_numbers(x: Tensor) -> bool:
    """Whether sums of such inputs are exact."""
    real = torch.view_as_real(x) if x.is_complex() else x
    return not real.is_floating_point() or torch.equal(real, real.round())


def whole_numbers(shape: Sequence[int], dtype: torch.dtype, rng: random.Random) -> Tensor:
    """Random whole numbers of a shape, whose sum over 6 ranks is exact in the dtype."""
    largest = _LARGEST[dtype]
    smallest = 0 if dtype == torch.uint8 else -largest
    numbers = [rng.randint(smallest, largest) for _ in range(2 * math.prod(shape))]
    values = torch.tensor(numbers, dtype=torch.int64).reshape(2, *shape)
    if dtype.is_complex:
        return torch.complex(values[0].double(), values[1].double()).to(dtype)
    return values[0].to(dtype)


def _fractions(numel: int, rng: random.Random) -> Callable[[], Tensor]:
    def make() -> Tensor:
        """Another tensor on each call."""
        generator = torch.Generator().manual_seed(rng.getrandbits(63))
        return torch.randn(numel, generator=generator)

    return make


def _named(x: Tensor) -> dict[str, object]:
    return {"numel": x.numel(), "twice": 2 * x.numel(), "shape": tuple(x.shape)}
