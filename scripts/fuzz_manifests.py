"""Checkpoints that strangers may send: mutated ones of several layouts, each to be loaded.

    python -m scripts.fuzz manifests --count 2000

A mutation is a value of the manifest that is missing, odd or moved; bytes of the manifest that are
cut off or changed, mostly with a right checksum behind them; or a file that is cut off, no file, or
a link. Each checkpoint is read as a GPT and loaded with its optimizer, which then makes a step. The
same seed makes the same checkpoints. The exit status is 1 if one led to anything else than a load
or an error of one line (Damaged, DoesNotFit, or no complete checkpoint), or took too long.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from labkit import run
from labkit.checkpoint import Checkpointer, Damaged, DoesNotFit, SampleCursor, read_gpt
from labkit.comm import Group
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW
from labkit.tensor_parallel import parallelize
from labkit.zero import FullyShardedModule, Zero1Optimizer

CONFIG = GPTConfig(vocab=16, context=8, num_layers=1, hidden=16, num_heads=2)
LAYOUTS = ("replicated", "zero1", "zero3", "tensor parallel")
_SLOW_S = 20.0
"""Seconds of processor time, which do not depend on how busy the machine is."""
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 3, -1, -5.5, 0.5, 2**31, 2**63, 10**18, 10**30, 1e300),
    *(float("nan"), float("inf"), "", "0", "abc", "/etc/passwd", "../x", "rank-0009.safetensors"),
    *("\x1b[31m\x00", "\u0663", "x" * 5000, "F64", "I32", "int", "whole", "elements"),
    *([], [[]], [None], [10**18], [0, 10**12], [1] * 100, {}, {"a": []}, [[0, 1]] * 3),
)


def _made(layout: str, world: Group) -> tuple[Any, Any]:
    """Return a model and its optimizer; of one process alone for any other layout."""
    model: Any = GPT(CONFIG, seed=0)
    if layout == "tensor parallel":
        model = parallelize(model, world) if world.size > 1 else model
        return model, AdamW(model.parameters(), 1e-3)
    if layout == "zero3" and world.size > 1:
        model = FullyShardedModule(model, world)
    if layout == "zero1" and world.size > 1:
        return model, Zero1Optimizer(model.parameters(), torch.optim.AdamW, world)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def _step(model: Any, optimizer: Any) -> None:
    for parameter in model.parameters():
        parameter.grad = None
    model(torch.arange(8)[None]).float().logsumexp(-1).mean().backward()
    optimizer.step()


def _saves(world: Group, folder: Path) -> None:
    for layout in LAYOUTS:
        model, optimizer = _made(layout, world)
        _step(model, optimizer)
        extra: dict[str, Any] = {"config": CONFIG, "data": SampleCursor(100, 4)}
        Checkpointer(folder / layout, model, optimizer, world, extra=extra).save(1)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to each value inside of plain data."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, each in items:
        found.append((*path, key))
        if isinstance(each, dict | list):
            found += _places(each, (*path, key))
    return found


def _mutated_value(plain: Any, rng: random.Random) -> None:
    """One value is missing, odd, another's, or has another name."""
    *way, last = rng.choice(_places(plain))
    inner = plain
    for key in way:
        inner = inner[key]
    choice = rng.randrange(6)
    if choice == 0:
        del inner[last]
    elif choice == 1 and isinstance(inner[last], int):
        inner[last] += rng.choice((-8, -1, 1, 8, 64, 10**6))
    elif choice == 2:
        *other_way, other = rng.choice(_places(plain))
        value = plain
        for key in (*other_way, other):
            value = value[key]
        inner[last] = copy.deepcopy(value)
    elif choice == 3 and isinstance(inner, dict):
        inner[rng.choice((f"{last}x", "../rank-0000.safetensors", "/etc/passwd"))] = inner.pop(last)
    else:
        inner[last] = copy.deepcopy(rng.choice(_ODD))


