"""The samples that come next, on any number of ranks: mixed, resumed exactly, read ahead.

    position     0 1 2 3 4 5 6 7 8 9 ...                 of the whole job
    source       A A B A A B A A B A ...                 weights 2 : 1
    id in it     7 2 4 9 0 1 ...                         the order of the source's epoch
    batch 4      |rank 0|rank 1| rank 0|rank 1|          each rank takes its share of the batch

A Feed decides on every rank alike, and sends nothing. Its state is one number per source: how many
samples the whole job has taken. Shares come from the global batch, so a job goes on exactly, with
any other number of ranks. Each sample of a source comes once in each of its epochs; the last batch
of an epoch is not dropped and not filled up, but goes on with the next epoch. (labkit.checkpoint's
SampleCursor is a Feed of one source and a full permutation.)

A Loader reads a rank's share ahead. Batches that are read ahead are not taken yet: its state is the
position of the batch that was last *yielded*, not of the last that was drawn.

    reads         r0 | r1 | r2 | r3 |                    c: seconds of a step, r: of a read
    steps              c0   | c1   | c2   |              a step takes max(c, r) instead of c + r
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from labkit import arguments

Item = TypeVar("Item")
Value = TypeVar("Value")


class Sample(NamedTuple):
    """A sample of one of the sources."""

    source: str
    id: int


@dataclass(frozen=True)
class Source:
    """A set of samples. order(epoch) returns its ids, each once; weight: its share of samples.

    Source(len(shards), lambda epoch: full_permutation(shards.counts, seed, epoch))
    """

    num_samples: int
    order: Callable[[int], Tensor]
    weight: float = 1.0


class Feed:
    """A position in the samples of a whole job. Every rank has an equal one.

    sources: by name. batch: samples of all ranks in a step. After any number of samples each source
    has given its exact share, up to less than one sample for two sources. ValueError for a weight
    that is not above 0.
    """

    def __init__(self, sources: Mapping[str, Source], batch: int) -> None:
        self.sources = dict(sources)
        if not sources:
            raise ValueError("sources is empty: a feed needs a source of samples; give one by name")
        for name, source in self.sources.items():
            arguments.whole(f"num_samples of {name!r}", source.num_samples, "1 or more samples")
            arguments.number(f"weight of {name!r}", source.weight, "a source's share", above=0)
        self.batch = arguments.whole("batch", batch, "1 or more samples of the global batch")
        self.taken = dict.fromkeys(self.sources, 0)
        """Samples that the job has taken from each source, in all epochs."""
        self._orders: dict[str, tuple[int, list[int]]] = {}

    def next_batch(self) -> list[Sample]:
        """Advance, and return the samples of the next global batch, the same on every rank."""
        return [self._next(self._most_behind()) for _ in range(self.batch)]

    def _most_behind(self) -> str:
        """Return the source whose share lacks most after one more sample."""
        weights = {name: source.weight for name, source in self.sources.items()}
        per_weight = (sum(self.taken.values()) + 1) / sum(weights.values())
        return max(weights, key=lambda name: weights[name] * per_weight - self.taken[name])

    def _next(self, name: str) -> Sample:
        source = self.sources[name]
        epoch, place = divmod(self.taken[name], source.num_samples)
        if self._orders.get(name, (-1, []))[0] != epoch:
            self._orders[name] = epoch, source.order(epoch).tolist()
        self.taken[name] += 1
        return Sample(name, self._orders[name][1][place])

    def state_dict(self) -> dict[str, Any]:
        """Return the position: how many samples each source has, and how many are taken."""
        return {"num_samples": self._num_samples(), "taken": dict(self.taken)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved position. The batch and the weights may be others.

        ValueError for other sources: a position in them would be another sample.
        """
        if state["num_samples"] != self._num_samples():
            raise ValueError(
                f"the saved position is of sources with {state['num_samples']} samples, and this "
                f"feed has {self._num_samples()}; give the sources that were saved"
            )
        self.taken = dict(state["taken"])

    def _num_samples(self) -> dict[str, int]:
        return {name: source.num_samples for name, source in self.sources.items()}


def prefetch(
    items: Iterable[Item], fetch: Callable[[Item], Value], depth: int, num_threads: int = 1
) -> Iterator[Value]:
    """Yield fetch(item) for each item, in order, while up to `depth` later ones are fetched.

    An error of `fetch` is raised where its value would have come. Memory: depth + 1 values.
    """
    with ThreadPoolExecutor(num_threads) as pool:
        ahead: deque[Future[Value]] = deque()
        try:
            for item in items:
                ahead.append(pool.submit(fetch, item))
                if len(ahead) > depth:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


class Loader:
    """A rank's shares of a feed's batches, read ahead.

        loader = Loader(feed, read, world.rank, world.size)
        loader.load_state_dict(saved)                  if the job goes on
        for samples in loader:
            train(samples)
            saved = loader.state_dict()                the position after this batch

    read: one sample -> its data; threads call it. depth: batches read ahead. Each `iter(loader)`
    begins after the batch that was last yielded.
    """

    def __init__(
        self,
        feed: Feed,
        read: Callable[[Sample], Any],
        rank: int,
        size: int,
        depth: int = 2,
        num_threads: int = 1,
    ) -> None:
        if not 0 <= rank < size:
            raise ValueError(f"rank={rank} is not one of {size} ranks; give 0 to {size - 1}")
        self.depth = arguments.whole("depth", depth, "0 or more batches", least=0)
        self.num_threads = arguments.whole("num_threads", num_threads, "1 or more threads")
        self.feed, self.read, self.rank, self.size = feed, read, rank, size
        self._state = feed.state_dict()

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the data of this rank's share of each batch, without end."""
        self.feed.load_state_dict(self._state)
        fetched = prefetch(self._draws(), self._fetch, self.depth, self.num_threads)
        for values, self._state in fetched:
            yield values

    def _draws(self) -> Iterator[tuple[Sequence[Sample], dict[str, Any]]]:
        while True:
            batch = self.feed.next_batch()
            yield share(batch, self.rank, self.size), self.feed.state_dict()

    def _fetch(self, drawn: tuple[Sequence[Sample], dict[str, Any]]) -> Any:
        return [self.read(sample) for sample in drawn[0]], drawn[1]

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batch that was last yielded."""
        return self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved position, from the next `iter(loader)` on."""
        self.feed.load_state_dict(state)
        self._state = self.feed.state_dict()


def share(batch: Sequence[Item], rank: int, size: int) -> Sequence[Item]:
    """Return a rank's consecutive part; the first len(batch) % size ranks have one more."""
    least, more = divmod(len(batch), size)
    start = rank * least + min(rank, more)
    return batch[start : start + least + (rank < more)]
