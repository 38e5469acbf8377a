"""Zero1Optimizer as torch sees it, and the optimizer within it.

Groups is a torch.optim.Optimizer that has only parameter groups. (It has its own `add_param_group`:
torch's loads the compiler, which takes over a second in every new process.)

LocalOptimizer holds an optimizer of torch or of the lab, which steps on this rank's fragments.
Fragments are enough for element-wise optimizers. Others need, or may need, whole parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labkit.data_parallel.replica import is_averaged_in_backward, is_sharded
from labkit.large_batch import LARS
from labkit.optimizer import SGD, AdamW, load_states, state_tensors, states_of


class Member(NamedTuple):
    """A parameter of a group. State dicts name it by `number`, which counts over all groups."""

    number: int
    name: str
    parameter: nn.Parameter


class Groups(torch.optim.Optimizer):
    """A torch.optim.Optimizer, so that schedulers take it, with only parameter groups."""

    _trainable_names: set[str]

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Refuse torch.amp.GradScaler, which reads this attribute first."""
        raise TypeError(
            "torch.amp.GradScaler looks for inf on each rank alone: with a sharded optimizer one "
            "rank would skip a step that other ranks make. Use "
            "labkit.precision.LossScaler(group=...), which decides for all ranks together"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a sharded optimizer is bound to this process and its groups, and cannot be copied or "
            "pickled; save state_dict() or full_state_dict(), and make a new one from it"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, or of (name, parameter) pairs, with its settings.

        TypeError for anything but a leaf, ValueError for a parameter that is in a group already,
        and RuntimeError once the parameters are sharded.
        """
        if hasattr(self, "shards"):
            raise RuntimeError(
                "the parameters are sharded already, so no group can be added; make a new "
                "optimizer with all groups"
            )
        given = param_group["params"]
        given = [given] if isinstance(given, Tensor) else list(given)
        known = {id(p) for group in self.param_groups for p in group["params"]}
        names, parameters = [], []
        for number, each in enumerate(given, start=len(known)):
            name, parameter = each if isinstance(each, tuple) else (f"parameter {number}", each)
            if not isinstance(parameter, Tensor) or not parameter.is_leaf:
                raise TypeError(
                    f"{name} is {parameter!r:.60}: give parameters, such as module.parameters()"
                )
            if is_sharded(parameter):
                raise TypeError(
                    f"{name} is a shard of FullyShardedModule, so its optimizer states are sharded "
                    "already; give it to torch's optimizer, torch.optim.AdamW(model.parameters())"
                )
            if is_averaged_in_backward(parameter):
                raise TypeError(
                    f"{name} belongs to a module that is wrapped in DDP, whose hooks average its "
                    "gradient; a sharded optimizer averages gradients itself, so give it the "
                    "parameters of a module that is not wrapped"
                )
            if id(parameter) in known:
                raise ValueError(f"{name} is given twice, or is in two groups; give it once")
            known.add(id(parameter))
            names.append(name)
            parameters.append(parameter)
        settings = {key: value for key, value in param_group.items() if key != "params"}
        self.param_groups.append(
            {**self.defaults, **settings, "params": parameters, "param_names": names}
        )

    def require_same_trainable(self) -> None:
        """Raise RuntimeError if parameters were frozen or unfrozen since construction."""
        now = {member.name for members in self.trainable_members for member in members}
        if now != self._trainable_names:
            names = ", ".join(sorted(now ^ self._trainable_names))
            raise RuntimeError(
                f"{names}: frozen or unfrozen after the optimizer was made, which sharded the "
                "parameters then; freeze or unfreeze first, then make the optimizer"
            )

    @property
    def settings(self) -> list[dict[str, Any]]:
        """The present settings of each group."""
        return [
            {key: value for key, value in group.items() if key not in ("params", "param_names")}
            for group in self.param_groups
        ]

    @property
    def trainable_members(self) -> list[list[Member]]:
        """The parameters that are not frozen, by group."""
        found, number = [], 0
        for group in self.param_groups:
            pairs = zip(group["param_names"], group["params"], strict=True)
            members = [Member(n, *pair) for n, pair in enumerate(pairs, start=number)]
            number += len(members)
            found.append([member for member in members if member.parameter.requires_grad])
        return found

    @property
    def frozen(self) -> list[Tensor]:
        """The frozen parameters."""
        given = (p for group in self.param_groups for p in group["params"])
        return [p.data for p in given if not p.requires_grad]


class LocalOptimizer:
    """An optimizer of this rank's fragments, in groups. Each step uses the settings of `Groups`."""

    def __init__(
        self,
        optimizer_class: Any,
        fragments: Sequence[Sequence[Tensor]],
        groups: Sequence[Mapping[str, Any]],
        defaults: Mapping[str, Any],
    ) -> None:
        """fragments: this rank's, by group; there may be none. groups: the settings of each.

        TypeError for several groups with a class that takes no groups, and for anything that is no
        optimizer.
        """
        self._optimizer: Any = None
        if isinstance(optimizer_class, type) and issubclass(optimizer_class, _LAB_OPTIMIZERS):
            if len(groups) > 1:
                raise TypeError(
                    f"{optimizer_class.__name__} of the lab has one set of settings for all "
                    f"parameters, but there are {len(groups)} groups; use one of torch.optim"
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
                f"{optimizer_class!r:.60} returned {self._optimizer!r:.60}, which is no "
                "torch.optim.Optimizer"
            )

    def step(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Make a step with the settings of `groups`, which schedulers may have changed."""
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
        """The optimizer's states, one dict per fragment, in order."""
        return [] if self._optimizer is None else states_of(self._optimizer)

    @states.setter
    def states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Set the states, one dict per fragment, without copies."""
        if self._optimizer is not None:
            load_states(self._optimizer, states)

    @property
    def state_tensors(self) -> list[Tensor]:
        """The states that are in memory."""
        return [] if self._optimizer is None else state_tensors(self._optimizer)


def by_kind(members: list[Member]) -> list[list[Member]]:
    """Return parameters grouped by dtype and device: each group fits in one flat tensor."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Member]] = {}
    for member in members:
        kinds.setdefault((member.parameter.dtype, member.parameter.device), []).append(member)
    return list(kinds.values())


_LAB_OPTIMIZERS = (SGD, AdamW, LARS)
_ELEMENT_WISE = {SGD, AdamW} | {
    getattr(torch.optim, name)
    for name in "SGD Adam AdamW Adamax NAdam RAdam RMSprop Rprop ASGD Adagrad Adadelta".split()
}
_REFUSED = {
    "LBFGS": "computes inner products of all parameters, and evaluates the loss several times",
    "SparseAdam": "takes sparse gradients, which no flat tensor holds",
}


def takes_fragments(optimizer_class: Any) -> bool:
    """Return whether the class is known to be element-wise; a subclass is not.

    TypeError for anything but a class or function, and for an optimizer that cannot be sharded.
    """
    if not callable(optimizer_class) or isinstance(optimizer_class, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer_class={optimizer_class!r:.80}: give a class, such as torch.optim.AdamW, "
            "and its settings after it, lr=1e-3 for example"
        )
    optimizer_class = getattr(optimizer_class, "within", optimizer_class)  # see states_on_disk.py
    name = getattr(optimizer_class, "__name__", "")
    if name in _REFUSED and optimizer_class is getattr(torch.optim, name):
        raise TypeError(
            f"torch.optim.{name} {_REFUSED[name]}; it cannot be sharded. Choose another, such as "
            "torch.optim.AdamW"
        )
    return optimizer_class in _ELEMENT_WISE
