"""Which ranks hold which rows or columns of one tensor, and how to say so in words.

Cut(0, (range(0, 2), range(0, 2), range(2, 3), range(3, 3))) of a tensor (3, 64)
    -> parts: ranks 0 and 1: rows 0-1; rank 2: row 2        no part: rank 3
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.calc.units import number_text
from labkit.tensor_parallel.cut import Cut


@dataclass(frozen=True)
class Part:
    """What `ranks`, all of them, hold of the tensor's dim that is cut."""

    ranks: tuple[int, ...]
    held: range


@dataclass(frozen=True)
class Parts:
    """One tensor: its whole shape, the dim that is cut (0 where none is), and who holds what."""

    shape: tuple[int, ...]
    dim: int
    parts: tuple[Part, ...]
    num_ranks: int
    held_by_rank: tuple[range, ...]

    @property
    def numbers(self) -> str:
        """The shape before and after: "256 x 64 -> 64 x 64", or "65 x 64 -> 17 or 16 x 64"."""
        lengths = sorted({len(held) for held in self.held_by_rank}, reverse=True)
        most, least = number_text(lengths[0]), number_text(lengths[-1])
        joined = " to " if len(lengths) > 2 else " or "
        own = most if len(lengths) == 1 else f"{most}{joined}{least}"
        whole = [number_text(length) for length in self.shape]
        shares = [own if dim == self.dim else text for dim, text in enumerate(whole)]
        return f"{' x '.join(whole)} -> {' x '.join(shares)}"

    @property
    def nothing(self) -> str:
        """Which ranks hold nothing, such as "nothing: ranks 2, 3"; "" where each has a part."""
        idle = tuple(rank for rank, held in enumerate(self.held_by_rank) if not held)
        return f"nothing: {ranks_text(idle)}" if idle else ""

    def who(self, part: Part) -> str:
        """ "rank 0", "ranks 0, 1" or "all ranks"."""
        is_shared_by_all = 1 < len(part.ranks) == self.num_ranks
        return "all ranks" if is_shared_by_all else ranks_text(part.ranks)

    def what(self, part: Part) -> str:
        """ "rows 0-15"; "" for the whole tensor."""
        if len(part.held) == self.shape[self.dim]:
            return ""
        return places_text(part.held, self.shape, self.dim)


def ranks_text(ranks: Sequence[int]) -> str:
    """ "rank 0", "ranks 0, 2", and "ranks 0-3" for more than two that follow each other."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    follow = len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1
    return f"ranks {ranks[0]}-{ranks[-1]}" if follow else f"ranks {', '.join(map(str, ranks))}"


def places_text(held: range, shape: tuple[int, ...], dim: int) -> str:
    """ "rows 0-15", "column 3", or "elements 0-15" of a tensor with one dim."""
    name = "element" if len(shape) == 1 else ("row", "column")[dim]
    first, last = held[0], held[-1]
    return f"{name} {first}" if first == last else f"{name}s {first}-{last}"


def parts_of(name: str, entry: Any, num_ranks: int) -> Parts:
    """Who holds what of `entry`, a (shape, Cut); `name` is for errors.

    TypeError: no such pair. ValueError: not one or two dims, an empty tensor, or a cut that is of
    another number of ranks or another tensor, or with shares that overlap without being equal.
    """
    shape, cut = _entry(name, entry)
    if cut.dim is None:
        everyone = Part(tuple(range(num_ranks)), range(shape[0]))
        return Parts(shape, 0, (everyone,), num_ranks, (everyone.held,) * num_ranks)
    if cut.dim not in range(-len(shape), len(shape)):
        raise ValueError(f"{name}: the cut is along dim {cut.dim}, and the shape is {shape}")
    if len(cut.held) != num_ranks:
        raise ValueError(
            f"{name}: the cut is for {len(cut.held)} ranks, and num_ranks={num_ranks}; make both "
            "for one number"
        )
    dim = cut.dim % len(shape)
    for rank, held in enumerate(cut.held):
        if held.step != 1 or not 0 <= held.start <= held.start + len(held) <= shape[dim]:
            raise ValueError(
                f"{name}: rank {rank} holds {held} of dim {dim}, which has {shape[dim]}; give "
                "ranges of step 1 within it"
            )
    parts = _shared(name, cut.held)
    ends = [0, *(part.held.stop for part in parts)]
    starts = [*(part.held.start for part in parts), shape[dim]]
    for nobodys in filter(None, map(range, ends, starts)):
        raise ValueError(
            f"{name}: nobody holds {places_text(nobodys, shape, dim)} of {shape}; give the shape "
            "of the whole tensor, and the cut that was made for it"
        )
    return Parts(shape, dim, parts, num_ranks, cut.held)


def _entry(name: str, entry: Any) -> tuple[tuple[int, ...], Cut]:
    try:
        lengths, cut = entry
        shape = tuple(map(int, lengths))
    except (TypeError, ValueError):
        shape, cut = (), None
    if not isinstance(cut, Cut):
        raise TypeError(f"{name}: {entry!r:.80} is no (shape, Cut), such as ((256, 64), Cut())")
    if len(shape) not in (1, 2) or min(shape) < 1:
        raise ValueError(
            f"{name}: a picture has room for rows and columns, and {shape} is not one or two "
            "positive lengths; reshape it, or leave it out"
        )
    return shape, cut


def _shared(name: str, held: Sequence[range]) -> tuple[Part, ...]:
    """From first to last, with equal shares joined; empty shares are no part."""
    ranks_of: dict[range, list[int]] = {}
    for rank, share in enumerate(held):
        if share:
            ranks_of.setdefault(share, []).append(rank)
    parts = [Part(tuple(ranks_of[share]), share) for share in sorted(ranks_of, key=_start)]
    for one, other in zip(parts, parts[1:]):
        if one.held.stop > other.held.start:
            raise ValueError(
                f"{name}: {ranks_text(one.ranks)} and {ranks_text(other.ranks)} hold {one.held} "
                f"and {other.held}; shares are equal, or apart"
            )
    return tuple(parts)


def _start(share: range) -> int:
    return share.start
