"""What a rank does with one block of its tensor in a superstep: put, reduce, take, show.

Each function here makes a stage; supersteps.py has the picture of the areas, (n, n, numel) by rank
and chunk. Chunks are flat, and cut as torch.tensor_split does.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

Stage = Callable[[int, Tensor], None]
"""(number of a block, areas of a slot) -> nothing."""


def put(parts: Sequence[Tensor], rank: int) -> Stage:
    """Show the others their chunks of what this rank adds."""

    def stage(block: int, areas: Tensor) -> None:
        for owner, part in enumerate(parts):
            if owner != rank:
                _copy_in(_block_of(part, block, areas), areas[rank, owner])

    return stage


def reduce(parts: Sequence[Tensor], rank: int, into: Tensor | None = None) -> Stage:
    """Add up this rank's chunk: into a tensor, or, None, where the others see it.

    The tensor may be the chunk itself: then it is added up beside, and copied.
    """
    in_place = into is parts[rank]

    def stage(block: int, areas: Tensor) -> None:
        own = _block_of(parts[rank], block, areas)
        terms = list(areas[:, rank, : own.numel()])
        total = terms[rank] if into is None or in_place else _block_of(into, block, areas)
        terms[rank] = own  # read where it is, and never copied
        total.copy_(terms[0])
        for term in terms[1:]:  # in the order of ranks, whoever adds
            total.add_(term)
        if in_place:
            own.copy_(total)

    return stage


def show(chunk: Tensor, rank: int) -> Stage:
    """Show the others this rank's chunk."""

    def stage(block: int, areas: Tensor) -> None:
        _copy_in(_block_of(chunk, block, areas), areas[rank, rank])

    return stage


def take(totals: Sequence[Tensor]) -> Stage:
    """Copy every rank's chunk to where it belongs."""

    def stage(block: int, areas: Tensor) -> None:
        for owner, total in enumerate(totals):
            piece = _block_of(total, block, areas)
            piece.copy_(areas[owner, owner, : piece.numel()])

    return stage


def _block_of(chunk: Tensor, block: int, areas: Tensor) -> Tensor:
    """The n-th block of a chunk. Chunks differ by an element: of some the last is empty."""
    numel = areas.shape[-1]
    return chunk[block * numel : (block + 1) * numel]


def _copy_in(piece: Tensor, area: Tensor) -> None:
    area[: piece.numel()].copy_(piece)
