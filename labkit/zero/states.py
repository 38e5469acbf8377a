"""The base of ZeRO-1 and ZeRO-2: an optimizer's shards and state dicts, without a step.

A shard is one rank's part of a flat tensor. It has a fragment of each parameter that lies in it.
The rank's optimizer updates these fragments, or float32 master copies of them:

    weights     w0 w0 w0 | w0 w1 w1 | w1 w2 .       parameters are views of this flat tensor
    rank 1's             | w0 w1 w1 |               a shard with two fragments
    masters                f0 f1 f1                 only if asked for

Memory: the master copies. Everything else is a view.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.collectives.backend import own_part
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.global_norm import GradientShard
from labkit.optimizer import MASTER, OwnedFragment
from labkit.zero.flat import FlatBuffer, Fragment, by_elements, by_parameters, flattened
from labkit.zero.local_optimizer import Groups, LocalOptimizer, Member, by_kind, takes_fragments
from labkit.zero.state_dict import State, copied, gathered, is_sharded, merged, part_of

_NOT_SETTINGS = ("params", "param_names")


class Masters(NamedTuple):
    """The dtype and device of master weights. None: the weights' own."""

    dtype: torch.dtype | None = None
    device: torch.device | str | None = None

    def are_copies_of(self, weights: Tensor) -> bool:
        """Return whether masters are copies of `weights`. With a device they always are."""
        return self.device is not None or self.dtype not in (None, weights.dtype)

    def copied(self, view: Tensor) -> Tensor:
        """Return a master copy of `view`."""
        return view.to(self.device or view.device, self.dtype or view.dtype, copy=True)


class Shard:
    """One rank's part of one flat tensor."""

    def __init__(
        self,
        flat: FlatBuffer,
        names: Sequence[str],
        numbers: Sequence[int],
        group: Group,
        masters: Masters,
    ) -> None:
        """names, numbers: the parameters', for errors and state dicts."""
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
        """The tensors that the optimizer updates, one per fragment."""

    @property
    def label(self) -> str:
        """The first and the last parameter's name, for messages."""
        ends = dict.fromkeys((self.names[0], self.names[-1]))
        return " to ".join(ends)

    @property
    def masters(self) -> list[Tensor]:
        """The master copies; [] if the optimizer updates the weights themselves."""
        return [target.detach() for target in self.targets] if self._has_masters else []

    def set_gradients(self, total: Tensor | None, unused: Collection[int]) -> list[Tensor]:
        """Set each target's gradient to its fragment of `total` (k,), in the target's dtype.

        total=None removes the gradients. unused: the numbers of parameters that no rank has used;
        their targets get no gradient. Returns the gradients.
        """
        gradients: list[Tensor] = []
        for fragment, target in zip(self.fragments, self.targets, strict=True):
            if total is None or fragment.number in unused:
                target.grad = None
                continue
            gradient = self.flat.shaped(total[fragment.place], fragment)
            kind = GradientShard if self.group.size > 1 else Tensor
            target.grad = gradient.to(target).as_subclass(kind)
            gradients.append(target.grad)
        return gradients

    @torch.no_grad()
    def round_masters(self) -> None:
        """Copy the masters into this rank's shard of the weights, rounded to its dtype."""
        for fragment, master in zip(self.fragments, self.masters, strict=False):
            self._weights[fragment.place].copy_(self.flat.row(master, fragment))

    @torch.no_grad()
    def copy_to_masters(self, *which: int) -> None:
        """Copy the weights into the masters of these fragments, or of all."""
        for index in (which or range(len(self.fragments))) if self._has_masters else ():
            fragment = self.fragments[index]
            self.masters[index].copy_(self.flat.shaped(self._weights[fragment.place], fragment))

    def place_of(self, index: int) -> dict[str, Any]:
        """Return a fragment's place in its parameter, for a state dict."""
        fragment = self.fragments[index]
        form = self.flat.forms[fragment.number]
        return {
            "shape": tuple(form.shape),
            "stride": tuple(form.stride()),
            "start": fragment.within.start,
            "stop": fragment.within.stop,
            "is_whole": self.flat.layout.keeps_whole,
        }


