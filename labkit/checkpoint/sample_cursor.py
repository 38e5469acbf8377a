"""Each sample once per epoch, through kills and changes of the number of ranks.

    position      0        4        8   10   12       16        20
    epoch         0 0 0 0  0 0 0 0  0 0 | 1 1  1 1 1 1  1 1 1 1 | 2 ...     10 samples, batch 4
    batch         |   0   |    1   |    2     |    3   |    4   |

A cursor is one number, the samples that the whole job has taken. Each rank takes its share of the
global batch, so that 3 ranks go on where 4 stopped. Each epoch has a permutation of its own, drawn
from (seed, epoch). The last batch of an epoch is not dropped and not short: it
continues with the first samples of the next epoch.

The position belongs to the parameters. It is saved and loaded with them, in one commit:

    cursor = SampleCursor(num_samples=1000, batch=16)
    checkpointer = Checkpointer(folder, model, optimizer, world, extra={"data": cursor})
    loaded = checkpointer.load()
    for step in range(loaded.step if loaded else 0, num_steps):
        ids_B = cursor.next_batch().tensor_split(world.size)[world.rank]
        train(dataset[ids_B])
        log.write(step, ids_B)
        checkpointer.save(step + 1)

A frequent bug: a program makes an iterator over the data, and loads the position afterwards. The
iterator still begins at sample 0. A SampleCursor has no iterator that could keep an old position:
`next_batch` reads the position at each call. A loader that draws batches in advance has the
opposite bug: it saves a position ahead of the parameters. Draw ids when they are used, and let
workers fetch by id.

SampleLog records the samples used, and `audit` compares them with those expected.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit import arguments


class SampleCursor:
    """A position in the samples of a whole job, and the ids that come next.

    Memory: the permutation of one epoch, 8 bytes per sample.
    """

    def __init__(self, num_samples: int, batch: int, seed: int = 0) -> None:
        """num_samples: of the data set. batch: samples of all ranks in a step."""
        self.num_samples = arguments.whole("num_samples", num_samples, "1 or more samples")
        self.batch = arguments.whole("batch", batch, "1 or more samples of the global batch")
        self.seed = seed
        self.taken = 0
        """Samples of all epochs that the job has taken."""
        self._epoch, self._order_N = -1, torch.empty(0, dtype=torch.int64, device="cpu")

    def next_batch(self) -> Tensor:
        """Advance, and return the ids of the next global batch, int64 (batch,), on every rank."""
        shares, end = [], self.taken + self.batch
        while self.taken < end:
            epoch, at = divmod(self.taken, self.num_samples)
            ids = self._order(epoch)[at : at + end - self.taken]
            shares.append(ids)
            self.taken += len(ids)
        return torch.cat(shares)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, with the number of samples and the seed that it belongs to."""
        return {"num_samples": self.num_samples, "seed": self.seed, "taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved position.

        The batch size is this cursor's own, and may differ from the saved job's. ValueError for
        another number of samples or another seed, since then the order of samples is another.
        """
        for key in ("num_samples", "seed"):
            if state[key] != getattr(self, key):
                raise ValueError(
                    f"the checkpoint's samples have {key}={state[key]}, and this cursor has "
                    f"{key}={getattr(self, key)}: its position is in another order of samples. "
                    f"Give {key}={state[key]}"
                )
        self.taken = arguments.whole("taken", state["taken"], "0 or more samples", least=0)

    def _order(self, epoch: int) -> Tensor:
        """Return the permutation of an epoch. Only the last one is kept."""
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{epoch}".encode()))
            self._order_N = torch.randperm(self.num_samples, generator=generator, device="cpu")
            self._epoch = epoch
        return self._order_N


class SampleLog:
    """Samples that one rank has used in one attempt of the job: a line for each step.

    A line has the step and the ids, and ends with a newline. When `write` returns, the line is in
    the kernel's memory, so that a kill of the process does not lose it.
    """

    def __init__(self, folder: str | Path, attempt: int, rank: int) -> None:
        """folder: one for all attempts of one job. attempt: 0, 1, 2, ...

        FileExistsError if this rank has a log of this attempt: each start is an attempt.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = Path(folder) / f"samples-{attempt:04d}-{rank:04d}.txt"
        self._file = path.open("x", encoding="ascii")

    def write(self, step: int, ids: Iterable[int] | Tensor) -> None:
        """Write this rank's ids of a step, from 0 on. Call it before the step is saved.

        A rank without samples in a step writes a line, too.
        """
        ids = ids.tolist() if isinstance(ids, Tensor) else ids
        print(step, *ids, file=self._file, flush=True)


class Audit(NamedTuple):
    """Samples that a job's parameters have learned from, compared with those they should have."""

    num_steps: int
    lost: list[int]
    """Ids that were not used, or not as often as they should have been, in ascending order."""
    duplicated: list[int]
    """Ids that were used more often than they should have been, in ascending order."""
    repeated: int
    """Lines of steps that were repeated, because their work was lost. They do not count."""


class _Line(NamedTuple):
    step: int
    ids: list[int]


def audit(
    folder: str | Path, *, num_samples: int, batch: int, seed: int = 0, num_skipped: int = 0
) -> Audit:
    """Find the samples that a job has lost or used twice, from the logs of all its attempts.

        attempt 0, 4 ranks    step 0   1   2   3   4 |              killed; the last save was 3
        attempt 1, 3 ranks                     3   4   5   6 |      begins with step 3
        what counts           step 0   1   2 | 3   4   5   6        3 and 4 of attempt 0 are void

    A later attempt voids the lines of earlier ones from its first step on. A rank that goes back
    within an attempt, as with LossGuard, starts a new attempt in this sense. The lines that count
    are compared with as many batches of a new cursor, by how often each id was used. num_skipped:
    batches that a LossGuard has skipped. They count as expected, and so as lost.

    Call it when the job has ended: the last step of a killed attempt may lack the lines of some
    ranks. The batch must have been the same in all steps. A last line without a newline was torn by
    a kill, and is not read.
    """
    effective: list[_Line] = []
    num_lines = 0
    for _, lines in sorted(_by_start(Path(folder)).items()):
        first = min(line.step for line in lines)
        effective = [line for line in effective if line.step < first] + lines
        num_lines += len(lines)
    num_steps = max((line.step + 1 for line in effective), default=0)
    cursor = SampleCursor(num_samples, batch, seed)
    batches = (cursor.next_batch().tolist() for _ in range(num_steps + num_skipped))
    expected = Counter(x for ids in batches for x in ids)
    used = Counter(x for line in effective for x in line.ids)
    lost, twice = (sorted(left.elements()) for left in (expected - used, used - expected))
    return Audit(num_steps, lost, twice, num_lines - len(effective))


def _by_start(folder: Path) -> dict[tuple[int, int], list[_Line]]:
    """Return the lines of all ranks by attempt and by the number of returns within it."""
    found: dict[tuple[int, int], list[_Line]] = {}
    for path in folder.glob("samples-*-*.txt"):
        attempt, returns, last = int(path.name.split("-")[1]), 0, -1
        for text in path.read_text(encoding="ascii").split("\n")[:-1]:
            step, *ids = map(int, text.split())
            returns += step <= last
            last = step
            found.setdefault((attempt, returns), []).append(_Line(step, ids))
    return found
