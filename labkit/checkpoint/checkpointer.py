"""Save and load a training job: model, optimizer, random states and plain values, of any layout.

    checkpointer = Checkpointer("checkpoints", model, optimizer, world, extra={"data": cursor})
    loaded = checkpointer.load()                       None: there is no checkpoint, begin at 0
    for step in range(loaded.step if loaded else 0, num_steps):
        train(...)
        checkpointer.save(step + 1)                    durable on every host when it returns

`save(step, wait=False)` copies the state and writes while training continues: see async_save.py.
It adds to plain.py: the tensors of any strategy by name, optimizer states, several checkpoints, and
errors that all ranks raise together. saving.py and loading.py explain how.
"""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import torch
from torch import nn

from labkit import arguments
from labkit.checkpoint.async_save import BackgroundWriter
from labkit.checkpoint.contents import Contents, load_random_states, random_states
from labkit.checkpoint.disk import Disk
from labkit.checkpoint.loading import (
    FoundCheckpoint,
    LoadResult,
    empty_shard,
    fill,
    find,
    fitting_shards,
    verify,
)
from labkit.checkpoint.manifest import DoesNotFit, Manifest, file_of, finished_saves, step_of
from labkit.checkpoint.plain_data import agreed, gather_plain, result_or_error
from labkit.checkpoint.saving import (
    Commit,
    Plan,
    ShardSpec,
    layout_of,
    make_plan,
    remove_folders,
    spec_of,
    write_own,
)
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.data_parallel.background import BackgroundHandle
from labkit.shards import Extent, Kind, NamedShard


