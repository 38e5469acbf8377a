"""Gradients of several steps for top_k_error_feedback, and what right code makes of them.

Whole multiples of 12: sums of them are exact in their dtype, in any order, and so are their means
on 2, 3 and 4 ranks. So there is one right answer, to the last digit.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from labkit.grade.evidence import Case, CaseEvidence

Tensor = torch.Tensor
_UNIT = 12
_LARGEST = {torch.float32: 20_000, torch.float64: 2**40}  # in units
_FAR = 2**24 + 1  # a place that float32 has no number for, nor any smaller dtype
_MAX_DELAY_S = 0.002


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """The cases of one world size. The first has all in it that goes wrong with top-k."""
    n, late = world_size, rng.randrange(world_size)
    late_s = tuple(_MAX_DELAY_S * (rank == late) for rank in range(n))

    def case(
        label: str,
        steps: int,
        numel: int,
        k: int,
        dtype: torch.dtype = torch.float32,
        apart: bool = False,
        shift: int = 0,
    ) -> Case:
        """A case whose label also says how large it is."""
        is_wanted = _are_apart if apart else _is_telling
        gradients = _draw(n, (steps, numel), k, dtype, rng, is_wanted)
        name = str(dtype).removeprefix("torch.")
        about = f"{label}: {steps} steps, {numel} {name} entries, k = {k}"
        return Case(about, tuple((each, k, shift) for each in gradients), (0.0,) * n)

    cases = [
        case("a few entries", 5, rng.randrange(7, 10), 3),
        case("one entry per step", 4, rng.randrange(5, 9), 1),
        case("all but one", 3, 7, 6),
        case("all entries", 3, 5, 5),
        case("a single entry", 2, 1, 1),
        case("double precision", 3, rng.randrange(20, 40), rng.randrange(4, 8), torch.float64),
        case("many entries", 6, rng.randrange(800, 1200), 10),
        replace(case(f"rank {late} late", 3, rng.randrange(7, 12), 3), delays_s=late_s),
        # Once is enough, for the sums of it are large.
        *([case(f"beyond {_FAR:,} others", 1, 40, 6, shift=_FAR)] if n == 2 else []),
        case("one collective changed", 2, rng.randrange(50, 70), 3, apart=True),
    ]
    if n == 1:
        return cases[:-1]
    return [*cases[:-1], replace(cases[-1], altered=(rng.randrange(n), rng.choice((1, 2))))]


def gradients_of(evidence: CaseEvidence) -> list[Tensor]:
    """By rank: (steps, numel)."""
    return [gradients for gradients, *_ in evidence.case.arguments]


def k_of(evidence: CaseEvidence) -> int:
    """Entries that are sent in a step."""
    return int(evidence.case.arguments[0][1])


def shift_of(evidence: CaseEvidence) -> int:
    """How many places, which nobody sends, come before the first."""
    return int(evidence.case.arguments[0][2])


def largest(x: Tensor, k: int) -> Tensor:
    """The places of the k largest, in ascending order."""
    return x.topk(k).indices.sort().values


def right_debts(gradients: Tensor, k: int) -> list[Tensor]:
    """What a rank has to send, step by step: the gradient and all that is owed."""
    due, debts = torch.zeros_like(gradients[0]), []
    for gradient in gradients:
        due = due + gradient
        debts.append(due)
        due = due.index_fill(0, largest(due.abs(), k), 0)
    return debts


def _draw(
    n: int,
    shape: tuple[int, int],
    k: int,
    dtype: torch.dtype,
    rng: random.Random,
    is_wanted: Callable[[Sequence[Tensor], int], bool],
) -> list[Tensor]:
    """By rank; drawn again until no choice between equals is to be made, and they are as wanted."""
    while True:
        gradients = [_gradients(shape, dtype, rng) for _ in range(n)]
        if _is_clear(gradients, k) and is_wanted(gradients, k):
            return gradients


def _gradients(shape: tuple[int, int], dtype: torch.dtype, rng: random.Random) -> Tensor:
    """The last entry is 0, if there are several: a place beyond each that is sent is in range."""
    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    values = torch.randint(1, _LARGEST[dtype], shape, generator=generator)
    signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    gradients = (_UNIT * values * signs).to(dtype)
    if shape[1] > 1:
        gradients[:, -1] = 0
    return gradients


def _is_clear(gradients: Sequence[Tensor], k: int) -> bool:
    """Whether in every step the k largest magnitudes are k certain entries."""
    for rank_gradients in gradients:
        for due in right_debts(rank_gradients, k):
            sizes = due.abs().sort(descending=True).values
            if k < len(sizes) and sizes[k - 1] == sizes[k]:
                return False
    return True


def _are_apart(gradients: Sequence[Tensor], k: int) -> bool:
    """Whether no place comes from two ranks in one step: adding nothing, no digit is rounded off
    what was changed on its way. Nor is any place 0: viewed as a float, others are subnormal
    numbers, which are changed by one bit (watched_group.py), and 0 would be 1.0.
    """
    debts = zip(*(right_debts(each, k) for each in gradients), strict=True)
    places = [torch.cat([largest(due.abs(), k) for due in of_step]) for of_step in debts]
    return all(len(each.unique()) == len(each) and bool(each.all()) for each in places)


def _is_telling(gradients: Sequence[Tensor], k: int) -> bool:
    """Whether the first step sends negative entries, and some places from several ranks; or none
    of this can be, or only by chance.
    """
    first = [rank_gradients[0] for rank_gradients in gradients]
    if not 1 < k < len(first[0]) / 2:
        return True
    chosen = [set(largest(each.abs(), k).tolist()) for each in first]
    signed = [set(largest(each, k).tolist()) for each in first]
    num_places, num_sent = len(set.union(*chosen)), sum(map(len, chosen))
    overlap = len(first) == 1 or len(first[0]) > 4 * k or k < num_places < num_sent
    return chosen != signed and overlap
