"""Which modules of a model are units of ZeRO-3, and which parameters belong to each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from labkit.comm import Group
from labkit.data_parallel.wrapping import require_equal_layouts

ROOT = "the rest"  # the root unit, in labels of messages and in errors
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


def resharded_names(
    chosen: bool | Iterable[nn.Module], modules: Mapping[str, nn.Module]
) -> set[str]:
    """Of the units that are released after forward. ValueError for one that is not in `modules`."""
    if isinstance(chosen, bool):
        return set(modules) if chosen else set()
    given = {id(each) for each in chosen}
    names = {name for name, each in modules.items() if id(each) in given}
    if len(names) < len(given):
        raise ValueError(
            f"reshard_after_forward has a module that is no unit; units are {', '.join(modules)}, "
            f"where the module itself stands for {ROOT}"
        )
    return names


def parameters_by_unit(
    module: nn.Module, modules: Mapping[str, nn.Module]
) -> dict[str, dict[str, nn.Parameter]]:
    """By unit and by name: what belongs to each of `modules`, of which the first is the root unit.

    A parameter that is tied between units belongs to the root unit, which is there all the time.
    """
    owners: dict[nn.Parameter, set[str]] = {}
    names: dict[nn.Parameter, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, name)
        owner = next((each for each in modules if name.startswith(f"{each}.")), ROOT)
        owners.setdefault(parameter, set()).add(owner)
    by_unit: dict[str, dict[str, nn.Parameter]] = {name: {} for name in modules}
    for parameter, name in names.items():
        owner = next(iter(owners[parameter])) if len(owners[parameter]) == 1 else ROOT
        by_unit[owner][name] = parameter
    return by_unit


def make_equal(module: nn.Module, group: Group, replicas: Group | None) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    for each in (group,) if replicas is None else (replicas, group):
        require_equal_layouts(module, each)
        for tensor in (*module.parameters(), *module.buffers()):
            each.broadcast(tensor.data, root=0, out=tensor.data)
