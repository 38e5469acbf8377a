"""Runs of feeding many ranks: how well an order shuffles, and resuming on other ranks."""

import tempfile
from collections import Counter
from functools import partial
from typing import Any

from labkit import Group
from labkit.data.feed import Feed, Loader, Source
from labkit.data.order import buffered, full_permutation, shards_per_batch
from labkit.data.shards import Shards, write_shards
from labkit.interview.real_run import real_run, run

_COUNTS = (100,) * 40  # 40 shards of 100 samples


@real_run
def shards_in_a_batch(buffer: int, open_shards: int) -> float:
    """Return how many of 40 shards of 100 samples a batch of 32 comes from, on average.

    buffer: of the shuffle buffer, in samples; 0 for a full permutation. No rank is started.
    """
    if buffer:
        order = buffered(_COUNTS, 0, 0, buffer, open_shards)
    else:
        order = full_permutation(_COUNTS, 0, 0)
    return shards_per_batch(order, _COUNTS, 32)


@real_run
def samples_wrong_after_resuming(before: int, after: int) -> int:
    """Return how many samples an epoch has lost or repeated, after another number of ranks went on.

    49 samples in 9 shards, a global batch of 7. `before` ranks make 3 steps, `after` ranks the
    other 4. Every rank reads two batches ahead.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_shards(folder, (bytes([number]) for number in range(49)), per_shard=6)
        first = run(_fed, before, (folder, None, 3)).values
        rest = run(_fed, after, (folder, first[0][1], 4)).values
    drawn = Counter(number for ids, _ in (*first, *rest) for number in ids)
    return sum(abs(drawn[number] - 1) for number in range(49))


def _fed(world: Group, folder: str, state: Any, num_steps: int) -> tuple[list[int], Any]:
    shards = Shards(folder)
    order = partial(buffered, shards.counts, 0, buffer=12, open_shards=2)
    feed = Feed({"text": Source(len(shards), order)}, batch=7)
    loader = Loader(feed, lambda sample: shards.read(sample.id)[0], world.rank, world.size)
    if state:
        loader.load_state_dict(state)
    ids = [number for _, share in zip(range(num_steps), loader) for number in share]
    return ids, loader.state_dict()
