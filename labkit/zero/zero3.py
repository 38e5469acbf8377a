"""ZeRO-3, or fully sharded data parallelism: parameters are whole only while they are used.

    forward    gather 0 | compute 0, gather 1 | compute 1, gather 2 | ...      released after use
    backward   gather 2 | compute 2, gather 1 | compute 1, gather 0 | ...      released after use
    gradients             reduce-scatter 2      reduce-scatter 1

It adds two things to plain_zero3.py: hooks, so that any module can be wrapped, and overlap. While a
unit computes, the next unit is gathered and the gradients of the last one are reduced. So a rank
holds 1/n of all states, and at most two gathered units and the gradients of two units.

Parameters outside all layers (embeddings, the last norm, the head) belong to the root unit. It is
gathered during the whole forward pass and the whole backward pass, besides the two units above.

This file has the module and chooses its units. The gather itself is in unit.py, and passes.py says
when it starts.

Layout: each rank has a part of each parameter, as a flat view (numel of the part,) of its unit's
shard (k,). `named_parameters()` yields these views by the parameters' own names, and the optimizer
updates them. The parameters of `module` itself are empty except while their unit is gathered.
Wire: per microbatch two all-gathers and a reduce-scatter of all parameters: 3 (n-1)/n of their
bytes. A unit with `reshard_after_forward=False` stays gathered, and saves one all-gather.

Hybrid sharding: shards within a group of fast links, replicas across slow links. (torch says HSDP
or HYBRID_SHARD.)

              host 0: ranks 0 1 2 3     host 1: ranks 4 5 6 7
    shards    s0 s1 s2 s3               s0 s1 s2 s3               gathered and reduced in the host
    replicas  0-4, 1-5, 2-6, 3-7                                  gradients' shards: all-reduced

With m hosts, 2(m-1)/m of the gradients' bytes leave a host per backward pass. Sharding over all n
ranks sends 3 (n-1)/n of the parameters' bytes over each host's link. The price is memory: here
states shrink to 1/4, not to 1/8.

Papers: Rajbhandari et al., arXiv:1910.02054, sections 5.3 and 7.2.2; Zhao et al., "PyTorch FSDP",
arXiv:2304.11277, whose storages and hooks this follows (hybrid sharding: section 3.2.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

from labkit.collectives.backend import CollectiveBackend, Done, chosen_backend, require_backend
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.data_parallel.background import CommunicationThread
from labkit.data_parallel.replica import (
    is_sharded,
    on_gradient,
    remove_with,
    require_equal_layouts,
    require_unwrapped,
    weakly,
)
from labkit.global_norm import clip
from labkit.optimizer import require_in_use
from labkit.shards import NamedShard, saved_buffers
from labkit.zero.flat import require_floating
from labkit.zero.local_optimizer import takes_fragments
from labkit.zero.passes import Passes
from labkit.zero.unit import FlatParameter, ShardingOptions, Unit

ROOT = "root unit"  # in labels of messages and in errors
_LISTS = nn.ModuleList | nn.ModuleDict


class FullyShardedModule(nn.Module):
    """A module whose parameters are sharded, and gathered layer by layer while they are used.

        model = FullyShardedModule(module, world)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        loss(model, share).backward()      leaves means in the gradients of the shards
        optimizer.step()

    `named_parameters()` yields this rank's part of each parameter by its name in `module`, as in
    torch's FSDP(use_orig_params=True); a tied parameter has its first name. Use these names for an
    optimizer's groups, for freezing and for logging. A parameter of which this rank has no element
    is empty and gets no gradient. A parameter that no rank has used since zero_grad gets none
    either, so weight decay skips it, as in one process. If only some ranks have used it, the others
    count as zeros. Freezing a part freezes the parameter in `module` from the next forward pass on.

    Make the optimizer from this module: one with the parameters of `module` raises RuntimeError in
    its step. It must be element-wise: Adam is, LAMB and Muon are not. Gradients are GradientShard:
    torch's clip_grad_norm_ and torch.amp.GradScaler raise an error for them.

    Every rank makes the same passes through the same units. Released parameters are empty, and a
    sum over them is 0 without an error; `debug=True` fills them with nan. If a unit changes its
    input in place, for example by a ReLU(inplace=True) at its start, torch raises an error about a
    view.
    """

    module: nn.Module
    """The wrapped module. Its parameters are empty; its buffers are whole, and each rank's own."""

    def __init__(
        self,
        module: nn.Module,
        group: Group | None = None,
        compute_dtype: torch.dtype | None = None,
        *,
        units: Iterable[nn.Module] | None = None,
        reshard_after_forward: bool | Iterable[nn.Module] = True,
        replicas: Group | None = None,
        backend: CollectiveBackend | None = None,
        debug: bool = False,
    ) -> None:
        """group: the ranks that shard; None for torch.distributed's default one.

        compute_dtype: of gathered parameters, reduced gradients and floating-point inputs. Shards
        keep their dtype, so bfloat16 with float32 shards is mixed precision. units: the modules to
        gather one by one; None: the members of every outermost ModuleList and Sequential.
        reshard_after_forward: whether units are released after forward, and gathered again for
        backward; or a list of the units to release, in which `module` itself is the root unit.
        (Backward needs the last layer and the root unit first: releasing them saves little.)
        replicas: ranks that hold the same shards, for hybrid sharding. debug: fill released
        parameters with nan instead of freeing them.

        TypeError for anything but a module. ValueError for units that are not inside it, and on a
        rank whose module differs from rank 0's in more than its values.
        """
        super().__init__()
        require_unwrapped(module)
        require_backend(backend)
        require_floating("compute_dtype", compute_dtype)
        modules = {ROOT: module, **named_modules(module, units)}
        resharded = resharded_names(reshard_after_forward, modules)
        self.group, self.compute_dtype = chosen(group), compute_dtype
        if replicas is not None:
            require_replicas(replicas, self.group)
        sync_module_states(module, self.group, replicas)
        names = [name for name, _ in module.named_parameters()]
        _watch_steps()

        thread = CommunicationThread.for_group(self.group)
        backend, num_ranks = chosen_backend(backend, self.group), self.group.size
        if replicas is not None:
            backend, num_ranks = (
                all_reduce_across_replicas(thread.own_group(replicas), backend),
                num_ranks * replicas.size,
            )
        options = ShardingOptions(self.group, thread, backend, num_ranks, compute_dtype, debug)
        by_unit = parameters_by_unit(module, modules)
        self._units = [Unit(name, parameters, options) for name, parameters in by_unit.items()]
        self._passes = Passes(self._units, [u for u in self._units if u.name in resharded])
        self._hook(modules.values())

        self.__dict__["module"] = module  # not as a submodule: the shards are its parameters
        shards = {n: s for flat in self._flats for n, s in zip(flat.names, flat.shards)}
        # Not register_parameter, which refuses names with a dot.
        self._parameters.update((name, shards[name]) for name in names)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's result. Inputs are cast to compute_dtype; hooks call `Passes`."""
        args, kwargs = tree_map_only(Tensor, self._cast, (args, kwargs))
        return self.module(*args, **kwargs)

    def _hook(self, modules: Iterable[nn.Module]) -> None:
        """Add hooks that call `Passes` before and after each unit, and with every gradient.

        They refer to `Passes` weakly, and are removed with it: see data_parallel/replica.py.
        """
        handles: list[RemovableHandle] = []
        for unit, each in zip(self._units, modules, strict=True):
            before = weakly(self._passes.before_forward, unit)
            after = weakly(self._passes.after_forward, unit)
            handles.append(each.register_forward_pre_hook(before, prepend=True, with_kwargs=True))
            handles.append(each.register_forward_hook(after))
            handles += [
                on_gradient(parameter, self._passes.arrived, unit, flat, index)
                for flat in unit.flats
                if flat.has_hooks
                for index, parameter in enumerate(flat.parameters)
            ]
        remove_with(self._passes, handles)  # a graph that waits for backward keeps it alive

    def train(self, mode: bool = True) -> FullyShardedModule:
        """Set the mode of the wrapped module, like nn.Module.train."""
        self.module.train(mode)
        self.training = mode
        return self

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Scale the gradients of all shards down to a norm of at most `max_norm` over all ranks.

        Returns the norm before clipping, (). torch's clip_grad_norm_ raises an error: it sees only
        this rank's shards, so every rank would scale by another factor. Wire: one number in an
        all-reduce. TypeError, ValueError for a max_norm that is not a number above 0.
        """
        gradients = [(p.grad, 1) for p in self.parameters() if p.grad is not None]
        return clip(gradients, max_norm, self.group)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Raise RuntimeError: a rank's part would load on another rank without an error."""
        raise RuntimeError(_NO_STATE_DICT)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Raise RuntimeError: see `state_dict`."""
        raise RuntimeError(_NO_STATE_DICT)

    def full_parameters(self) -> dict[str, Tensor]:
        """Return copies of all whole parameters, by name in the module, in the shards' dtype.

        Every rank calls it. A tied parameter has its first name. Wire: an all-gather of all shards.
        """
        found = {}
        for flat in self._flats:
            found.update(flat.full_parameters())
        return found

    def load_full_parameters(self, parameters: Mapping[str, Tensor]) -> None:
        """Load full parameters: the inverse of `full_parameters`. Nothing is sent.

        ValueError for names or shapes of another model, before anything is loaded.
        """
        known = {name for flat in self._flats for name in flat.names}
        if known != parameters.keys():
            raise ValueError(
                f"{', '.join(sorted(known ^ parameters.keys()))}: only in these parameters, or "
                "only in the module; give what full_parameters() of the same model returned"
            )
        for flat in self._flats:
            flat.require_shapes(parameters)
        for flat in self._flats:
            flat.load_full_parameters(parameters)

    def named_shards(self) -> Iterator[NamedShard]:
        """Yield this rank's part of each parameter, and the module's buffers, for a checkpoint.

        Frozen parameters are included. TypeError for a tensor-parallel module.
        """
        layers = [getattr(each, "shardings", {}) for each in self.module.modules()]
        if any(sharding.dim is not None for each in layers for sharding in each.values()):
            raise TypeError(
                "a FullyShardedModule of a tensor-parallel model: its shards are ranges of a "
                "rank's own rows, which no other layout has. Save from CombinedGPT, or shard the "
                "optimizer's states with Zero1Optimizer instead"
            )
        for flat in self._flats:
            yield from flat.named_shards()
        yield from saved_buffers(self.module)

    @property
    def shards(self) -> list[Tensor]:
        """The flat shards (k,) with padding, by unit; those of the root unit come first."""
        return [flat.shard for flat in self._flats]

    @property
    def _flats(self) -> list[FlatParameter]:
        return [flat for unit in self._units for flat in unit.flats]

    def _cast(self, x: Tensor) -> Tensor:
        is_cast = self.compute_dtype is not None and x.is_floating_point()
        return x.to(self.compute_dtype) if is_cast else x

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a sharded module is bound to this process and its groups, and cannot be copied or "
            "pickled; save full_parameters(), and shard a module made from them"
        )

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "a sharded module cannot be moved or converted: move or convert the module first, then "
            "shard it; compute_dtype=torch.bfloat16 computes in 16 bits"
        )


def default_units(module: nn.Module) -> list[nn.Module]:
    """Return the layers: the members of every outermost Sequential, ModuleList and ModuleDict."""
    found: list[nn.Module] = []
    for child in module.children():
        # A list inside a list is never called itself, so its forward hooks would never gather it.
        is_layer = isinstance(module, _LISTS | nn.Sequential) and not isinstance(child, _LISTS)
        found += [child] if is_layer else default_units(child)
    return found


def named_modules(module: nn.Module, chosen: Iterable[nn.Module] | None) -> dict[str, nn.Module]:
    """Return the chosen modules that have parameters, by name.

    ValueError for a module that is not inside `module`, or is inside another chosen one.
    """
    names = {each: name for name, each in module.named_modules()}
    units = list(default_units(module) if chosen is None else chosen)
    for unit in units:
        if not isinstance(unit, nn.Module) or not names.get(unit):
            raise ValueError(f"{unit!r:.60} is not a module inside the module to be sharded")
        if isinstance(unit, _LISTS):
            raise ValueError(
                f"{names[unit]} is a list, which is never called, so nothing would gather it; pass "
                f"units=list(module.{names[unit]}{'.values()' * isinstance(unit, nn.ModuleDict)})"
            )
    for unit in units:
        inner = [names[each] for each in units if each is not unit and each in set(unit.modules())]
        if inner:
            raise ValueError(f"{names[unit]} holds {inner[0]}, another unit; choose one of them")
    return {names[unit]: unit for unit in units if any(True for _ in unit.parameters())}


def resharded_names(
    chosen: bool | Iterable[nn.Module], modules: Mapping[str, nn.Module]
) -> set[str]:
    """Return the names of units to release after forward. ValueError for one not in `modules`."""
    if isinstance(chosen, bool):
        return set(modules) if chosen else set()
    given = {id(each) for each in chosen}
    names = {name for name, each in modules.items() if id(each) in given}
    if len(names) < len(given):
        raise ValueError(
            f"reshard_after_forward has a module that is no unit; units are {', '.join(modules)}, "
            f"where the module itself stands for the {ROOT}"
        )
    return names


def parameters_by_unit(
    module: nn.Module, modules: Mapping[str, nn.Module]
) -> dict[str, dict[str, nn.Parameter]]:
    """Return the parameters by unit and name. The first unit is the root unit.

    A parameter that several units share belongs to the root unit, which stays gathered for all.
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


