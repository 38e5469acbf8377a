"""The order of an epoch: a full permutation, or a shuffle buffer over shards that are read in turn.

    full permutation     7 2 9 0 4 8 1 ...         any sample at any time: reads jump between shards

    shuffle buffer       shards in random order, `open_shards` of them read in turn
                           |
                         [ 8 3 0 5 ]  buffer of 4: a random one leaves, the next one takes its place
                           |
                         3 5 8 1 ...               reads stay near the place in each open shard

A buffer of b samples mixes only what is in it at one time: shards that are read far apart never
meet. A sample can leave as early as it enters, and none leaves before its shard is opened. An id
may leave after its shard was read to the end: then the file is opened again.

Here the buffer works on ids, and not on samples. So the order depends on (seed, epoch) only,
whatever the number of ranks and workers, and a position in it is one number. A buffer of samples in
each worker shuffles as well, but then its contents are part of the state.

`shards_per_batch` measures an order by what a step sees: how many shards a batch comes from.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from labkit import arguments


def full_permutation(counts: Sequence[int], seed: int, epoch: int) -> Tensor:
    """Return all ids in random order, int64 (sum of counts,). counts: samples of each shard."""
    return torch.randperm(sum(counts), generator=_generator(seed, epoch), device="cpu")


def buffered(
    counts: Sequence[int], seed: int, epoch: int, buffer: int, open_shards: int = 1
) -> Tensor:
    """Return all ids as a shuffle buffer lets them out, int64 (sum of counts,).

    counts: samples of each shard. buffer: samples in it. open_shards: shards that are read in turn,
    a sample of each; when one ends, the next shard takes its place.
    """
    arguments.whole("buffer", buffer, "1 or more samples")
    arguments.whole("open_shards", open_shards, "1 or more shards")
    generator = _generator(seed, epoch)
    shards = torch.randperm(len(counts), generator=generator, device="cpu").tolist()
    starts = list(accumulate(counts, initial=0))
    waiting = [iter(range(starts[shard], starts[shard + 1])) for shard in shards]
    read = _in_turn(waiting, open_shards)
    return torch.tensor(list(shuffle_buffer(read, buffer, generator)), dtype=torch.int64)


def _in_turn(waiting: list[Iterator[int]], num_open: int) -> Iterator[int]:
    """Yield a sample of each open iterator in turn; the next one replaces one that has ended."""
    opened, waiting = deque(waiting[:num_open]), waiting[num_open:][::-1]
    while opened:
        shard = opened.popleft()
        if (sample := next(shard, None)) is not None:
            yield sample
            opened.append(shard)
        elif waiting:
            opened.appendleft(waiting.pop())


def shuffle_buffer(samples: Iterable[int], size: int, generator: torch.Generator) -> Iterator[int]:
    """Yield all samples: a random one of the buffer leaves, and the next sample takes its place."""
    kept: list[int] = []
    for sample in samples:
        if len(kept) < size:
            kept.append(sample)
            continue
        place = int(torch.randint(size, (), generator=generator, device="cpu"))
        yield kept[place]
        kept[place] = sample
    for place in torch.randperm(len(kept), generator=generator, device="cpu").tolist():
        yield kept[place]


def shards_per_batch(order: Tensor, counts: Sequence[int], batch: int) -> float:
    """Return how many different shards a batch comes from, on average over the full batches."""
    starts = torch.tensor(list(accumulate(counts))[:-1], dtype=torch.int64)
    shards = torch.searchsorted(starts, order, right=True)
    batches = shards[: len(order) // batch * batch].view(-1, batch)
    return sum(len(each.unique()) for each in batches) / len(batches)


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(f"{seed}/{epoch}".encode()))
