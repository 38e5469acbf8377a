"""Mutate files that strangers may send, and see that labkit ends in a result or in one line.

    python -m scripts.fuzz traces --count 2000          # those in the package and in the tests
    python -m scripts.fuzz traces --count 200 FILE ...  # other traces
    python -m scripts.fuzz manifests --count 2000       # checkpoints: fuzz_manifests.py

A mutation is small: a field that is missing or of another type, an invalid number, bytes that
are cut off or changed. The same seed makes the same files. The exit status is 1 if a file led to
anything else than a report or a ValueError of one line that names the file, or took too long.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from labkit import arguments, profile
from scripts import fuzz_manifests

_FOLDERS = (
    Path(profile.__file__).with_name("traces"),
    Path(__file__).parents[1] / "tests" / "data" / "traces",
)
_EVENTS = 200
"""So many events of a trace are kept: a mutation needs no more, and 2,000 take a minute or two."""
_SLOW_S = 20.0
"""Seconds of processor time, which do not depend on how busy the machine is."""
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, -5.5, 2**31, 2**63, 2**64, 10**30, 1e300, -1e300),
    *(float("nan"), float("inf"), float("-inf"), "", "0", "-1", "abc", "1e400", "9" * 400),
    *("\ud800", "\x1b[31m\x00", "<script>", "[0, 1, ..., 3]", "[0, 2, 4, ..., 999999]", "\u0663"),
    *([], [[]], [None], ["X"], [[10**30]], [[-1, 2]], [{}], {}, {"a": []}, [[["deep"]]]),
)
_FIELDS = "ph cat name pid tid ts dur args id".split()
_ARGUMENTS = [
    *("correlation", "External id", "stream", "device", "Input Dims", "Input type", "dtype"),
    *("Concrete Inputs", "Collective name", "In msg nelems", "Process Group Name", "Group size"),
    *("Process Group Ranks", "Src Rank", "Dst Rank", "Total Allocated", "Device Type", "Device Id"),
]
_NAMES = (
    *("ProfilerStep#1", "ProfilerStep#", "[memory]", "enumerate(DataLoader)#_Iter.__next__"),
    *("c10d::allreduce_", "nccl:all_to_all", "nccl:send 0->1", "nccl:recv 7<-999999", "gloo:send"),
    *("ncclDevKernel_SendRecv(x)", "void deep_ep::intranode::dispatch<8>(x)", "Memcpy PtoP (x)"),
)
_CATEGORIES = (
    *("kernel", "cpu_op", "user_annotation", "gpu_memcpy", "gpu_user_annotation", "cuda_runtime"),
    *("mtia_ccp_events", "Kernel", "Operator", "Trace", "cuda_sync", "\u0130"),
)
Document = dict[str, Any]


def _mutated_event(document: Document, rng: random.Random) -> None:
    """A field or an argument of an event is missing, odd, or another that is known."""
    event = rng.choice(document["traceEvents"])
    choice = rng.randrange(6)
    if choice == 0:
        event.pop(rng.choice(_FIELDS), None)
    elif choice == 1:
        event[rng.choice(_FIELDS)] = copy.deepcopy(rng.choice(_ODD))
    elif choice == 2 and isinstance(event.get("args"), dict):
        event["args"][rng.choice(_ARGUMENTS)] = copy.deepcopy(rng.choice(_ODD))
    elif choice == 3:
        event["name"] = rng.choice(_NAMES)
    elif choice == 4:
        event["cat"] = rng.choice(_CATEGORIES)
    else:
        event["ts" if rng.random() < 0.5 else "dur"] = rng.choice((-1e6, 0, 1e9, 1e16, 2**53, "7"))


def _mutated_events(document: Document, rng: random.Random) -> None:
    """The same for many events; or they are doubled, shuffled, cut, or none are left."""
    events = document["traceEvents"]
    choice = rng.randrange(6)
    if choice == 0:
        field, value = rng.choice(_FIELDS), rng.choice(_ODD)
        for each in events:
            if rng.random() < 0.5:
                each[field] = copy.deepcopy(value)
    elif choice == 1:
        events += copy.deepcopy(rng.choices(events, k=20))
    elif choice == 2:
        rng.shuffle(events)
    elif choice == 3:
        del events[rng.randrange(len(events)) :]
    elif choice == 4:
        category = rng.choice(events).get("cat")
        events[:] = [each for each in events if each.get("cat") != category]
    else:
        events.insert(rng.randrange(len(events)), copy.deepcopy(rng.choice(_ODD)))


def _mutated_head(document: Document, rng: random.Random) -> None:
    """Make the document's description of itself odd."""
    job = document.setdefault("distributedInfo", {})
    keys = "traceEvents distributedInfo baseTimeNanoseconds host_name deviceProperties".split()
    if rng.random() < 0.5:
        job[rng.choice(("rank", "world_size", "backend"))] = copy.deepcopy(rng.choice(_ODD))
    else:
        document[rng.choice(keys)] = copy.deepcopy(rng.choice(_ODD))


