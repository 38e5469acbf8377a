"""Samples in shard files with an index, and which reader gets which shard.

    folder/index.json         {"counts": [4, 4, 2]}                samples of each shard
    folder/00000.bin          | sample 0 | sample 1 | sample 2 | sample 3 |
    folder/00000.offsets      0          9         13         25         31      int64, in bytes

A million small files cost a million opens. Many machines cannot write one large file at the same
time. So samples lie in shards of tens to hundreds of MB. The offsets make a read of any sample one
read of its bytes. Formats without offsets (tar, as in WebDataset) are read from the start of a
shard.

Readers: each rank has some worker processes or threads, and each of these is a reader. 10 shards
over 2 ranks of 4 workers, by `shards_of`:

    reader        0   1   2   3   4   5   6   7        reader = worker * ranks + rank
    rank          0   1   0   1   0   1   0   1        so the 2 left over go to different ranks
    shards        2   2   1   1   1   1   1   1        with rank * workers + worker: 6 and 4

Formats: WebDataset; MosaicML's MDS and Megatron-LM's .bin and .idx have an index like this one.
"""

from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from itertools import accumulate, islice
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from labkit import arguments


def write_shards(folder: str | Path, samples: Iterable[bytes], per_shard: int) -> Shards:
    """Write samples into shard files of `per_shard` samples each; the last may have fewer.

    The index is written last, under another name first: a folder with an index is complete.
    FileExistsError for a folder that has an index already.
    """
    arguments.whole("per_shard", per_shard, "1 or more samples in a shard file")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if (index := folder / "index.json").exists():
        raise FileExistsError(f"{index} is there already; give an empty folder")
    counts: list[int] = []
    left = iter(samples)
    while shard := list(islice(left, per_shard)):
        number = len(counts)
        (folder / f"{number:05}.bin").write_bytes(b"".join(shard))
        offsets = array("q", accumulate(map(len, shard), initial=0))
        (folder / f"{number:05}.offsets").write_bytes(offsets.tobytes())
        counts.append(len(shard))
    unfinished = index.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({"counts": counts}), encoding="ascii")
    unfinished.replace(index)
    return Shards(folder)


class Shards:
    """The samples of a folder that `write_shards` has written, read by id: 0 to len - 1.

    max_open: files of shards that are open at once. `num_opened` counts how often one was opened.
    FileNotFoundError for a folder without an index.
    """

    def __init__(self, folder: str | Path, max_open: int = 8) -> None:
        self.folder = Path(folder)
        if not (index := self.folder / "index.json").exists():
            raise FileNotFoundError(
                f"{index} is missing: the folder has no shards, or they were not finished; "
                "write them with write_shards"
            )
        self.counts: list[int] = json.loads(index.read_text(encoding="ascii"))["counts"]
        self.max_open = arguments.whole("max_open", max_open, "1 or more files")
        self.num_opened = 0
        self._starts = list(accumulate(self.counts, initial=0))
        self._open: OrderedDict[int, tuple[BinaryIO, array[int]]] = OrderedDict()
        self._lock = Lock()  # threads of a Loader may read at once

    def __len__(self) -> int:
        return self._starts[-1]

    def locate(self, sample: int) -> tuple[int, int]:
        """Return the shard of a sample, and its number within the shard.

        IndexError for a sample that is not there.
        """
        if not 0 <= sample < len(self):
            last = len(self) - 1
            raise IndexError(f"sample {sample} is not one of {last + 1}; give 0 to {last}")
        shard = bisect_right(self._starts, sample) - 1
        return shard, sample - self._starts[shard]

    def read(self, sample: int) -> bytes:
        """Return the bytes of a sample: one read, and opening its shard if that is closed."""
        shard, place = self.locate(sample)
        file, offsets = self._opened(shard)
        start, end = offsets[place : place + 2]
        return os.pread(file.fileno(), end - start, start)

    def close(self) -> None:
        """Close all files. A later read opens them again."""
        with self._lock:
            self._open.clear()

    def _opened(self, shard: int) -> tuple[BinaryIO, array[int]]:
        """Return the file and the offsets of a shard; the one used longest ago makes room.

        A file closes when no thread reads it any more.
        """
        with self._lock:
            if shard not in self._open:
                if len(self._open) == self.max_open:
                    self._open.popitem(last=False)
                offsets = array("q", (self.folder / f"{shard:05}.offsets").read_bytes())
                file = (self.folder / f"{shard:05}.bin").open("rb", buffering=0)
                self._open[shard] = file, offsets
                self.num_opened += 1
            self._open.move_to_end(shard)
            return self._open[shard]


def shards_of(
    num_shards: int, rank: int, num_ranks: int, worker: int = 0, num_workers: int = 1
) -> range:
    """Return the shards of one worker of a rank. Every shard has exactly one reader.

    The numbers of shards of two readers, and of two ranks, differ by one at most. A reader beyond
    the number of shards has none. ValueError for a rank or worker that is not there.
    """
    for name, number, size in (("rank", rank, num_ranks), ("worker", worker, num_workers)):
        if not 0 <= number < size:
            raise ValueError(f"{name}={number} is not one of {size}; give 0 to {size - 1}")
    return range(worker * num_ranks + rank, num_shards, num_ranks * num_workers)
