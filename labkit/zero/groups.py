"""Groups of parameters with settings, as torch.optim has them.

A class of its own, since torch's loads its compiler in `add_param_group`: over a second in every
fresh process.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labkit.data_parallel.hooks import is_averaged_in_backward
from labkit.data_parallel.wrapping import is_sharded


class Member(NamedTuple):
    """A parameter of a group, with its number over all groups: state dicts go by it."""

    number: int
    name: str
    parameter: nn.Parameter


class Groups(torch.optim.Optimizer):
    """A torch.optim.Optimizer, so that schedulers take it, with nothing but its groups."""

    _trained_names: set[str]

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """The first attribute that torch.amp.GradScaler reads: refuse it."""
        raise TypeError(
            "torch.amp.GradScaler looks for inf on each rank alone, and with a sharded optimizer "
            "one rank would skip a step that other ranks make. Use "
            "labkit.precision.LossScaler(group=...), which decides for all ranks together"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a sharded optimizer is bound to this process and its groups, and cannot be copied or "
            "pickled; save state_dict() or full_state_dict(), and make a new one from it"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take in one group: parameters, or pairs of a name and a parameter, and settings.

        TypeError for what is no leaf, ValueError for a parameter that is in a group already, and
        RuntimeError once the groups are in use.
        """
        if hasattr(self, "shards"):
            raise RuntimeError(
                "its parameters have been cut into shards; make a new optimizer with all groups"
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
                    f"{name} is a shard of FullyShardedModule, whose states are sharded by that; "
                    "give it to the optimizer itself, torch.optim.AdamW(model.parameters())"
                )
            if is_averaged_in_backward(parameter):
                raise TypeError(
                    f"{name} belongs to a module that is wrapped in DDP, whose hooks average its "
                    "gradient, and a sharded optimizer does that itself: give it the parameters of "
                    "a module that is not wrapped"
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

    def require_same_trained(self) -> None:
        """RuntimeError that names what was frozen or unfrozen since the optimizer was made."""
        now = {member.name for members in self.trained for member in members}
        if now != self._trained_names:
            names = ", ".join(sorted(now ^ self._trained_names))
            raise RuntimeError(
                f"{names}: frozen or unfrozen after the optimizer was made, which has cut its "
                "parameters into shards by then; do so first, and make the optimizer after"
            )

    @property
    def settings(self) -> list[dict[str, Any]]:
        """The settings of each group, as they are now."""
        return [
            {key: value for key, value in group.items() if key not in ("params", "param_names")}
            for group in self.param_groups
        ]

    @property
    def trained(self) -> list[list[Member]]:
        """By group: the parameters that are not frozen."""
        found, number = [], 0
        for group in self.param_groups:
            pairs = zip(group["param_names"], group["params"], strict=True)
            members = [Member(n, *pair) for n, pair in enumerate(pairs, start=number)]
            number += len(members)
            found.append([member for member in members if member.parameter.requires_grad])
        return found

    @property
    def frozen(self) -> list[Tensor]:
        """The parameters that are frozen."""
        given = (p for group in self.param_groups for p in group["params"])
        return [p.data for p in given if not p.requires_grad]


def by_kind(members: list[Member]) -> list[list[Member]]:
    """Parameters of one dtype on one device each: these fit in one flat tensor."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Member]] = {}
    for member in members:
        kinds.setdefault((member.parameter.dtype, member.parameter.device), []).append(member)
    return list(kinds.values())
