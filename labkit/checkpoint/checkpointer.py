"""Save and load a training job: model, optimizer, random states and plain values, of any layout.

    checkpointer = Checkpointer("checkpoints", model, optimizer, world, extra={"data": cursor})
    loaded = checkpointer.load()                       None: there is no checkpoint, begin at 0
    for step in range(loaded.step if loaded else 0, num_steps):
        train(...)
        checkpointer.save(step + 1)                    it counts, on every host, when this returns

`save(step, wait=False)` copies the state and writes while training goes on: see async_save.py.
"""

from __future__ import annotations

import random
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from labkit import arguments
from labkit.checkpoint.async_save import Background
from labkit.checkpoint.contents import Contents, Piece, load_random_states, random_states
from labkit.checkpoint.disk import Disk
from labkit.checkpoint.extent import Extent
from labkit.checkpoint.loading import (
    DoesNotFit,
    Loaded,
    fill,
    find,
    verify,
    wanted_pieces,
)
from labkit.checkpoint.manifest import Manifest
from labkit.checkpoint.plain_data import gather_plain, raise_everywhere
from labkit.checkpoint.saving import (
    Commit,
    Plan,
    Row,
    file_of,
    make_plan,
    remove_folders,
    row_of,
    write_parts,
)
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.data_parallel.communication_thread import OnThread

T = TypeVar("T")


class Stateful(Protocol):
    """What `extra` takes: a loss scaler, a schedule, a data cursor."""

    def state_dict(self) -> dict[str, Any]:
        """Plain data, as JSON has it."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Go on from there."""


