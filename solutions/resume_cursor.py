"""Batches that go on where a job was stopped, with any number of ranks and any batch size.

An interviewer asks: "A job on 8 hosts was killed in the middle of an epoch, and goes on with 6.
Which samples does it read next? What does the checkpoint say about the data? The loader reads
ahead: what about the batches that are loaded, and that no step has used yet?"

Write the class `ResumableBatches`. Each rank makes one, and uses it like this:

    batches = ResumableBatches(num_samples, batch, seed, rank, size, load)
    batches.load_state_dict(state)             # only where there is a checkpoint
    while True:
        samples = batches.next_batch()         # this rank's share of the step's samples
        ...                                    # the step
        state = batches.state_dict()           # for the checkpoint

    num_samples  how many samples the data has. Their ids are 0 to num_samples - 1
    batch        how many samples a step has, on all ranks together
    seed         an int from 0, the same on all ranks and after each restart, as num_samples is
    rank, size   this rank, and the number of ranks
    load         load(ids) takes a list of ids. It begins to load these samples and returns at once:
                 a function without arguments, which waits for the samples and returns their list

Contract
    epoch     has each sample once, in a random order. It depends on the seed and the epoch alone:
              all ranks make the same one, with any batch and size, also after a restart in another
              process. With one seed, different epochs have different orders. In one epoch,
              different seeds have different orders. (seed + epoch is fine, as in
              DistributedSampler)
    step      the shares of all ranks together are the next `batch` samples of the epoch's order. If
              the epoch has fewer left, they are these few, and the next step begins the next epoch
    share     the ranks' numbers of samples differ by at most 1, and may be 0. It is up to you which
              rank gets which samples of the step
    next_batch()  returns this rank's share of the next step, as the function of `load` returns it.
              By then it has started to load its share of the step after this one
    state_dict()  returns a dict of plain data, as JSON has it. Nothing that is called later changes
              it. Call it after any step
    load_state_dict(state)  goes on behind the steps that were made when state_dict was called. All
              ranks get the dict of one rank, whichever it is. The batch and the size may be others
              than at that time. It is called before the first step, or behind a later one: then
              the job has rolled back, and the steps since the checkpoint are made again
"""

import random
from collections.abc import Callable
from typing import Any

Load = Callable[[list[int]], Callable[[], list[Any]]]


class ResumableBatches:
    """This rank's share of each step, epoch after epoch."""

    def __init__(
        self, num_samples: int, batch: int, seed: int, rank: int, size: int, load: Load
    ) -> None:
        """Begin at the first sample of the first epoch."""
        ### BEGIN SOLUTION
        self.num_samples, self.batch, self.seed = num_samples, batch, seed
        self.rank, self.size, self.load = rank, size, load
        self.load_state_dict({"epoch": 0, "used": 0})
        ### END SOLUTION

    def next_batch(self) -> list[Any]:
        """Return this rank's share of the next step, and begin to load the one after it."""
        ### BEGIN SOLUTION
        prefetched = self.prefetched or self.begin(self.epoch, self.used)
        self.epoch, self.used, samples = prefetched
        self.prefetched = self.begin(self.epoch, self.used)
        return samples()
        ### END SOLUTION

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint has to know, as plain data."""
        ### BEGIN SOLUTION
        return {"epoch": self.epoch, "used": self.used}
        ### END SOLUTION

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind the steps that were made when `state` was saved."""
        ### BEGIN SOLUTION
        self.epoch, self.used = state["epoch"], state["used"]
        self.prefetched = None

    def begin(self, epoch: int, used: int) -> tuple[int, int, Callable[[], list[Any]]]:
        """Begin to load the next share; where the job is when the step has used it."""
        if used == self.num_samples:
            epoch, used = epoch + 1, 0
        order = list(range(self.num_samples))
        random.Random(f"{self.seed} {epoch}").shuffle(order)
        ids = order[used : used + self.batch]
        return epoch, used + len(ids), self.load(ids[self.rank :: self.size])
        ### END SOLUTION
