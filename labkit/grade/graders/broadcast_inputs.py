"""Random inputs of a broadcast: a root, its x, and what the other ranks hold in x's place."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle

import torch

from labkit.grade.evidence import Case, CaseEvidence
from labkit.grade.graders.ring_inputs import whole_numbers

Tensor = torch.Tensor

_DTYPES = (torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.complex64)
_MAX_DELAY_S = 0.002
# What arithmetic does not leave alone: adding 0.0 and multiplying by 1 or 0 are not copying.
_ODD_VALUES = (-0.0, float("nan"), float("inf"), -float("inf"))


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """The cases of one world size: root 0 first, then every other root."""
    n = world_size
    numel = rng.randrange(9, 40)
    shape = (rng.randrange(2, 6), rng.randrange(2, 6), rng.randrange(2, 6))
    roots = _roots(n, rng)

    def plain(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
        """Whole numbers of a shape, anew for each rank: only the root's are the right ones."""
        return lambda: whole_numbers(shape, dtype, rng)

    def case(label: str, make: Callable[[], Tensor], delays_s: Sequence[float] = ()) -> Case:
        """A case of the next root; `label` may name its numel, dtype and shape."""
        root = next(roots)
        arguments = tuple((make(), root) for _ in range(n))
        x = arguments[0][0]
        name = str(x.dtype).removeprefix("torch.")
        about = label.format(dtype=name, numel=x.numel(), shape=tuple(x.shape))
        return Case(f"root {root}, {about}", arguments, tuple(delays_s) or (0.0,) * n)

    flat = "{numel} {dtype} elements"
    late = rng.randrange(n)
    late_s = tuple(_MAX_DELAY_S if rank == late else 0.0 for rank in range(n))
    cases = [
        case(flat, plain(numel)),
        case(flat, plain(numel)),
        case("{dtype} of shape {shape}", plain(0, shape[0])),
        case("a single {dtype} number, shape ()", plain()),
        *(case(flat, plain(numel, dtype=dtype)) for dtype in rng.sample(_DTYPES, 3)),
        case("{dtype} of shape {shape}, transposed", lambda: plain(*shape)().transpose(0, 2)),
        case("every other one of 66 {dtype} elements", lambda: plain(66)()[::2]),
        _with_nan_elsewhere(case(flat, plain(numel))),
        _with_odd_values(case(flat, plain(numel))),
        case(f"{flat}, rank {late} late", plain(numel), late_s),
        case(f"{flat}, every rank at its own pace", plain(numel), (_MAX_DELAY_S,) * n),
        case(flat, lambda: plain(30)().repeat(1000)),  # traffic past the group would stand out
        case(f"{flat}, one message changed", plain(numel)),
    ]
    if n == 1:  # which receives nothing
        return cases[:-1]
    receiver = rng.choice([rank for rank in range(n) if rank != cases[-1].arguments[0][1]])
    return [*cases[:-1], replace(cases[-1], altered=(receiver, 1))]


def root_of(evidence: CaseEvidence) -> int:
    """The rank whose x everyone should get."""
    root: int = evidence.case.arguments[0][1]
    return root


def inputs_of(evidence: CaseEvidence) -> list[Tensor]:
    """What each rank was given as x."""
    return [arguments[0] for arguments in evidence.case.arguments]


def _with_odd_values(case: Case) -> Case:
    """With -0.0, NaN and infinities among the numbers, on every rank."""
    for x, _ in case.arguments:
        x[: len(_ODD_VALUES)] = torch.tensor(_ODD_VALUES)
    return replace(case, label=f"{case.label}, with -0.0, NaN and infinities")


def _with_nan_elsewhere(case: Case) -> Case:
    """With NaN on every rank but the root, where nothing that x holds counts."""
    for rank, (x, root) in enumerate(case.arguments):
        if rank != root:
            x.fill_(torch.nan)
    return replace(case, label=f"{case.label}, NaN on every rank but the root")


def _roots(world_size: int, rng: random.Random) -> Iterator[int]:
    """0, then every other rank, again and again."""
    others = rng.sample(range(1, world_size), world_size - 1) or [0]
    yield 0
    yield from cycle(others)
