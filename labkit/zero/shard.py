"""One rank's share of a flat tensor: the fragments on which its optimizer steps.

    weights     w0 w0 w0 | w0 w1 w1 | w1 w2 .       parameters are views of it
    rank 1's             | w0 w1 w1 |               its segment, in two fragments
    masters                f0 f1 f1                 float32 copies of them, where asked for

Memory: nothing but the masters; everything else is a view.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.collectives.wire import own_part
from labkit.comm import Group
from labkit.zero.flat import Flat, Fragment


class Masters(NamedTuple):
    """The copies that an optimizer updates in the place of the weights; None: as these are."""

    dtype: torch.dtype | None = None
    device: torch.device | str | None = None

    def are_copies_of(self, weights: Tensor) -> bool:
        """Whether there are any. On a device that is named there are, also if it is the same."""
        return self.device is not None or self.dtype not in (None, weights.dtype)

    def copied(self, view: Tensor) -> Tensor:
        """Such a copy."""
        return view.to(self.device or view.device, self.dtype or view.dtype, copy=True)


class Shard:
    """What a rank owns of one flat tensor."""

    def __init__(
        self,
        flat: Flat,
        names: Sequence[str],
        numbers: Sequence[int],
        group: Group,
        masters: Masters,
    ) -> None:
        """names, numbers: of the parameters, for errors and for state dicts."""
        self.flat, self.names, self.numbers, self.group = flat, tuple(names), tuple(numbers), group
        self.pieces: list[Fragment] = flat.fragments(group.rank)
        self._segment = own_part(flat.weights, group)
        self._has_masters = masters.are_copies_of(flat.weights)
        views = [flat.shaped(self._segment[piece.place], piece) for piece in self.pieces]
        self.targets: list[Tensor] = [
            (masters.copied(view) if self._has_masters else view).detach().requires_grad_()
            for view in views
        ]
        """What the optimizer updates, fragment by fragment."""

    @property
    def label(self) -> str:
        """What a message is about, in words."""
        ends = dict.fromkeys((self.names[0], self.names[-1]))
        return " to ".join(ends)

    @property
    def masters(self) -> list[Tensor]:
        """The copies that are optimizer states; none where the weights are updated themselves."""
        return [target.detach() for target in self.targets] if self._has_masters else []

    def set_gradients(self, segment: Tensor | None, unused: Collection[int]) -> list[Tensor]:
        """Give each target its part of `segment` (k,), as gradient, in the target's dtype.

        None takes the gradients away. unused: parameters, by number, that no rank has used: their
        targets get none. Returns the gradients.
        """
        gradients = []
        for piece, target in zip(self.pieces, self.targets, strict=True):
            if segment is None or piece.number in unused:
                target.grad = None
                continue
            gradient = self.flat.shaped(segment[piece.place], piece)
            target.grad = gradient.to(target)
            gradients.append(target.grad)
        return gradients

    @torch.no_grad()
    def round_masters(self) -> None:
        """Set the segment of the weights from the masters."""
        for piece, master in zip(self.pieces, self.masters, strict=False):
            self._segment[piece.place].copy_(self.flat.row(master, piece))

    @torch.no_grad()
    def copy_to_masters(self, *which: int) -> None:
        """Set masters, by number, or all, from the weights, which somebody has loaded."""
        for index in (which or range(len(self.pieces))) if self._has_masters else ():
            piece = self.pieces[index]
            self.masters[index].copy_(self.flat.shaped(self._segment[piece.place], piece))

    def place_of(self, index: int) -> dict[str, Any]:
        """Where one of the fragments is in its parameter; plain data."""
        piece = self.pieces[index]
        form = self.flat.forms[piece.number]
        return {
            "shape": tuple(form.shape),
            "stride": tuple(form.stride()),
            "start": piece.within.start,
            "stop": piece.within.stop,
            "is_whole": self.flat.layout.keeps_whole,
        }
