"""Feeding many ranks (labkit/data), beside torch's sampler and torchdata's StatefulDataLoader.

    shuffle      shards that a batch comes from, and files opened, by order
    packing      padding and documents cut, of documents with lengths as in web text
    resume       samples lost and repeated in an epoch in which the number of ranks changes: a Feed,
                 torch's DistributedSampler, and StatefulDataLoader with a state for each rank
    mixing       how far shares are off, in samples: a fixed pattern, and random draws
    reading      seconds of a step with slow reads, by depth and threads, beside the prediction

Exact facts decide the exit status: 1 where one is not so. Times decide nothing.

    python benchmarks/feeding.py             30 s
    python benchmarks/feeding.py --quick     10 s
"""

import importlib.util
import random
import tempfile
import time
from collections import Counter
from functools import partial

import torch
from measure import alternate_in_rounds, command_line, machine
from torch.utils.data import DistributedSampler

import labkit
from labkit.data.feed import Feed, Loader, Source
from labkit.data.order import buffered, full_permutation, shards_per_batch
from labkit.data.packing import best_fit, concatenated, cost
from labkit.data.shards import Shards, write_shards

COUNTS = [100] * 40
ORDERS = {
    "full permutation": full_permutation,
    "shards only": partial(buffered, buffer=1),
    "buffer 100": partial(buffered, buffer=100),
    "buffer 1,000": partial(buffered, buffer=1000),
    "buffer 100, 16 shards open": partial(buffered, buffer=100, open_shards=16),
}
NUM_SAMPLES, BATCH = 103, 8
Line = tuple[str, bool]
"""A finding, and whether its fact is so."""


def shuffling() -> list[Line]:
    """Shards in a batch of 32, and how often a file is opened, with 17 open at once."""
    lines, opened = [], {}
    with tempfile.TemporaryDirectory() as folder:
        write_shards(folder, (b"a sample" for _ in range(sum(COUNTS))), per_shard=COUNTS[0])
        for name, make in ORDERS.items():
            order = make(COUNTS, 0, 0)
            shards = Shards(folder, max_open=17)
            for number in order.tolist():
                shards.read(number)
            opened[name] = shards.num_opened
            mixed = shards_per_batch(order, COUNTS, 32)
            once = order.sort().values.tolist() == [*range(sum(COUNTS))]
            lines.append((f"{name:28}{mixed:6.1f} shards, {opened[name]:5,} opens", once))
    is_least = opened["buffer 100"] == len(COUNTS) < opened["full permutation"]
    return [
        *lines,
        ("a buffer of 100 opens each shard once, a permutation again and again", is_least),
    ]


def packing() -> list[Line]:
    """Sequences of 2,048 tokens from documents of log-normal lengths."""
    draw = random.Random(0)
    lengths = [1 + int(draw.lognormvariate(6, 1)) for _ in range(2000)]
    padded = 1 - sum(min(n, 2048) for n in lengths) / (2048 * len(lengths))
    lines = [(f"{'one document each':28}{padded:6.1%} padding", True)]
    found = {}
    for name, pack in (("concatenated", concatenated), ("best fit", best_fit)):
        found[name] = cost(pack(lengths, 2048), 2048)
        lines.append((f"{name:28}{found[name].padding:6.1%} padding, {found[name].cut} cut", True))
    too_long = sum(n > 2048 for n in lengths)
    return [
        *lines,
        (f"best fit cuts only the {too_long} too long", found["best fit"].cut == too_long),
    ]


def wrong(drawn: Counter) -> str:
    """Say how many samples of an epoch are lost and repeated."""
    lost = sum(not drawn[number] for number in range(NUM_SAMPLES))
    return f"{lost} lost, {sum(n - 1 for n in drawn.values() if n > 1)} repeated"


