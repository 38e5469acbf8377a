"""Traces of training steps that were recorded once: what is said of them depends on no machine.

        python -m tests.recorded             record all of them again, in some minutes
    python -m tests.recorded slow huge   record these two

Let nothing run beside it. Of ten runs the fastest is kept, which was disturbed least.
examples/bottlenecks.py and bucket_sizes.py measure the same on the machine where they run.

Layout: tests/data/steps/NAME.json.gz has the fields of a profile.Trace, times to 0.1 us.
"""

import dataclasses
import gzip
import json
import sys
from functools import partial
from pathlib import Path

from labkit import inject
from labkit.interview.slow_case import draw
from labkit.profile.step_trace import Exchange, RankTrace, Trace, Work
from tests.an_example import load_example

FOLDER = Path(__file__).parent / "data" / "steps"
NUM_RUNS = 10

# Faults of inject: by name the strategy, whether messages are throttled, and the faults.
SHARE = 0.4
FAULT_S = SHARE * inject.STEP_S
FAULTS = {
    "none": ("ddp", False),
    "recompute": ("ddp", False, inject.Recompute()),
    "slow": ("ddp", False, inject.SlowRank(2, SHARE)),
    "pauses": ("tp", False, inject.Pauses(3, FAULT_S / 2, period_s=inject.STEP_S / 2)),
    "loader": ("zero3", False, inject.SlowLoader(1, FAULT_S)),
    "router": ("moe", False, inject.SkewedRouter(2, SHARE)),
    "tiny": ("ddp", True, inject.TinyBuckets()),
    "huge": ("ddp", True, inject.OneHugeBucket()),
    "link": ("tp", True, inject.SlowLink(1, 0.02)),
}

# A case of `labkit case`, with its fault and without.
DRAWN = draw(2, seed=4)

bucket_sizes = load_example("bucket_sizes")


def of_faults(faults, strategy, on_network, num_steps):
    return inject.timed_run(*faults, strategy=strategy, on_network=on_network, num_steps=num_steps)


RECORDED = {
    **{
        name: partial(of_faults, faults, strategy, on_network, 3)
        for name, (strategy, on_network, *faults) in FAULTS.items()
    },
    **{
        f"case_{name}": partial(of_faults, faults, DRAWN.strategy, DRAWN.on_network, 3)
        for name, faults in (("slow", DRAWN.faults), ("without", DRAWN.faults[1:]))
    },
    **{
        f"buckets_of_{size}": partial(bucket_sizes.trace_of, size)
        for size in bucket_sizes.LAYERS_PER_BUCKET
    },
}


def read(name):
    """The trace of this name."""
    fields = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    ranks = {int(rank): _rank(own) for rank, own in fields["ranks"].items()}
    return Trace(**fields | {"ranks": ranks, "host_only": frozenset(fields["host_only"])})


def _rank(fields):
    work = [Work(**each) for each in fields["work"]]
    exchanges = [
        Exchange(**each | {"key": _hashable(each["key"]), "group": tuple(each["group"])})
        for each in fields["exchanges"]
    ]
    lists = {name: [tuple(each) for each in fields[name]] for name in ("steps", "memory")}
    return RankTrace(**fields | lists | {"work": work, "exchanges": exchanges})


def _hashable(key):
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


def write(name, trace):
    """Keep a trace under this name."""
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(_plain(dataclasses.asdict(trace)), separators=(",", ":"))
    # Without the time of writing: equal traces are equal files.
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _plain(data):
    if isinstance(data, dict):
        return {key: _plain(each) for key, each in data.items()}
    if isinstance(data, (list, tuple, frozenset)):
        return [_plain(each) for each in data]
    return round(data, 7) if isinstance(data, float) else data


def main():
    for name in sys.argv[1:] or RECORDED:
        found = min((RECORDED[name]() for _ in range(NUM_RUNS)), key=lambda trace: trace.seconds)
        write(name, found)
        print(f"{name}: {found.seconds:.3f} s")


if __name__ == "__main__":
    main()