def sync_module_states(module: nn.Module, group: Group, replicas: Group | None) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    for each in (group,) if replicas is None else (replicas, group):
        require_equal_layouts(module, each)
        for tensor in (*module.parameters(), *module.buffers()):
            each.broadcast(tensor.data, root=0, out=tensor.data)


def require_replicas(replicas: Group, group: Group) -> None:
    """Raise ValueError unless `replicas` all hold the same shard, one in each group of shards.

    Wire: two numbers in an all-gather.
    """
    mine = torch.tensor([group.rank, group.size], device=group.device)
    if set(replicas.ranks) & set(group.ranks) != {group.ranks[group.rank]} or not torch.equal(
        replicas.all_gather(mine).view(-1, 2), mine.expand(replicas.size, 2)
    ):
        raise ValueError(
            f"replicas={list(replicas.ranks)} do not hold one shard of group={list(group.ranks)}: "
            "give ranks with the same rank in groups of the same size, of which only this rank is "
            "in both. For hosts of 4 ranks: group=world.split(rank // 4), "
            "replicas=world.split(rank % 4)"
        )


def all_reduce_across_replicas(replicas: Group, backend: CollectiveBackend) -> CollectiveBackend:
    """Return `backend` with a reduce-scatter that also sums over the replicas of a shard.

    This adds 2(m-1)/m of a shard's bytes to its traffic, with m replicas.
    """

    def reduce_scatter(flat: Tensor, group: Group, *, in_place: bool = False) -> Done:
        own = backend.reduce_scatter(flat, group, in_place=in_place).wait()
        with replicas.label("gradients of replicas"):
            replicas.all_reduce(own, out=own)
        return Done(own)

    return backend._replace(reduce_scatter=reduce_scatter)


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Raise RuntimeError for parameters that shards have replaced, TypeError for shards in an
    optimizer that needs whole parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    require_in_use(parameters)
    kind = type(optimizer)
    is_torchs = kind is getattr(torch.optim, kind.__name__, None)
    if is_torchs and not takes_fragments(kind) and any(map(is_sharded, parameters)):
        raise TypeError(
            f"torch.optim.{kind.__name__} looks at whole parameters, but each rank has parts of "
            "them; choose an element-wise optimizer, such as torch.optim.AdamW"
        )


@cache
def _watch_steps() -> None:
    """Let torch call `_before_step` before every optimizer step, from the first sharding on."""
    register_optimizer_step_pre_hook(_before_step)


_NO_STATE_DICT = (
    "a sharded module has no state_dict: each rank holds another part, and the parameters of the "
    "wrapped module are empty. Save full_parameters() and the buffers of `module`; or `shards` on "
    "each rank, to load on as many ranks"
)
