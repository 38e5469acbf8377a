"""Save while training goes on: copy the state, and write the copy beside the next steps.

An interviewer asks: "Writing a checkpoint takes a minute, and training must not stop for it. What
does save() do before it returns, what happens afterwards, and what can go wrong?"

Write a class:

    saver = AsyncSaver(start, write)
    saver.save(state)         between two steps
    saver.wait()              after the last one

    start    start(job) -> pending. Runs job() on a thread, beside the training loop, and returns at
             once. pending.wait() returns when the job has ended; it raises what the job has raised
    write    write(state). Writes a state to the disk, which is slow. It may raise OSError
    state    a dict: values are tensors, numbers, texts, None, and dicts like itself. Training goes
             on with the same objects: it changes tensors and dicts in place, adds entries, and
             replaces numbers. Tensors need no gradient, and may be views of larger ones

    step       1        2        3        4        5        6
    rank       |copy 1|                            |copy 4|
    thread     |------ write 1 ------|             |------ write 4 ----

Contract
    save     has `write` called with the state as it was when save was called, on the thread. Names
             and values are equal; tensors have the same shape and dtype, and are contiguous.
             Returns without waiting for its own write. At most one write is under way: a save waits
             for the one before
    wait     returns when no write is under way
    errors   what `write` raises is raised by the next save or wait, once. A save that raises has
             started no write; the save after it goes on as if nothing had been
    memory   the storage of a copied tensor has no more bytes than its elements. Where the copy
             before had a tensor of the same shape and dtype at the same place (the names from the
             outer dict inwards), its memory is used again
"""

from collections.abc import Callable
from typing import Any

import torch


class AsyncSaver:
    """Copies states, and has the copies written one after the other."""

    def __init__(
        self, start: Callable[[Callable[[], None]], Any], write: Callable[[dict[str, Any]], None]
    ) -> None:
        """start: runs a job on a thread. write: writes a state."""
        ### BEGIN SOLUTION
        self.start, self.write = start, write
        self.copy: Any = {}
        self.pending: Any = None
        ### END SOLUTION

    def save(self, state: dict[str, Any]) -> None:
        """Copy the state, and start to write the copy."""
        ### BEGIN SOLUTION
        self.wait()  # before the memory of the copy is used again
        copy = self.copy = self.copied(state, self.copy)
        self.pending = self.start(lambda: self.write(copy))
        ### END SOLUTION

    def wait(self) -> None:
        """Return when no write is under way; raise what the last one has raised."""
        ### BEGIN SOLUTION
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.wait()

    def copied(self, value: Any, before: Any) -> Any:
        """A copy of a value, in the memory of the copy before where that fits."""
        if isinstance(value, dict):
            old = before if isinstance(before, dict) else {}
            return {name: self.copied(each, old.get(name)) for name, each in value.items()}
        if not isinstance(value, torch.Tensor):
            return value
        fits = isinstance(before, torch.Tensor) and before.shape == value.shape
        if not fits or before.dtype != value.dtype:
            before = torch.empty(value.shape, dtype=value.dtype)
        return before.copy_(value)
        ### END SOLUTION