class Stateful(Protocol):
    """An object that `extra` takes: a loss scaler, a schedule, a data cursor."""

    def state_dict(self) -> dict[str, Any]:
        """Return plain data, as JSON has it."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Restore that state."""


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
        default one. extra: other objects by name, with a state_dict of plain data that is equal on
        all ranks. keep_last: number of checkpoints that stay. Those of steps that keep_every
        divides stay, too.
        disk: performs the file operations; asynchronous saves write a RecordedDisk's log, too.
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
        self._rows: list[ShardSpec] = []
        self._token, self._num_saves = "", 0
        self._background: BackgroundWriter | None = None
        self._pending: BackgroundHandle[None] | None = None
        self._removal: Thread | None = None
        self._owns_later_steps = False

    def save(self, step: int, *, wait: bool = True) -> None:
        """Save the state after `step` steps. Every rank calls it, between two steps.

        When it returns, the checkpoint is durable on every host. With wait=False it returns when
        the state is copied; `wait()`, or the next save, returns after the checkpoint is durable.
        Checkpoints of this step and later ones are removed: the run was rolled back.

        SaveFailed, on every rank, if a rank cannot write: earlier checkpoints are untouched, and
        training can continue. The error may belong to the previous asynchronous save; in that
        case the current save has been made. ValueError, on every rank, for a state that cannot be
        saved, and if the folder has checkpoints of this step or later, of another run: this object
        has neither loaded nor saved before.
        """
        arguments.whole("step", step, "the number of steps made, 0 or more", least=0)
        failed = result_or_error(self.wait)
        commit, shards = self._prepare(step)
        path, plan, rank = commit.partial / file_of(self.group.rank), commit.plan, self.group.rank
        if wait:
            written = result_or_error(lambda: write_own(self._disk, path, plan, rank, shards))
            retired = commit.finish(written, self.group)
            # Removing a large file takes about 0.1 s, and no rank needs to wait for it.
            self._removal = Thread(target=remove_folders, args=(self._disk, retired))
            self._removal.start()
        else:
            if self._background is None:
                self._background = BackgroundWriter(self.group, self._disk)
            copy = self._background.copy
            job = result_or_error(lambda: copy(path, plan, rank, shards))
            self._pending = self._background.start(job, commit.finish)
        if isinstance(failed, Exception):
            raise failed

    def wait(self) -> None:
        """Wait until the last save is durable, and checkpoints that are not kept are removed.

        SaveFailed if it could not be written.
        """
        if self._removal is not None:
            self._removal.join()
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.wait()

    def load(self, step: int | None = None) -> LoadResult | None:
        """Load the newest complete checkpoint, or that of `step`; None where nothing was saved.

        Every rank calls it, in any layout: world size and strategy may differ from those of the
        save. Random states are loaded if the layout is the same; else the program's seeds stay.
        Errors come on every rank: Damaged if bytes are not those that were saved, or no checkpoint
        is complete; DoesNotFit for another model or optimizer; FileNotFoundError for a step without
        a checkpoint. After an error the model is as before, unless a disk fails between two reads.
        """
        self.wait()
        found = find(self.folder, self.group, step)
        if found is None:
            self._owns_later_steps = True
            return None
        manifest, contents = found.manifest, self.contents
        shards, states = fitting_shards(manifest, contents, self.group)
        is_same_layout = self._is_same_layout(manifest)
        verified = verify(found, self.group)
        extra = result_or_error(lambda: self._load_extra(manifest))
        agreed(extra, DoesNotFit, self.group)
        bytes_read = self._load_random_states(found) if is_same_layout else 0
        bytes_read += fill(found, shards, self.group)
        if manifest.values["optimizer"] is not None:
            contents.load_states([{key: _value(x) for key, x in each.items()} for each in states])
            contents.load_settings(manifest.values["settings"])
        self._owns_later_steps = True
        world_size = manifest.world_size
        return LoadResult(manifest.step, world_size, bytes_read, verified, found.skipped)

    def allow_overwriting_later_steps(self) -> None:
        """Let the next save remove later checkpoints, as after a load: this run wrote them.

        For a state from elsewhere, such as from the memory of another host.
        """
        self._owns_later_steps = True

    def _prepare(self, step: int) -> tuple[Commit, list[NamedShard]]:
        """Agree on the save's id and on the ranks that write each element.

        Wire: an all-reduce of one number; an all-gather of all rows if those of a rank changed.
        """
        given = result_or_error(lambda: self._state(step))
        is_changed = isinstance(given, Exception) or given[1] != self._rows
        flag = torch.tensor([is_changed], dtype=torch.int64, device=self.group.device)
        with self.group.label("whether what is saved has changed"):
            must_plan = bool(self.group.all_reduce(flag, "max").item())
        if must_plan:
            shards, rows, values = agreed(given, ValueError, self.group)
            plain = [[*row[:3], row.extent.to_plain()] for row in rows]
            by_rank = gather_plain([secrets.token_hex(8), plain], self.group)
            self._plan = make_plan([[_spec(*row) for row in of_rank] for _, of_rank in by_rank])
            self._token, self._rows = by_rank[0][0], rows
        else:
            assert not isinstance(given, Exception)
            shards, _, values = given
        assert self._plan is not None
        self._num_saves += 1
        save_id = f"{zlib.crc32(f'{self._token}/{self._num_saves}'.encode()):08x}"
        values = {**values, "layout": self._plan.layouts}
        folder, disk = self.folder, self._disk
        commit = Commit(folder, disk, self._plan, step, save_id, values, self._is_kept)
        return commit, shards

    def _state(self, step: int) -> tuple[list[NamedShard], list[ShardSpec], dict[str, Any]]:
        """Return this rank's shards, their specs, and plain values."""
        later = [name for name in finished_saves(self.folder) if step_of(name) >= step]
        if later and not self._owns_later_steps:
            raise ValueError(
                f"step={step}: {self.folder / later[-1]} is of this step or a later one, and "
                "nothing was loaded from there: call load() first, which goes on from it, or give "
                "another folder"
            )
        self._owns_later_steps = True
        shards = [*self.contents.shards(), *random_states(self.group.rank, self.group.device)]
        values = {
            "settings": self.contents.settings(),
            "optimizer": self.contents.optimizer_name,
            "extra": {name: _plain(name, each) for name, each in self.extra.items()},
        }
        return shards, [spec_of(shard) for shard in shards], values

    def _is_same_layout(self, manifest: Manifest) -> bool:
        """Return whether each rank holds the same elements as in the save."""
        rows = [spec_of(shard) for shard in self.contents.tensors()]
        return gather_plain(layout_of(rows), self.group) == manifest.values["layout"]

    def _load_extra(self, manifest: Manifest) -> None:
        """Load all extras. DoesNotFit if one is missing, before any is loaded, or if one raises."""
        if missing := self.extra.keys() - manifest.values["extra"].keys():
            names = ", ".join(sorted(missing))
            raise DoesNotFit(f"the checkpoint of step {manifest.step} has no extra {names}")
        for name, each in self.extra.items():
            try:
                each.load_state_dict(manifest.values["extra"][name])
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                raise DoesNotFit(
                    f"extra {name!r} cannot go on from its state in the checkpoint of step "
                    f"{manifest.step}, {text}"
                ) from error

    def _is_kept(self, step: int, steps: Sequence[int]) -> bool:
        is_milestone = self._keep_every is not None and step % self._keep_every == 0
        return is_milestone or step in steps[: self._keep_last]

    def _load_random_states(self, found: FoundCheckpoint) -> int:
        """Load this rank's random states, before model and optimizer. Returns the bytes read.

        DoesNotFit, on every rank, if those of one are invalid.
        """
        prefix = f"rng.{self.group.rank}."
        shards = [
            empty_shard(name, record)
            for name, record in found.manifest.tensors.items()
            if name.startswith(prefix)
        ]
        bytes_read = fill(found, shards, self.group)
        states = {shard.name.removeprefix(prefix): shard.tensor for shard in shards}
        done = result_or_error(lambda: load_random_states(states, self.group.device))
        agreed(done, DoesNotFit, self.group)
        return bytes_read


def _plain(name: str, stateful: Stateful) -> dict[str, Any]:
    """Return a copy of a state. TypeError if it is no plain data that JSON keeps as it is."""
    state = stateful.state_dict()
    try:
        copied: dict[str, Any] = json.loads(json.dumps(state))
    except (TypeError, ValueError):
        copied = {}
    if copied != state:
        raise TypeError(
            f"extra {name!r} has the state {state!r:.80}, which JSON cannot keep as it is: give "
            "numbers, texts, lists, and dicts with texts as keys"
        )
    return copied


def _spec(name: str, dtype: str, kind: Kind, extent: list[Any]) -> ShardSpec:
    return ShardSpec(name, dtype, kind, Extent.from_plain(extent))


def _value(shard: NamedShard) -> Any:
    """Return a state as the optimizer keeps it."""
    return shard.tensor if shard.kind in ("elements", "whole") else shard.tensor.item()
