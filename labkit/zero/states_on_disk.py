"""Offload optimizer states: to the CPU, or to disk through memory maps.

    where                 what moves in a step, per parameter of a rank's shard
    GPU                   nothing
    CPU, `masters_on`     gradient down, updated parameter up        2 + 2 B in 16 bits
    disk, `on_disk`       moments in and out; masters stay           2 * (4 + 4) B for Adam
    disk, ZeRO-Infinity   masters too (not implemented here)         2 * (4 + 4 + 4) B for Adam

On the CPU: the optimizer of `Zero1Optimizer(..., masters_on="cpu")` steps there, on master copies,
so states never move. On disk: each fragment's states are mapped into memory during its step and
unmapped afterwards, so memory holds the states of one fragment.

Papers: Ren et al., "ZeRO-Offload", arXiv:2101.06840; Rajbhandari et al., "ZeRO-Infinity",
arXiv:2104.07857. What bandwidth a step needs: calc.offload_bandwidth.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.optimizer import load_states, states_of

_ALIGNMENT = 64  # bytes: a multiple of every dtype's size


def on_disk(optimizer_class: Any, folder: str | Path) -> OnDisk:
    """Return `optimizer_class` with its states in files of `folder`, for Zero1Optimizer or alone.

    optimizer = Zero1Optimizer(params, on_disk(torch.optim.AdamW, "/fast/disk"), world, lr=3e-4)
    folder: on a local disk, created if missing. Files are removed with the optimizer. OSError if
    the folder cannot be written to.
    """
    return OnDisk(optimizer_class, Path(folder))


class OnDisk:
    """A factory of optimizers with states on disk, called like an optimizer's class."""

    def __init__(self, within: Any, folder: Path) -> None:
        """within: the optimizer's own class."""
        self.within, self._folder = within, folder

    def __call__(self, params: Iterable[Any], **defaults: Any) -> OffloadedOptimizer:
        """Return an optimizer over `params`."""
        return OffloadedOptimizer(params, self.within, self._folder, defaults)


class MappedFile:
    """Tensors in one file. They are in memory only while results of `read` are in use."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        """Write the tensors to the file. OSError if the disk is full."""
        self._path = path
        self._places: dict[str, tuple[int, Tensor]] = {}
        self.states_nbytes = sum(x.nbytes for x in tensors.values())
        self.nbytes = 0
        """Size of the file, in which each tensor begins at a multiple of 64 bytes."""
        for name, x in tensors.items():
            self._places[name] = self.nbytes, torch.empty_like(x, device="meta")
            self.nbytes += -(-x.nbytes // _ALIGNMENT) * _ALIGNMENT
        with path.open("wb") as file:
            file.truncate(self.nbytes)
        for name, mapped in self.read().items():
            mapped.copy_(tensors[name])

    def read(self) -> dict[str, Tensor]:
        """Return the tensors by name, as memory maps: a write to them is a write to the file."""
        if not self.nbytes:
            return {
                name: torch.empty_like(x, device="cpu") for name, (_, x) in self._places.items()
            }
        memory = torch.from_file(str(self._path), shared=True, size=self.nbytes, dtype=torch.uint8)
        return {
            name: memory[start : start + form.nbytes]
            .view(form.dtype)
            .as_strided(form.shape, form.stride())
            for name, (start, form) in self._places.items()
        }


class OffloadedOptimizer:
    """An optimizer that steps on one parameter at a time, with its states mapped from disk.

    `num_bytes_moved`: the bytes of states that its steps have read and written so far.
    """

    def __init__(
        self, params: Iterable[Any], optimizer_class: Any, folder: Path, defaults: Mapping[str, Any]
    ) -> None:
        """params: parameters, or groups of them, as torch's optimizers take."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix="states-", dir=folder)
        given = list(params)
        groups = given if given and isinstance(given[0], Mapping) else [{"params": given}]
        self.param_groups = [
            {**defaults, **group, "params": list(group["params"])} for group in groups
        ]
        parameters = [p for group in self.param_groups for p in group["params"]]
        if any(p.device.type != "cpu" for p in parameters):
            raise TypeError(
                "states on disk are mapped into the host's memory, but these parameters are on a "
                'GPU; step on the host: Zero1Optimizer(..., masters_on="cpu")'
            )
        self._optimizers = [
            _OneParameterOptimizer(
                optimizer_class([p], **defaults), Path(self._folder.name) / str(number)
            )
            for number, p in enumerate(parameters)
        ]
        self.num_bytes_moved = 0

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def step(self) -> None:
        """Update one parameter after another, except those without a gradient."""
        optimizers = iter(self._optimizers)
        for group in self.param_groups:
            settings = {name: value for name, value in group.items() if name != "params"}
            for parameter in group["params"]:
                optimizer = next(optimizers)
                if parameter.grad is not None:
                    self.num_bytes_moved += optimizer.step(settings)

    def read_states(self) -> list[dict[str, Any]]:
        """Return copies of the states in memory, in the form of `labkit.optimizer.states_of`."""
        return [each.read() for each in self._optimizers]

    def write_states(self, states: Iterable[Mapping[str, Any]]) -> None:
        """Write states to the files: the inverse of `read_states`."""
        for each, state in zip(self._optimizers, states, strict=True):
            each.write(state)

    def state_tensors(self) -> list[Tensor]:
        """Return the states that are in memory between steps: only single numbers."""
        numbers = (x for each in self._optimizers for x in each.numbers.values())
        return [x for x in numbers if isinstance(x, Tensor)]


class _OneParameterOptimizer:
    """The optimizer of one parameter, with its states in a file."""

    def __init__(self, optimizer: Any, path: Path) -> None:
        self._optimizer, self._path = optimizer, path
        self._file: MappedFile | None = None
        self.numbers: dict[str, Any] = {}
        """States that are single numbers, such as the number of steps."""

    def step(self, settings: Mapping[str, Any]) -> int:
        """Make a step. Return how many bytes of states it has read and written."""
        mapped = {} if self._file is None else self._file.read()
        read = 0 if self._file is None else self._file.states_nbytes
        load_states(self._optimizer, [{**mapped, **self.numbers}])
        if isinstance(self._optimizer, torch.optim.Optimizer):
            self._optimizer.param_groups[0].update(settings)
        else:
            vars(self._optimizer).update(settings)
        self._optimizer.step()
        state = states_of(self._optimizer)[0]
        for name, x in mapped.items():
            if state[name].data_ptr() != x.data_ptr():
                x.copy_(state[name])  # for an optimizer that replaces its state tensors
        if mapped:
            self.numbers = {name: value for name, value in state.items() if name not in mapped}
        else:
            self.write(state)
        load_states(self._optimizer, [{}])
        return read + (0 if self._file is None else self._file.states_nbytes)

    def read(self) -> dict[str, Any]:
        mapped = {} if self._file is None else self._file.read()
        return {**{name: x.clone() for name, x in mapped.items()}, **self.numbers}

    def write(self, state: Mapping[str, Any]) -> None:
        arrays = {n: x for n, x in state.items() if isinstance(x, Tensor) and x.dim()}
        self.numbers = {name: value for name, value in state.items() if name not in arrays}
        self._file = MappedFile(self._path, arrays) if arrays else None
