"""Return to a good checkpoint when a loss is NaN or infinite, and skip the batches that led there.

    step    0   1   2   3 | 4   5            the last save is of step 4, batch 5 gives NaN
    batch   0   1   2   3 | 4   5
    step                  | 4   5   6   7    goes on without batches 4 and 5
    batch                 | 6   7   8   9

    while step < num_steps:
        loss, norm = forward_and_backward(model, cursor.next_batch())
        if guard.is_bad(loss, norm):
            step = guard.roll_back()
            continue
        optimizer.step()
        step += 1
        if step % 100 == 0:
            step = guard.save(step)

PaLM returned to a checkpoint about 100 steps before a loss spike, and skipped 200 to 500 batches
(arXiv:2204.02311, section 5.1). The same batches from an earlier checkpoint gave no spike: it needs
a batch and a state together. So every batch since the checkpoint is skipped, not only the last.

Call `is_bad` before `optimizer.step()`, with the norm of the gradients too: a loss can be finite
while a gradient is not, and one step later all parameters are NaN. A save in between would be a
checkpoint from which no job can continue. So `guard.save` looks at every parameter, buffer and
optimizer state first. Finite parameters are not enough: a gradient of 1e30 makes Adam's exp_avg_sq
infinite in float32, and that parameter never moves again.

The forward pass of a bad batch poisons the averages of BatchNorm, and its backward pass the
gradients. `roll_back` loads the first, and clears the second. A state outside the checkpoint, such
as the residual of gradient compression, stays poisoned: make it one of the `extra`. With a loss
scaler pass the loss alone: the scaler itself handles infinite gradients.
"""

from __future__ import annotations

import math
from contextlib import suppress

import torch
from torch import Tensor

from labkit import arguments
from labkit.checkpoint.checkpointer import Checkpointer
from labkit.checkpoint.plain_data import gather_plain
from labkit.checkpoint.sample_cursor import SampleCursor
from labkit.checkpoint.saving import SaveFailed


class Diverged(RuntimeError):
    """A job cannot continue by itself: it has no good state, or fails again at the same place."""


class LossGuard:
    """Detects a number that is not finite on some rank, and returns all ranks to a good step."""

    def __init__(self, checkpointer: Checkpointer, cursor: SampleCursor, *, limit: int = 3) -> None:
        """cursor: one of the checkpointer's `extra`. limit: the number of bad steps since the
        newest checkpoint that ends the job: it has a bug, or too high a learning rate.
        """
        if not any(each is cursor for each in checkpointer.extra.values()):
            raise ValueError(
                'the cursor is not saved with the parameters: give extra={"data": cursor} to the '
                "Checkpointer"
            )
        self._checkpointer, self._cursor = checkpointer, cursor
        self._group = checkpointer.group
        self._limit = arguments.whole("limit", limit, "1 or more bad steps")
        self._bad: list[str] = []
        """Bad tensors and losses since the checkpoint of step `_good`."""
        self._good = -1

    def is_bad(self, *numbers: float | Tensor) -> bool:
        """Return whether any of these numbers is NaN or infinite on any rank. Every rank calls it.

        Wire: one number in an all-reduce. On a GPU the host waits for the numbers.
        """
        group = self._group
        values = [x.item() if isinstance(x, Tensor) else x for x in numbers]
        is_finite = all(map(math.isfinite, values))
        # The lowest rank with a bad number sends the largest one.
        mine = torch.tensor([0 if is_finite else group.size - group.rank], device=group.device)
        with group.label("whether a loss is not finite"):
            largest = int(group.all_reduce(mine, "max").item())
        if largest:
            self._note(f"rank {group.size - largest} had a loss or norm that is not finite")
        return largest > 0

    def save(self, step: int, *, wait: bool = True) -> int:
        """Save the state after `step` steps, if all of it is finite, and return `step`.

        Else roll back, and return the step of the loaded checkpoint. Every rank calls it.
        """
        if found := self._not_finite():
            self._note(found)
            return self.roll_back()
        self._checkpointer.save(step, wait=wait)
        return step

    def roll_back(self) -> int:
        """Load the newest checkpoint, skip all batches drawn so far, and return its step.

        Every rank calls it. Diverged, on every rank, at the limit, and where there is no checkpoint
        of finite numbers.
        """
        checkpointer, position = self._checkpointer, self._cursor.taken
        with suppress(SaveFailed):  # an earlier checkpoint counts
            checkpointer.wait()
        loaded = checkpointer.load()
        if loaded is None:
            raise Diverged(f"{self._history()}, and nothing was saved: call save(0) at the start")
        if found := self._not_finite():
            raise Diverged(
                f"the checkpoint of step {loaded.step} is not good, {found}: save with "
                "LossGuard.save, and begin with load(step=...) of an earlier one"
            )
        if loaded.step != self._good:  # a save since then was durable
            self._bad, self._good = self._bad[-1:], loaded.step
        if len(self._bad) >= self._limit:
            raise Diverged(
                f"{self._history()}; limit={self._limit} bad steps since the checkpoint of step "
                f"{loaded.step}: look at these batches, or begin with an earlier step or a lower "
                "learning rate"
            )
        if checkpointer.contents.optimizer is not None:
            checkpointer.contents.optimizer.zero_grad()
        self._cursor.taken = position
        return loaded.step

    def _note(self, text: str) -> None:
        self._bad.append(f"batch {self._cursor.taken // self._cursor.batch - 1}: {text}")

    def _history(self) -> str:
        return "; ".join(self._bad) or "a return was asked for"

    def _not_finite(self) -> str:
        """Return the lowest rank with a number that is not finite in its state, and where; or "".

        Wire: an all-gather of names.
        """
        shards = self._checkpointer.contents.shards()
        mine = next((each.name for each in shards if not _is_finite(each.tensor)), None)
        for rank, name in enumerate(gather_plain(mine, self._group)):
            if name is not None:
                return f"rank {rank} had numbers in {name} that are not finite"
        return ""


def _is_finite(x: Tensor) -> bool:
    comparable = x.float() if x.itemsize == 1 else x  # torch has no isfinite of float8
    return bool(comparable.isfinite().all())
