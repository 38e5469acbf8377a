"""Settings and states of torch's optimizers that another torch version has saved.

    an AdamW of torch 2.6      lr, betas, eps, weight_decay, amsgrad, maximize
    the AdamW of torch 2.7     the same, and decoupled_weight_decay

A setting may be missing in the file. torch's load_state_dict gives it the value of the older
version, in the optimizer's `__setstate__`. This module calls the same method. A setting that this
torch does not know is left out: it has no effect in torch either.

A DCP folder does not name the optimizer's class. So its settings and states are compared with those
of the classes of torch.optim (torch_optimizer_states.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from labkit.checkpoint.manifest import DoesNotFit
from labkit.checkpoint.torch_optimizer_states import KERNEL_SETTINGS, state_names

Settings = dict[str, Any]


def settings_for_this_torch(
    where: str,
    name: str,
    own: Sequence[Settings],
    saved: Sequence[Settings],
    states: Collection[str],
) -> list[Settings]:
    """Return the saved settings by group, with those that this torch's class adds to old ones.

    where: of the save, for errors. name: of the class, such as torch.optim.adamw.AdamW. own: the
    settings of this optimizer. states: the names of the saved states, of all parameters.
    DoesNotFit for the settings or the states of another class.
    """
    kind = getattr(torch.optim, name.rpartition(".")[2])
    saved = [{key: x for key, x in group.items() if key != "params"} for group in saved]
    completed = [_completed(kind, group) for group in saved]
    for ours, theirs, group in zip(own, completed, saved, strict=False):
        if missing := sorted(ours.keys() - theirs.keys()):
            raise DoesNotFit(
                f"{where} has no setting {missing[0]!r} of {name}: it is of another optimizer"
            )
        if other := sorted(key for key in group.keys() & theirs if group[key] != theirs[key]):
            raise DoesNotFit(
                f"{where} has {other[0]}={group[other[0]]!r:.80}, and {name} always has "
                f"{theirs[other[0]]!r}: it is of another optimizer"
            )
        if ours.keys() != group.keys() - KERNEL_SETTINGS:
            _require_no_other(where, kind, ours, group, states)
    if lacking := missing_states(name, states):
        raise DoesNotFit(
            f"{where} has no state {lacking[0]!r} of {name}: it is of another optimizer"
        )
    return completed


def _completed(kind: Any, group: Settings) -> Settings:
    """Return a group's settings after torch's load_state_dict."""
    shadow = object.__new__(kind)
    state = {"state": {}, "defaults": {}, "param_groups": [{**group, "params": []}]}
    shadow.__setstate__(state)
    (loaded,) = shadow.param_groups
    return {key: value for key, value in loaded.items() if key != "params"}


def _require_no_other(
    where: str, kind: Any, own: Settings, group: Settings, states: Collection[str]
) -> None:
    """Raise DoesNotFit if exactly these settings and states are those of another class."""
    found = group.keys() - KERNEL_SETTINGS
    for other in vars(torch.optim).values():
        if not isinstance(other, type) or other is kind:
            continue
        kept = state_names(other)
        if kept and kept.settings == found and (not states or kept.states == set(states)):
            differs = ", ".join(map(repr, sorted(found ^ own.keys())))
            raise DoesNotFit(
                f"{where} has the settings of torch.optim.{other.__name__}, which differ from "
                f"those of {kind.__name__} in {differs}: take that class. If another torch's "
                f"{kind.__name__} wrote them, save them with the settings of this one"
            )


def missing_states(name: str, states: Collection[str]) -> list[str]:
    """Return the states of a torch.optim class that the saved ones lack."""
    kept = state_names(getattr(torch.optim, name.rpartition(".")[2]))
    return sorted(kept.states - set(states)) if kept and states else []
