"""One rank's shard of a flat tensor: the fragments on which its optimizer steps.

    weights     w0 w0 w0 | w0 w1 w1 | w1 w2 .       parameters are views of it
    rank 1's             | w0 w1 w1 |               its shard, in two fragments
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
from labkit.global_norm import PartOfGradient
from labkit.zero.flat import Flat, Fragment


class Masters(NamedTuple):
    """The copies that an optimizer updates instead of the weights; None: as these are."""

    dtype: torch.dtype | None = None
    device: torch.device | str | None = None

    def are_copies_of(self, weights: Tensor) -> bool:
        """Whether masters are copies. They are on a device that is named, even on the same one."""
        return self.device is not None or self.dtype not in (None, weights.dtype)

    def copied(self, view: Tensor) -> Tensor:
        """A master copy of `view`."""
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
        self.fragments: list[Fragment] = flat.fragments(group.rank)
        self._weights = own_part(flat.weights, group)
        self._has_masters = masters.are_copies_of(flat.weights)
        views = [
            flat.shaped(self._weights[fragment.place], fragment) for fragment in self.fragments
        ]
        self.targets: list[Tensor] = [
            (masters.copied(view) if self._has_masters else view).detach().requires_grad_()
            for view in views
        ]
        """What the optimizer updates, fragment by fragment."""

    @property
    def label(self) -> str:
        """The label of messages about this shard."""
        ends = dict.fromkeys((self.names[0], self.names[-1]))
        return " to ".join(ends)

    @property
    def masters(self) -> list[Tensor]:
        """The master copies; none where the weights themselves are updated."""
        return [target.detach() for target in self.targets] if self._has_masters else []

    def set_gradients(self, total: Tensor | None, unused: Collection[int]) -> list[Tensor]:
        """Give each target its fragment of `total` (k,), as gradient, in the target's dtype.

        None takes the gradients away. unused: parameters, by number, that no rank has used: their
        targets get none. Returns the gradients.
        """
        gradients: list[Tensor] = []
        for fragment, target in zip(self.fragments, self.targets, strict=True):
            if total is None or fragment.number in unused:
                target.grad = None
                continue
            gradient = self.flat.shaped(total[fragment.place], fragment)
            kind = PartOfGradient if self.group.size > 1 else Tensor
            target.grad = gradient.to(target).as_subclass(kind)
            gradients.append(target.grad)
        return gradients

    @torch.no_grad()
    def round_masters(self) -> None:
        """Set the shard of the weights from the masters."""
        for fragment, master in zip(self.fragments, self.masters, strict=False):
            self._weights[fragment.place].copy_(self.flat.row(master, fragment))

    @torch.no_grad()
    def copy_to_masters(self, *which: int) -> None:
        """Set masters, by number, or all, from weights that were loaded."""
        for index in (which or range(len(self.fragments))) if self._has_masters else ():
            fragment = self.fragments[index]
            self.masters[index].copy_(self.flat.shaped(self._weights[fragment.place], fragment))

    def place_of(self, index: int) -> dict[str, Any]:
        """Where one of the fragments is in its parameter; plain data."""
        fragment = self.fragments[index]
        form = self.flat.forms[fragment.number]
        return {
            "shape": tuple(form.shape),
            "stride": tuple(form.stride()),
            "start": fragment.within.start,
            "stop": fragment.within.stop,
            "is_whole": self.flat.layout.keeps_whole,
        }
