"""The optimizer within: any of torch's or of the lab's, which steps on this rank's fragments.

Whether it may have fragments depends on what it looks at. An element-wise optimizer may;
of others it is known, or must be assumed, that they look at a whole parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.large_batch import LARS
from labkit.optimizer import SGD, AdamW, load_states, state_tensors, states_of

_OF_THE_LAB = (SGD, AdamW, LARS)
_BY_ELEMENT = {SGD, AdamW} | {
    getattr(torch.optim, name)
    for name in "SGD Adam AdamW Adamax NAdam RAdam RMSprop Rprop ASGD Adagrad Adadelta".split()
}
_REFUSED = {
    "LBFGS": "computes inner products of all parameters, and evaluates the loss several times",
    "SparseAdam": "takes sparse gradients, which no flat tensor holds",
}


def takes_fragments(optimizer_class: Any) -> bool:
    """Whether it is element-wise. Exactly these classes are: what inherits from them may differ.

    TypeError for what cannot be called, and for an optimizer that cannot be sharded at all.
    """
    if not callable(optimizer_class) or isinstance(optimizer_class, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer_class={optimizer_class!r:.80}: give a class, such as torch.optim.AdamW, "
            "and its settings after it, lr=1e-3 for example"
        )
    optimizer_class = getattr(optimizer_class, "within", optimizer_class)  # on disk: offload.py
    name = getattr(optimizer_class, "__name__", "")
    if name in _REFUSED and optimizer_class is getattr(torch.optim, name):
        raise TypeError(
            f"torch.optim.{name} {_REFUSED[name]}; it cannot be sharded. Choose another, such as "
            "torch.optim.AdamW"
        )
    return optimizer_class in _BY_ELEMENT


class Inner:
    """An optimizer over fragments, in groups; its settings follow those of the groups outside."""

    def __init__(
        self,
        optimizer_class: Any,
        fragments: Sequence[Sequence[Tensor]],
        groups: Sequence[Mapping[str, Any]],
        defaults: Mapping[str, Any],
    ) -> None:
        """fragments: this rank's, by group; there may be none.

        groups: the settings of each. TypeError for a class that takes no groups, where there are
        several, and for something that is no optimizer.
        """
        self._optimizer: Any = None
        if isinstance(optimizer_class, type) and issubclass(optimizer_class, _OF_THE_LAB):
            if len(groups) > 1:
                raise TypeError(
                    f"{optimizer_class.__name__} of the lab has one set of settings for all "
                    f"parameters, and here are {len(groups)} groups; choose one of torch.optim"
                )
            if fragments[0]:
                self._optimizer = optimizer_class(fragments[0], **defaults)
            return
        given = [
            {**settings, "params": list(each)}
            for settings, each in zip(groups, fragments, strict=True)
        ]
        self._optimizer = optimizer_class(given, **defaults)
        if not hasattr(self._optimizer, "param_groups"):
            raise TypeError(
                f"{optimizer_class!r:.60} made {self._optimizer!r:.60}, which is no "
                "torch.optim.Optimizer"
            )

    def step(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """One step, with the settings of `groups` as they are now: schedulers change them."""
        if self._optimizer is None:
            return
        if hasattr(self._optimizer, "param_groups"):
            for group, settings in zip(self._optimizer.param_groups, groups, strict=True):
                group.update(settings)
        else:
            vars(self._optimizer).update(groups[0])
        self._optimizer.step()

    @property
    def settings(self) -> list[dict[str, Any]]:
        """The settings of each group of torch's optimizer, defaults included."""
        if not hasattr(self._optimizer, "param_groups"):
            return [{}]
        return [
            {name: value for name, value in group.items() if name != "params"}
            for group in self._optimizer.param_groups
        ]

    @property
    def states(self) -> list[dict[str, Any]]:
        """The optimizer's states by fragment, in their order."""
        return [] if self._optimizer is None else states_of(self._optimizer)

    @states.setter
    def states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """states: of each fragment, in their order; no copies. A rank without any ignores them."""
        if self._optimizer is not None:
            load_states(self._optimizer, states)

    @property
    def state_tensors(self) -> list[Tensor]:
        """The states that are in memory."""
        return [] if self._optimizer is None else state_tensors(self._optimizer)