class ShardedStates(Groups):
    """Parameters in flat tensors that are cut into shards, and the states of this rank's shards.

    `state_dict()` returns this rank's part, which each rank can save itself. `full_state_dict()`
    returns the whole state, as torch's own optimizer does. `load_state_dict` takes both.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: Callable[..., Any],
        group: Group | None,
        masters: Masters,
        defaults: dict[str, Any],
    ) -> None:
        self.group = chosen(group)
        keeps_whole = not takes_fragments(optimizer_class)
        super().__init__(params, defaults)
        self._require_equal_layouts()
        by_group = [
            [self._shard(cut, keeps_whole, masters) for cut in self._cuts(members)]
            for members in self.trainable_members
        ]
        self.shards = [shard for shards in by_group for shard in shards]
        if not self.shards:
            raise ValueError("every parameter is frozen, so there is nothing to optimize")
        for each in (*(shard.flat.weights for shard in self.shards), *self.frozen):
            self.group.broadcast(each, root=0, out=each)
        for shard in self.shards:
            shard.copy_to_masters()
        self._inner = LocalOptimizer(
            optimizer_class,
            [[target for shard in shards for target in shard.targets] for shards in by_group],
            self.settings,
            defaults,
        )
        made = getattr(optimizer_class, "within", optimizer_class)
        self.optimizer_name: str | None = None
        """Module and class of the inner optimizer; None if a function makes it."""
        if isinstance(made, type):
            self.optimizer_name = f"{made.__module__}.{made.__qualname__}"
        self._trainable_names = {
            member.name for members in self.trainable_members for member in members
        }
        for ours, theirs in zip(self.param_groups, self._inner.settings, strict=False):
            for name, value in theirs.items():
                ours.setdefault(name, value)  # schedulers look there for defaults too
                self.defaults.setdefault(name, value)

    def state_dict(self) -> State:
        """Return this rank's part: plain data, and the optimizer's own tensors, not copies."""
        parts = {}
        for (shard, index), fragment in zip(self._owned(), self.fragments(), strict=True):
            parts[shard.numbers[shard.fragments[index].number]] = {
                **shard.place_of(index),
                "values": {name: _plain(value) for name, value in fragment.values.items()},
            }
        return {
            "rank": self.group.rank,
            "world_size": self.group.size,
            "param_groups": self._numbered_groups(),
            "state": parts,
        }

    def fragments(self) -> list[OwnedFragment]:
        """Return the fragments that this rank's optimizer updates, in its order."""
        found = []
        for (shard, index), values in zip(self._owned(), self._inner.states, strict=True):
            number, within, _ = shard.fragments[index]
            kept = {**values, MASTER: shard.masters[index]} if shard.masters else values
            parameter, target = shard.flat.parameters[number], shard.targets[index]
            found.append(OwnedFragment(parameter, within.start, within.stop, target, kept))
        return found

    def full_state_dict(self, root: int = 0) -> State | None:
        """Return the whole state on rank `root`, None on the others. Every rank calls it.

        It is the state dict of torch's own optimizer, with masters. Wire: see `gathered`.
        """
        parts = gathered(self.state_dict(), self.group, root)
        return None if parts is None else merged(parts)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a whole state, the same on every rank, or this rank's part of a state.

        Every rank calls it. ValueError for a part of another rank or number of ranks, and for a
        state of another model. If a state does not fit on one rank, all ranks raise an error and
        none loads anything. Load the model's parameters first: masters that the state lacks are
        copied from them. Wire: one number in an all-reduce.
        """
        try:
            states = self._fitting(state_dict)
        except BaseException:
            self._agree(fits=False)
            raise
        if not self._agree(fits=True):
            raise ValueError(
                "this state fits on this rank but not on another, whose error says why; no rank "
                "has loaded anything"
            )
        self.load_fragments(states)
        for group, loaded in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({key: loaded[key] for key in loaded if key not in _NOT_SETTINGS})

    def _agree(self, *, fits: bool) -> bool:
        """Return whether a state fits on every rank. If only some loaded it, they would diverge."""
        flag = torch.tensor([float(fits)], device=self.group.device)
        with self.group.label("whether a state fits"):
            return bool(self.group.all_reduce(flag, "min").item())

    def _fitting(self, state_dict: Mapping[str, Any]) -> list[State]:
        """Return the state of each of this rank's fragments. ValueError for a state of another
        model."""
        if is_sharded(state_dict):
            self._require_my_part(state_dict)
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise ValueError(
                f"this state has {len(groups)} parameter groups, and the optimizer has "
                f"{len(self.param_groups)}: make the optimizer with the groups that were saved"
            )
        sizes = [len(group["params"]) for group in groups]
        if sizes != [len(group["params"]) for group in self.param_groups]:
            raise ValueError(
                f"this state has groups of {sizes} parameters: it belongs to another model"
            )
        states = []
        for shard, index in self._owned():
            number = shard.numbers[shard.fragments[index].number]
            place = shard.place_of(index)
            if is_sharded(state_dict):
                values = state_dict["state"][number]["values"]
                states.append({name: copied(value) for name, value in values.items()})
            else:
                states.append(part_of(state_dict, number, place))
        return states

    def state_tensors(self) -> list[Tensor]:
        """Return the optimizer states that this rank keeps, masters included."""
        masters = [master for shard in self.shards for master in shard.masters]
        return [*masters, *self._inner.state_tensors]

    def _cuts(self, members: list[Member]) -> list[list[Member]]:
        """Return the parameters that go into each flat tensor."""
        return by_kind(members)

    def _shard(self, members: list[Member], keeps_whole: bool, masters: Masters) -> Shard:
        lay_out = by_parameters if keeps_whole else by_elements
        layout = lay_out([each.parameter.numel() for each in members], self.group.size)
        flat = flattened([each.parameter for each in members], layout, self.group.size)
        names, numbers = [each.name for each in members], [each.number for each in members]
        return Shard(flat, names, numbers, self.group, masters)

    def _owned(self) -> list[tuple[Shard, int]]:
        """Return this rank's fragments as (shard, index), in the inner optimizer's order."""
        return [(shard, index) for shard in self.shards for index in range(len(shard.fragments))]

    def load_fragments(self, states: Sequence[State]) -> None:
        """Set the states of this rank's fragments, in the order of `fragments`, without copies.

        Masters that they lack are copied from the parameters.
        """
        states = [dict(values) for values in states]
        for (shard, index), values in zip(self._owned(), states, strict=True):
            master = values.pop(MASTER, None)
            if shard.masters and master is not None:
                shard.masters[index].copy_(master.view_as(shard.masters[index]))
            elif shard.masters:
                shard.copy_to_masters(index)
        self._inner.states = states

    def _numbered_groups(self) -> list[State]:
        """Return the groups in torch's form, with numbers instead of parameters."""
        groups, number = [], 0
        settings_of_all = [{**a, **b} for a, b in zip(self._inner.settings, self.settings)]
        for group, settings in zip(self.param_groups, settings_of_all, strict=True):
            end = number + len(group["params"])
            groups.append({**settings, "params": list(range(number, end))})
            number = end
        return groups

    def _require_my_part(self, state: Mapping[str, Any]) -> None:
        rank, size = state["rank"], state["world_size"]
        mine = {
            shard.numbers[shard.fragments[index].number]: shard.place_of(index)
            for shard, index in self._owned()
        }
        places = {
            number: {key: part[key] for key in part if key != "values"}
            for number, part in state["state"].items()
        }
        if (rank, size) != (self.group.rank, self.group.size) or places != mine:
            raise ValueError(
                f"this is the part of rank {rank} of {size}, but this is rank {self.group.rank} of "
                f"{self.group.size}, or its model has another layout: read the parts of all {size} "
                "ranks, and load merged(parts)"
            )

    def _require_equal_layouts(self) -> None:
        """Raise ValueError on a rank whose parameters differ from rank 0's in more than values.

        A broadcast into another layout would fill it with garbage, without an error.
        """
        layout = [
            [(m.number, tuple(m.parameter.shape), m.parameter.stride(), str(m.parameter.dtype))]
            for members in self.trainable_members
            for m in members
        ]
        mine = torch.tensor([zlib.crc32(repr(layout).encode())], device=self.group.device)
        if not torch.equal(self.group.broadcast(mine, root=0), mine):
            raise ValueError(
                f"rank {self.group.rank} has {len(layout)} trained parameters, and their number, "
                "shapes, strides or dtypes differ from rank 0; build the model from one config on "
                "every rank, and freeze the same on all"
            )


def _plain(value: Any) -> Any:
    """Return a tensor detached, for torch.save; anything else unchanged."""
    return value.detach() if isinstance(value, Tensor) else value