def _mutated_text(content: bytes, rng: random.Random) -> bytes:
    """Bytes are changed, cut off, repeated or nested, with gzip and without."""
    at = rng.randrange(len(content))
    choice = rng.randrange(8)
    if choice == 0:
        return content[:at]
    if choice == 1:
        return content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
    if choice == 2:
        return gzip.compress(content)[: rng.randrange(1, 4000)]
    if choice == 3:
        packed = bytearray(gzip.compress(content))
        packed[rng.randrange(2, len(packed))] ^= 1 << rng.randrange(8)
        return bytes(packed)
    if choice == 4:
        depth = rng.choice((100, 100_000))
        nested = b'{"args":' if rng.random() < 0.5 else b"["
        return b'{"traceEvents": ' + nested * depth
    if choice == 5:
        return (
            b"\xef\xbb\xbf" + content if rng.random() < 0.5 else content.decode().encode("utf-16")
        )
    if choice == 6:
        return content[:at] + b"\xff\xfe\x00" + content[at:]
    return _blank() + gzip.compress(content)


@cache
def _blank() -> bytes:
    """30 kB that are 30 MB."""
    return gzip.compress(b" " * 30_000_000)


def _trace(seeds: Sequence[str], rng: random.Random) -> list[bytes]:
    """Files of one or two ranks, of which the last is mutated one to four times."""
    files = []
    for rank in range(rng.choice((1, 1, 2))):
        document = json.loads(rng.choice(seeds))
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
        files.append(document)
    if rng.random() < 0.25:
        content = [json.dumps(each).encode() for each in files]
        return [*content[:-1], _mutated_text(content[-1], rng)]
    mutations: tuple[Callable[[Document, random.Random], None], ...] = (
        *(_mutated_event, _mutated_event, _mutated_events),
    )
    for _ in range(rng.randint(1, 4)):
        rng.choice(mutations)(files[-1], rng)
        if not all(isinstance(each, dict) for each in files[-1]["traceEvents"]):
            break  # the other mutations expect events
        if not files[-1]["traceEvents"]:
            break
    if rng.random() < 0.2:
        _mutated_head(files[-1], rng)
    return [json.dumps(each).encode() for each in files]


def traces(
    count: int, seed: int = 0, paths: Sequence[Path] = (), max_bytes: int = 20_000_000
) -> tuple[Counter[str], list[str]]:
    """Read and report `count` mutated traces: how they ended, and a line for each that should not.

    paths: traces to mutate, those of the package and the tests where none is given.
    """
    paths = paths or [path for folder in _FOLDERS for path in sorted(folder.glob("*.json.gz"))]
    seeds = [_seed(path) for path in paths]
    ended: Counter[str] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            files = [Path(folder) / f"rank{n}.json" for n in range(2)]
            contents = _trace(seeds, rng)
            for file, content in zip(files, contents):
                file.write_bytes(content)
            began_s = time.process_time()
            try:
                found = profile.report(profile.read(files[: len(contents)], max_bytes=max_bytes))
                "\n".join(found.words()).encode()
                json.dumps(found.to_json())
                profile.page(found).encode()
                ended["report"] += 1
            except ValueError as error:
                ended["one line"] += 1
                if "\n" in str(error) or not any(str(file) in str(error) for file in files):
                    wrong.append(f"mutation {number} of seed {seed}: ValueError: {error!r}")
            except Exception as error:
                ended["traceback"] += 1
                wrong.append(f"mutation {number} of seed {seed}: {type(error).__name__}: {error}")
            if time.process_time() - began_s > _SLOW_S:
                wrong.append(
                    f"mutation {number} of seed {seed} took more than {_SLOW_S} s of processor time"
                )
    return ended, wrong


def _seed(path: Path) -> str:
    """Return a part of a trace: its first events and those in the middle."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    document: Document = json.loads(content)
    events = document["traceEvents"]
    middle = len(events) // 2
    document["traceEvents"] = (events[: _EVENTS // 4] + events[middle:])[:_EVENTS]
    return json.dumps(document)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_traces = kinds.add_parser(
        "traces", prog=parser.prog, help="PyTorch Profiler's traces, as labkit profile reads"
    )
    of_traces.add_argument("paths", nargs="*", type=Path, help="traces to mutate")
    of_traces.add_argument("--count", type=arguments.count, default=2000)
    of_traces.add_argument("--seed", type=int, default=0)
    of_manifests = kinds.add_parser(
        "manifests",
        prog=parser.prog,
        help="checkpoints, as labkit serve and Checkpointer read them",
    )
    of_manifests.add_argument("--count", type=arguments.count, default=2000)
    of_manifests.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began_s = time.monotonic()
    try:
        if given.kind == "traces":
            ended, wrong = traces(given.count, given.seed, given.paths)
        else:
            ended, wrong = fuzz_manifests.manifests(given.count, given.seed)
    except OSError as error:
        of_traces.error(str(error))
    print("\n".join(wrong))
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in ended.most_common())
    print(f"{given.count} mutations in {time.monotonic() - began_s:.0f} s: {outcomes}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