def _mutated_text(body: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(body))
    choice = rng.randrange(5)
    if choice == 0:
        return body[:at]
    if choice == 1:
        return body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
    if choice == 2:
        return rng.choice((b"[", b'{"a":')) * 100_000
    if choice == 3:
        return body[:at] + b"9" * 5000 + body[at:]
    return b""


def _mutated_file(path: Path, rng: random.Random) -> None:
    """A file is cut off or longer, changed, gone, a link, a folder or a FIFO."""
    data, choice = path.read_bytes(), rng.randrange(7)
    if choice < 3:
        at = rng.randrange(len(data))
        changed = (data[:at], data + b"x", data[:at] + b"\xff" + data[at + 1 :])
        path.write_bytes(changed[choice])
        return
    path.unlink()
    if choice == 3:
        path.symlink_to("/etc/passwd")
    elif choice == 4:
        path.mkdir()
    elif choice == 5:
        os.mkfifo(path)


def _mutate(folder: Path, rng: random.Random) -> None:
    """One checkpoint, in its own folder."""
    path = folder / "manifest.json"
    if rng.random() < 0.15:
        _mutated_file(rng.choice(sorted(folder.iterdir())), rng)
        return
    head, body = path.read_bytes().rstrip(b"\n").split(b"\n")
    if rng.random() < 0.15:
        body = _mutated_text(body, rng)
    else:
        plain = json.loads(body)
        for _ in range(rng.randint(1, 3)):
            _mutated_value(plain, rng)
        body = json.dumps(plain, separators=(",", ":")).encode()
    if rng.random() < 0.95:
        text = body.decode(errors="replace").encode()
        head = b'{"format": "labkit checkpoint, format 1", "crc32": %d}' % zlib.crc32(text)
    path.write_bytes(head + b"\n" + body + b"\n")


def _loads(world: Group, folder: Path, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """In one rank: how the loads have ended, and a line for each that should not."""
    ended: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        layout = LAYOUTS[number % len(LAYOUTS)]
        mutated = folder / "mutated"
        shutil.rmtree(mutated, ignore_errors=True)
        shutil.copytree(folder / layout, mutated)
        _mutate(next(mutated.iterdir()), rng)
        began_s = time.process_time()
        for what, load in (("GPT", _reads_gpt), ("job", _loads_job)):
            try:
                load(mutated, layout, world)
                ended[f"{what} loaded"] += 1
            except (Damaged, DoesNotFit, FileNotFoundError) as error:
                ended[f"{what} {type(error).__name__}"] += 1
                if "\n" in str(error) or len(str(error)) > 2000:
                    wrong.append(f"{what} {number} of seed {seed}: {error!r:.2000}")
            except Exception as error:
                ended[f"{what} traceback"] += 1
                wrong.append(f"{what} {number} of seed {seed}: {type(error).__name__}: {error}")
        if time.process_time() - began_s > _SLOW_S:
            wrong.append(f"{number} of seed {seed} took more than {_SLOW_S} s of processor time")
    return ended, wrong


def _reads_gpt(folder: Path, layout: str, world: Group) -> None:
    read_gpt(folder)


def _loads_job(folder: Path, layout: str, world: Group) -> None:
    """And makes a step: what was loaded is of use."""
    model, optimizer = _made(layout, world)
    extra: dict[str, Any] = {"config": CONFIG, "data": SampleCursor(100, 4)}
    if Checkpointer(folder, model, optimizer, world, extra=extra).load() is not None:
        _step(model, optimizer)
        extra["data"].next_batch()


def manifests(count: int, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Load `count` mutated checkpoints: how that ended, and a line for each that should not."""
    with tempfile.TemporaryDirectory() as name:
        run(_saves, 2, (Path(name),), timeout=300)
        (found,) = run(_loads, 1, (Path(name), count, seed), timeout=30 + 2 * count).values
    ended, wrong = found
    return ended, wrong