def resuming() -> list[Line]:
    """An epoch of 103 samples with a global batch of 8: 4 ranks for 5 steps, then 2 ranks."""
    feed = Feed({"a": Source(NUM_SAMPLES, partial(full_permutation, [NUM_SAMPLES], 0))}, BATCH)
    drawn, state = Counter(), feed.state_dict()
    for size, num_steps in ((4, 5), (2, 7)):
        loaders = [Loader(feed_copy(state), lambda each: each.id, r, size) for r in range(size)]
        for loader in loaders:
            for _, ids in zip(range(num_steps), loader):
                drawn.update(ids)
        state = loaders[0].state_dict()
    last = feed_copy(state).next_batch()[: NUM_SAMPLES - 12 * BATCH]  # the epoch ends in a batch
    drawn.update(each.id for each in last)
    lines = [(f"{'Feed':28}{wrong(drawn)}", wrong(drawn) == "0 lost, 0 repeated")]

    drawn = Counter()
    for size, skipped, num_steps in ((4, 0, 5), (2, 5 * BATCH // 2, None)):
        for rank in range(size):
            ids = list(DistributedSampler(range(NUM_SAMPLES), size, rank))
            drawn.update(ids[skipped : skipped + num_steps * 2 if num_steps else None])
    # Both samplers deal the same permutation in turn, and the last one pads 103 to 104.
    lines.append((f"{'DistributedSampler, skipped':28}{wrong(drawn)}", max(drawn.values()) == 2))
    return [*lines, *stateful()]


def feed_copy(state: dict) -> Feed:
    """Return the feed at a position, as another rank has it."""
    order = partial(full_permutation, [NUM_SAMPLES], 0)
    feed = Feed({"a": Source(NUM_SAMPLES, order)}, BATCH)
    feed.load_state_dict(state)
    return feed


def stateful() -> list[Line]:
    """The same with StatefulDataLoader, whose states are those of 4 ranks."""
    if importlib.util.find_spec("torchdata") is None:
        return [("StatefulDataLoader          not run: pip install torchdata", True)]
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    def loader(rank: int, size: int) -> StatefulDataLoader:
        sampler = StatefulDistributedSampler(range(NUM_SAMPLES), size, rank, seed=0)
        return StatefulDataLoader(range(NUM_SAMPLES), BATCH // size, sampler=sampler)

    def epoch(second: int) -> Counter:
        drawn, states = Counter(), []
        for rank in range(4):
            each = loader(rank, 4)
            for _, ids in zip(range(5), each):
                drawn.update(ids.tolist())
            states.append(each.state_dict())
        for rank in range(second):  # rank r goes on from the state of rank r
            each = loader(rank, second)
            each.load_state_dict(states[rank])
            drawn.update(number for ids in each for number in ids.tolist())
        return drawn

    same, fewer = epoch(4), epoch(2)
    return [
        (f"{'StatefulDataLoader, 4 -> 4':28}{wrong(same)}", sum(same.values()) == 104),
        (f"{'StatefulDataLoader, 4 -> 2':28}{wrong(fewer)}", True),
    ]


def mixing() -> list[Line]:
    """Shares of 70, 20 and 10 percent over 1,000 steps of 8."""
    weights = {"web": 70.0, "code": 20.0, "books": 10.0}
    feed = Feed(
        {k: Source(50, partial(full_permutation, [50], 0), w) for k, w in weights.items()}, BATCH
    )
    generator, most = random.Random(0), {"a fixed pattern": 0.0, "random draws": 0.0}
    counts = {name: Counter() for name in most}
    for step in range(1, 1001):
        counts["a fixed pattern"].update(each.source for each in feed.next_batch())
        counts["random draws"].update(generator.choices([*weights], [*weights.values()], k=BATCH))
        for name, drawn in counts.items():
            off = max(abs(drawn[k] - step * BATCH * w / 100) for k, w in weights.items())
            most[name] = max(most[name], off)
    return [
        (f"{name:28}at most {off:5.1f} samples off", off < 1.5 or name == "random draws")
        for name, off in most.items()
    ]


COMPUTE_S, NUM_STEPS = 0.010, 20
CASES = [(0.008, 0, 1), (0.008, 2, 1), (0.030, 2, 1), (0.030, 8, 1), (0.030, 4, 4)]
"""(seconds of a read, depth, threads)"""


def timed(world: labkit.Group, rounds: int) -> list[list[float]]:
    """Seconds of 20 steps by case and round; a step computes 10 ms, and reads sleep."""

    def job(read_s: float, depth: int, num_threads: int) -> None:
        def read(each):
            time.sleep(read_s)
            return each.id

        feed = Feed({"a": Source(50, partial(full_permutation, [50], 0))}, 1)
        loader = Loader(feed, read, 0, 1, depth, num_threads)
        for _ in zip(range(NUM_STEPS), loader):
            time.sleep(COMPUTE_S)

    candidates = {str(case): partial(job, *case) for case in CASES}
    return [*alternate_in_rounds(world, candidates, rounds).values()]


def reading(rounds: int) -> list[Line]:
    """Milliseconds of a step, beside the prediction."""
    lines = []
    for case, times in zip(CASES, labkit.run(timed, 1, (rounds,)).values[0], strict=True):
        read_s, depth, threads = case
        expected = COMPUTE_S + read_s if not depth else max(COMPUTE_S, read_s / threads)
        least, *_, most = each = sorted(1e3 * seconds / NUM_STEPS for seconds in times)
        text = f"read {1e3 * read_s:2.0f} ms, depth {depth}, {threads} threads"
        text = f"{text:32}{1e3 * expected:5.1f} ms expected, {each[len(each) // 2]:5.1f}"
        lines.append((f"{text} ({least:.1f} to {most:.1f})", True))
    return lines


def main() -> None:
    """Print a table for each part."""
    parser = command_line(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    is_right = True
    parts = (shuffling, packing, resuming, mixing, partial(reading, 3 if chosen.quick else 9))
    for part in parts:
        print(f"\n{getattr(part, '__name__', 'reading')}")
        for text, is_so in part():
            print(f"  {text}{'' if is_so else '   NOT SO'}", flush=True)
            is_right &= is_so
    if not is_right:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