class Checkpointer:
    """The checkpoints of one job in one folder."""

    def __init__(
        self,
        folder: str | Path,
        model: nn.Module,
        optimizer: Any = None,
        group: Group | None = None,
        *,
        extra: Mapping[str, Stateful] | None = None,
        keep_last: int = 2,
        keep_every: int | None = None,
        disk: Disk | None = None,
    ) -> None:
        """folder: made by the first save; on shared storage, or one on each host.

        model, optimizer: of any strategy. group: all ranks of the job; None for torch.distributed's
        default one. extra: by name, whatever else has a state_dict of plain data, equal on all
        ranks. keep_last: this many checkpoints stay, and those of steps that keep_every divides.
        disk: performs the operations on files.
        """
        self.folder, self.group = Path(folder), chosen(group)
        self.contents = Contents(model, optimizer)
        self.extra = dict(extra or {})
        self._keep_last = arguments.whole("keep_last", keep_last, "1 or more checkpoints")
        self._keep_every = keep_every
        if keep_every is not None:
            arguments.whole("keep_every", keep_every, "a number of steps, 1 or more, or None")
        self._disk = disk or Disk()
        self._plan: Plan | None = None
        self._rows: list[Row] = []
        self._token, self._num_saves = "", 0
        self._background: Background | None = None
        self._pending: OnThread[None] | None = None
        self._removal: Thread | None = None

    def save(self, step: int, *, wait: bool = True) -> None:
        """Save the state after `step` steps. Every rank calls it, between two steps.

        Returns when the checkpoint counts; with wait=False when the state is copied, and `wait()`
        or the next save returns after it counts, or raises its error.

        SaveFailed, on every rank, where one of them cannot write: the checkpoints before are
        untouched, and training can go on. Checkpoints of later steps are removed: they are of a
        run that was rolled back.
        """
        arguments.whole("step", step, "the number of steps made, 0 or more", least=0)
        self.wait()
        pieces = [*self.contents.pieces(), *random_states(self.group.rank, self.group.device)]
        commit = self._prepare(step, pieces)
        path, plan, rank = commit.partial / file_of(self.group.rank), commit.plan, self.group.rank
        if wait:
            written = _or_error(lambda: write_parts(self._disk, path, plan, rank, pieces))
            retired = commit.finish(written, self.group)
            # A large file takes a tenth of a second, and nothing depends on it.
            self._removal = Thread(target=remove_folders, args=(self._disk, retired))
            self._removal.start()
            return
        if self._background is None:
            self._background = Background(self.group, self._disk)
        copy = self._background.copy
        job = _or_error(lambda: copy(path, plan, rank, pieces))
        self._pending = self._background.start(job, commit.finish)

    def wait(self) -> None:
        """Return when the last save counts, and all before it are removed that are not kept.

        SaveFailed where it does not count.
        """
        if self._removal is not None:
            self._removal.join()
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.wait()

    def load(self, step: int | None = None) -> Loaded | None:
        """Load the newest complete checkpoint, or that of `step`; None without any.

        Every rank calls it, in any layout: the world size and strategy may be others than those of
        the save. Damaged, on every rank, where bytes are not those that were saved; DoesNotFit for
        another model; FileNotFoundError for a step without a checkpoint. Then nothing is changed.
        """
        self.wait()
        found = find(self.folder, self.group, step)
        if found is None:
            return None
        manifest, contents, error = found.manifest, self.contents, None
        try:
            pieces, states = wanted_pieces(manifest, contents)
        except DoesNotFit as failed:
            error = failed
        raise_everywhere(error, DoesNotFit, self.group)
        verified = verify(found, self.group)
        rng = self._random_pieces(manifest)
        bytes_read = fill(found, [*pieces, *rng.values()], self.group)
        contents.load_states([{key: _value(x) for key, x in each.items()} for each in states])
        contents.load_settings(manifest.values["settings"])
        self._load_random_states(manifest, rng)
        for name, state in manifest.values["extra"].items():
            if name in self.extra:
                self.extra[name].load_state_dict(state)
        world_size = manifest.world_size
        return Loaded(manifest.step, world_size, bytes_read, verified, found.skipped)

    def _prepare(self, step: int, pieces: Sequence[Piece]) -> Commit:
        """Agree on an identity, and on who writes what.

        Wire: an all-reduce of one number; an all-gather of all rows where a rank's have changed.
        """
        rows = [row_of(piece) for piece in pieces]
        is_changed = torch.tensor([rows != self._rows], dtype=torch.int64, device=self.group.device)
        with self.group.label("whether what is saved has changed"):
            if self.group.all_reduce(is_changed, "max").item():
                told = gather_plain([secrets.token_hex(8), rows], self.group)
                self._plan = make_plan([[_tuple(row) for row in of_rank] for _, of_rank in told])
                self._token, self._rows = told[0][0], rows
        assert self._plan is not None
        self._num_saves += 1
        identity = f"{zlib.crc32(f'{self._token}/{self._num_saves}'.encode()):08x}"
        values = {
            "settings": self.contents.settings(),
            "extra": {name: each.state_dict() for name, each in self.extra.items()},
        }
        return Commit(self.folder, self._disk, self._plan, step, identity, values, self._is_kept)

    def _is_kept(self, step: int, steps: Sequence[int]) -> bool:
        is_milestone = self._keep_every is not None and step % self._keep_every == 0
        return is_milestone or step in steps[: self._keep_last]

    def _random_pieces(self, manifest: Manifest) -> dict[str, Piece]:
        """This rank's random states, to be filled; none where the world has another size."""
        prefix = f"rng.{self.group.rank}."
        if manifest.world_size != self.group.size:
            return {}
        return {
            name.removeprefix(prefix): Piece(
                name, Extent.whole(whole.shape), torch.empty(whole.shape, dtype=torch.uint8)
            )
            for name, whole in manifest.tensors.items()
            if name.startswith(prefix)
        }

    def _load_random_states(self, manifest: Manifest, pieces: Mapping[str, Piece]) -> None:
        if pieces:
            states = {name: piece.tensor for name, piece in pieces.items()}
            load_random_states(states, self.group.device)
        else:  # other ranks than before: new streams, the same in each load
            seed = zlib.crc32(f"{manifest.identity}/{self.group.rank}".encode())
            torch.manual_seed(seed)
            random.seed(seed)


def _or_error(act: Callable[[], T]) -> T | OSError:
    """What `act` returns, or the error that all ranks will raise."""
    try:
        return act()
    except OSError as error:
        return error


def _value(piece: Piece) -> Any:
    """A state as the optimizer keeps it."""
    return piece.tensor if piece.kind in ("elements", "whole") else piece.tensor.item()


def _tuple(row: Any) -> Any:
    """JSON's lists as tuples, all the way down."""
    return tuple(map(_tuple, row)) if isinstance(row, list) else row
