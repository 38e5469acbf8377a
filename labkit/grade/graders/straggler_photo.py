"""A photo of a rank while its job is stuck: what its own process knows, taken by a thread.

The journal says the rest: the driver cuts it off at the region PHOTO, which begins at that moment.
When all ranks are in the picture, those that are stuck end their processes, and the job with it.
"""

import json
import linecache
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import torch

from labkit.comm import Group
from labkit.grade.graders.straggler_jobs import Plan, job

PHOTO = "photo"
_LABKIT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_BELOW = (os.path.join(_LABKIT, "comm") + os.sep, os.path.dirname(torch.__file__) + os.sep)
_MEASURED_S = 0.3
_PATIENCE_S = 20.0


def photographed(world: Group, plan: Plan, folder: str, after_s: float) -> None:
    """Run on every rank: the job, and a thread that takes the photo `after_s` after its start."""
    ended = threading.Event()
    arguments = (world, Path(folder), after_s, threading.get_ident(), ended)
    threading.Thread(target=_take, args=arguments, daemon=True).start()
    job(world, plan)
    ended.set()


def read_photo(folder: str, rank: int) -> dict[str, object] | None:
    """In the driver: cpu, stack and whether the job had returned; None where there is no photo."""
    try:
        photo: dict[str, object] = json.loads(_path(Path(folder), rank).read_text())
    except FileNotFoundError:
        return None
    return photo


def _take(world: Group, folder: Path, after_s: float, main: int, ended: threading.Event) -> None:
    time.sleep(after_s - _MEASURED_S)
    before_s = time.process_time()
    started_s = time.monotonic()
    time.sleep(_MEASURED_S)
    cpu = (time.process_time() - before_s) / (time.monotonic() - started_s)
    with world.region(PHOTO):
        returned = ended.is_set()
        frame = sys._current_frames().get(main)
    photo = {
        "returned": returned,
        "cpu": round(cpu, 2),
        "stack": "" if returned or frame is None else _line(frame),
    }
    path = _path(folder, world.rank)
    path.with_suffix(".part").write_text(json.dumps(photo))
    os.replace(path.with_suffix(".part"), path)
    deadline_s = time.monotonic() + _PATIENCE_S
    photos = [_path(folder, rank) for rank in range(world.size)]
    while not all(map(Path.exists, photos)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    if not returned:  # nobody listens any more to a rank that has returned
        os._exit(0)


def _path(folder: Path, rank: int) -> Path:
    return folder / f"photo-{rank}.json"


def _line(frame: FrameType) -> str:
    """`time.sleep(FOREVER_S)`: the job's own innermost line (where it is, would tell the story)."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BELOW):
        frame = frame.f_back
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
