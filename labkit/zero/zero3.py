"""ZeRO-3, or fully sharded data parallelism: parameters too are there only while they are used.

    forward    gather 0 | compute 0, gather 1 | compute 1, gather 2 | ...      each released after
    backward   gather 2 | compute 2, gather 1 | compute 1, gather 0 | ...      and again
    gradients             reduce-scatter 2      reduce-scatter 1

A unit is a layer: its parameters are gathered in one all-gather before it computes, those of the
next one while it computes, and are released when it is through. So a rank holds an n-th of all
states, and besides two gathered units and the gradients of two.

Parameters of no layer, the rest (embeddings, the last norm, the head), are a unit as well, torch's
root unit, which is gathered for all of a forward pass, and for all of a backward pass.

Layout: `shards`, one flat parameter (k,) per unit and dtype, is what the optimizer gets. The
module's own parameters are empty outside of their unit's turn.
Wire: per microbatch two all-gathers and a reduce-scatter of all parameters: 3 (n-1)/n of their
bytes. A unit that is `kept` from forward to backward (torch: reshard_after_forward=False) saves one
all-gather.
Papers: Rajbhandari et al., arXiv:1910.02054, sections 5.3 and 7.2.2; Zhao et al., "PyTorch FSDP",
arXiv:2304.11277, whose way with storages and hooks this follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

from labkit.collectives.wire import Wire, chosen_wire, require_wire
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.data_parallel.communication_thread import CommunicationThread
from labkit.data_parallel.hooks import on_gradient, remove_with, weakly
from labkit.data_parallel.wrapping import require_plain
from labkit.zero.clipping import checked_norm, clip
from labkit.zero.flat import require_floating
from labkit.zero.flat_unit import FlatUnit
from labkit.zero.hybrid import across, require_replicas
from labkit.zero.passes import Passes
from labkit.zero.units import ROOT, kept_names, make_equal, make_units, named_modules


class FullyShardedModule(nn.Module):
    """A module of which each rank keeps an n-th, and gathers layer by layer what it computes with.

        model = FullyShardedModule(module, world)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        loss(model, share).backward()      leaves means in the gradients of the shards
        optimizer.step()

    `parameters()` are the shards: make the optimizer after this. It must treat each number by
    itself: Adam does, LAMB and Muon do not. Every rank makes the same passes through the same
    units. Released parameters are empty, and a sum over them is 0 without an error; `debug=True`
    fills them with nan. A unit must not change its input in place, as a ReLU(inplace=True) at its
    start would: torch raises an error about a view.
    """

    module: nn.Module
    """The module within, with empty parameters; its buffers are whole, and every rank's own."""

    def __init__(
        self,
        module: nn.Module,
        group: Group | None = None,
        compute_dtype: torch.dtype | None = None,
        *,
        units: Iterable[nn.Module] | None = None,
        kept: Sequence[nn.Module] = (),
        replicas: Group | None = None,
        wire: Wire | None = None,
        debug: bool = False,
    ) -> None:
        """group: the ranks that shard; None for torch.distributed's default one.

        compute_dtype: of gathered parameters, gradients on the wire, and floating-point inputs;
        shards keep their own, so bfloat16 computes with float32 masters. units: modules that are
        gathered each by itself; None: the members of every outermost ModuleList and Sequential.
        kept: units, or `module` itself for the rest, that stay gathered from forward to backward;
        the last layer and the rest are needed again at once.
        replicas: ranks that hold the same shards, for hybrid sharding. debug: released parameters
        are full of nan, instead of gone.

        TypeError for no module, ValueError for units that are not within it, and on a rank whose
        module differs from rank 0's in more than its values.
        """
        super().__init__()
        require_plain(module)
        require_wire(wire)
        require_floating("compute_dtype", compute_dtype)
        modules = named_modules(module, units)
        stay = kept_names(kept, {ROOT: module, **modules})
        self.group, self.compute_dtype = chosen(group), compute_dtype
        thread, self._wire, num_ranks = _start(module, self.group, replicas, wire)
        self.__dict__["module"] = module  # not as a submodule: `parameters()` are the shards
        self._units = make_units(module, modules, self.group, compute_dtype, poison=debug)
        self.shards = nn.ParameterList(flat.shard for flat in self._flats)
        kept_units = [unit for unit in self._units if unit.name in stay]
        self._passes = Passes(self._units, kept_units, thread, self._wire, num_ranks)
        self._hook(modules.values())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns, in the dtype of computing."""
        rest = self._units[0]
        args, kwargs = tree_map_only(Tensor, self._cast, (args, kwargs))
        self._passes.begin_forward()
        args, kwargs = self._passes.before(rest, (args, kwargs))
        outputs = self.module(*args, **kwargs)
        self._passes.after(rest, outputs)
        return outputs

    def train(self, mode: bool = True) -> FullyShardedModule:
        """As nn.Module's, for the module within."""
        self.module.train(mode)
        self.training = mode
        return self

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Scale the gradients of all shards down to a norm of at most `max_norm` over all ranks.

        Not torch's clip_grad_norm_: that sees this rank's shards only, and would scale each rank's
        by another factor. Returns the norm before, (). Wire: one number in an all-reduce.
        TypeError, ValueError for a norm that is no number above 0.
        """
        max_norm = checked_norm(max_norm)
        gradients = [shard.grad for shard in self.shards if shard.grad is not None]
        return clip(gradients, max_norm, self.group)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """RuntimeError: a rank has a part, which would load on another one without an error."""
        raise RuntimeError(_NO_STATE_DICT)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """RuntimeError: see `state_dict`."""
        raise RuntimeError(_NO_STATE_DICT)

    def full_parameters(self) -> dict[str, Tensor]:
        """All parameters by their names in the module, whole, in the shards' dtype; copies.

        Every rank calls it. A tied one has its first name. Wire: an all-gather of everything.
        """
        found = {}
        for flat in self._flats:
            found.update(flat.whole(self.group, self._wire))
        return found

    def load_full_parameters(self, parameters: Mapping[str, Tensor]) -> None:
        """`full_parameters` run backwards; nothing is sent.

        ValueError for names or shapes of another model; then nothing is loaded.
        """
        known = {name for flat in self._flats for name in flat.names}
        if known != parameters.keys():
            raise ValueError(
                f"{', '.join(sorted(known ^ parameters.keys()))}: only here, or only in the "
                "module; give what full_parameters() of the same model returned"
            )
        for flat in self._flats:
            flat.require_shapes(parameters)
        for flat in self._flats:
            flat.load(parameters)

    @property
    def _flats(self) -> list[FlatUnit]:
        return [flat for unit in self._units for flat in unit.flats]

    def _hook(self, modules: Iterable[nn.Module]) -> None:
        """Be called before and after each unit, and with every gradient."""
        handles: list[RemovableHandle] = []
        for unit, each in zip(self._units[1:], modules, strict=True):
            before = weakly(self._passes.before_module, unit)
            after = weakly(self._passes.after_module, unit)
            handles.append(each.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(each.register_forward_hook(after))
        handles += [
            on_gradient(parameter, self._passes.arrived, unit, flat, index)
            for unit in self._units
            for flat in unit.flats
            if flat.shard.requires_grad
            for index, parameter in enumerate(flat.parameters)
        ]
        remove_with(self._passes, handles)  # which a graph that waits for backward keeps alive

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
            "a sharded module is not moved or converted: do so first, and shard it after; "
            "compute_dtype=torch.bfloat16 computes in 16 bits"
        )


def _start(
    module: nn.Module, group: Group, replicas: Group | None, wire: Wire | None
) -> tuple[CommunicationThread, Wire, int]:
    """Make it equal on all ranks; who communicates, how, and how many ranks a mean counts."""
    if replicas is not None:
        require_replicas(replicas, group)
    make_equal(module, group, replicas)
    thread = CommunicationThread.of(group)
    wire = chosen_wire(wire, group)
    if replicas is None:
        return thread, wire, group.size
    return thread, across(thread.own(replicas), wire), group.size * replicas.size


_NO_STATE_DICT = (
    "a sharded module has no state_dict: each rank holds another part, and the module within is "
    "empty. Save full_parameters() and the buffers of `module`; or `shards`, on each rank, for as "
    "many ranks"
)
