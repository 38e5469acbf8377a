"""Which modules of a model are gathered each by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from labkit.comm import Group
from labkit.data_parallel.wrapping import require_equal_layouts
from labkit.zero.flat_unit import FlatUnit
from labkit.zero.unit import Unit

ROOT = "the rest"
_LISTS = nn.ModuleList | nn.ModuleDict


def usual_modules(module: nn.Module) -> list[nn.Module]:
    """The layers: the members of every outermost Sequential, ModuleList and ModuleDict."""
    found: list[nn.Module] = []
    for child in module.children():
        # A list within a list is never called itself, so nothing would gather it.
        is_layer = isinstance(module, _LISTS | nn.Sequential) and not isinstance(child, _LISTS)
        found += [child] if is_layer else usual_modules(child)
    return found


def named_modules(module: nn.Module, chosen: Iterable[nn.Module] | None) -> dict[str, nn.Module]:
    """The chosen modules by name; those without parameters are left out.

    ValueError for one that is not in `module`, is all of it, or is within another.
    """
    names = {each: name for name, each in module.named_modules()}
    units = list(usual_modules(module) if chosen is None else chosen)
    for unit in units:
        if not isinstance(unit, nn.Module) or not names.get(unit):
            raise ValueError(f"{unit!r:.60} is no module within the one to be sharded")
        if isinstance(unit, _LISTS):
            raise ValueError(
                f"{names[unit]} is a list, which is never called, so nothing would gather it; give "
                "its members"
            )
    for unit in units:
        inner = [names[each] for each in units if each is not unit and each in set(unit.modules())]
        if inner:
            raise ValueError(f"{names[unit]} holds {inner[0]}, another unit; choose one of them")
    return {names[unit]: unit for unit in units if any(True for _ in unit.parameters())}


def kept_names(kept: nn.Module | Iterable[nn.Module], modules: Mapping[str, nn.Module]) -> set[str]:
    """Of the units `kept`. ValueError, with their names, for one that is none of `modules`."""
    chosen = [kept] if isinstance(kept, nn.Module) else list(kept)
    names = {name for name, each in modules.items() if any(each is one for one in chosen)}
    if len(names) < len({id(each) for each in chosen}):
        raise ValueError(
            f"kept has a module that is no unit; units are {', '.join(modules)}, where the module "
            f"itself stands for {ROOT}"
        )
    return names


def make_units(
    module: nn.Module,
    modules: Mapping[str, nn.Module],
    group: Group,
    compute_dtype: torch.dtype | None,
    *,
    poison: bool,
) -> list[Unit]:
    """The rest first, then a unit for each module. Of parameters only this rank's segments stay.

    A parameter that is tied between units belongs to the rest, which is there all the time.
    """
    owners: dict[nn.Parameter, set[str]] = {}
    names: dict[nn.Parameter, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, name)
        owner = next((each for each in modules if name.startswith(f"{each}.")), ROOT)
        owners.setdefault(parameter, set()).add(owner)
    by_unit: dict[str, dict[str, nn.Parameter]] = {name: {} for name in (ROOT, *modules)}
    for parameter, name in names.items():
        owner = next(iter(owners[parameter])) if len(owners[parameter]) == 1 else ROOT
        by_unit[owner][name] = parameter
    return [
        Unit(
            name,
            [FlatUnit(each, group, compute_dtype, poison=poison) for each in _by_kind(named)],
        )
        for name, named in by_unit.items()
    ]


def make_equal(module: nn.Module, group: Group, replicas: Group | None) -> None:
    """Everybody has rank 0's parameters and buffers."""
    for each in (group,) if replicas is None else (replicas, group):
        require_equal_layouts(module, each)
        for tensor in (*module.parameters(), *module.buffers()):
            each.broadcast(tensor.data, root=0, out=tensor.data)


def _by_kind(named: Mapping[str, nn.Parameter]) -> Sequence[dict[str, nn.Parameter]]:
    kinds: dict[tuple[object, ...], dict[str, nn.Parameter]] = {}
    for name, parameter in named.items():
        kind = (parameter.dtype, parameter.device, parameter.requires_grad)
        kinds.setdefault(kind, {})[name] = parameter
    return list(kinds.values())
