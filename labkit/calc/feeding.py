"""Feeding data to many ranks: bytes per second, shards per reader, samples that a sampler adds.

    32 GPUs, each 400 samples/s of 110 KB     ->  1.41 GB/s, from storage to the hosts together
    100 shards over 16 readers                ->  7 for some, 6 for others: 16 x 7 - 100 = 12 idle
    1,000 samples over 32 ranks               ->  1,024 drawn, of which 24 are drawn twice

The sampler is torch.utils.data.DistributedSampler: every rank draws equally many samples, so that
no rank waits in a collective for one that has none left.
"""

from __future__ import annotations

from labkit import arguments
from labkit.calc.result import Result


def feed_bytes_per_s(num_gpus: int, samples_per_s: float, sample_bytes: float) -> Result:
    """Return the bytes per second that all GPUs together read.

    samples_per_s: of one GPU. sample_bytes: of a sample as it is stored, compressed or not.
    feed_bytes_per_s(32, 400, 110e3).to("GB/s") == 1.408
    """
    arguments.whole("num_gpus", num_gpus, "1 or more GPUs")
    arguments.number("samples_per_s", samples_per_s, "samples of one GPU per second", above=0)
    arguments.number("sample_bytes", sample_bytes, "bytes of a stored sample", above=0)
    return Result(
        num_gpus * samples_per_s * sample_bytes,
        "bytes/s",
        "feed",
        "n s b",
        f"{num_gpus} * {samples_per_s:g} * {sample_bytes:g}",
    )


def idle_reader_share(num_shards: int, num_readers: int) -> Result:
    """Return the share of all readers' time in an epoch in which they have no shard left.

    Shards are equal, and readers equally fast. Those with a shard less wait for the others.
    idle_reader_share(100, 16) is 12 of 112.
    """
    arguments.whole("num_shards", num_shards, "1 or more shards")
    arguments.whole("num_readers", num_readers, "1 or more readers")
    most = -(-num_shards // num_readers)
    slots = most * num_readers
    return Result(
        1 - num_shards / slots,
        "share",
        "idle readers",
        "1 - S / (R ceil(S / R))",
        f"1 - {num_shards} / ({num_readers} * {most})",
        convention="every reader is there until the busiest has finished",
    )


def sampler_padding(num_samples: int, num_ranks: int) -> Result:
    """Return how many samples torch's DistributedSampler draws twice in an epoch.

    With drop_last=True it leaves out num_samples % num_ranks of them instead.
    sampler_padding(1000, 32) == 24
    """
    arguments.whole("num_samples", num_samples, "1 or more samples")
    arguments.whole("num_ranks", num_ranks, "1 or more ranks")
    return Result(
        -num_samples % num_ranks,
        "",
        "samples drawn twice",
        "n ceil(N / n) - N",
        f"{num_ranks} * {-(-num_samples // num_ranks)} - {num_samples}",
        source="torch.utils.data.DistributedSampler",
    )
