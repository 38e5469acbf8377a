"""Grade atomic_commit: the process and the machine end behind every operation, and a load follows.

Then the learner saves the next state. The end that tells most of those that go wrong is the result.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labkit.checkpoint.disk import RecordedDisk
from labkit.checkpoint.power_cut import PowerCut, cuts, operations
from labkit.grade import grader as g

KILL, BYTES, NAMES = "a kill", "a power cut, bytes lost,", "a power cut, names lost,"
WAYS = {"all kept": KILL, "bytes lost": BYTES, "names lost": NAMES, "by chance": "a power cut"}
GONE, MIXED, NOTHING = "the state is gone, ", "loads what was not saved", "loads nothing"
AS_TEXT = "loads step 9, and 10 was saved"
NO_DISK = "the folder has files that the operations of disk do not make"


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Steps 8, 9 and 10; states of several lengths, the last one shorter than those before."""
    for sizes in ((30, 50, 40), (4000, 20, 300)):
        states = [(8 + i, draw.rng.randbytes(size)) for i, size in enumerate(sizes)]
        yield g.Case(f"states of {sizes} bytes", states)


def call(watch: Any, args: tuple[Any, ...]) -> str:
    """Save the states, end behind each operation in each way, load, and save the next one."""
    save, load = watch.load("save"), watch.load("load_newest")
    states, counts = args[0], []
    with tempfile.TemporaryDirectory() as name:
        root, log, made = (Path(name, each) for each in ("root", "log", "made"))
        root.mkdir()
        log.touch()
        if load(root) is not None:
            return "loads something from an empty folder"
        for step, data in states:
            save(RecordedDisk(log), root, step, data)
            counts.append(len(operations([log])))
        performed = operations([log])
        watch.note("files", len(files_of(root)))
        with contextlib.suppress(KeyError):  # it renames or removes what it has not made
            PowerCut(root, performed).leave(made, True, True)
        if files_of(root) != files_of(made):
            return NO_DISK
        ends, tried = [], dict[Any, str]()
        for count, way, left in cuts(root, performed):
            least, files = sum(count >= each for each in counts), files_of(left)
            held = not least or any(states[least - 1][1] in data for data in files.values())
            key = least, *sorted(files.items())
            if key not in tried:  # many cuts leave the same
                tried[key] = what_is_wrong(save, load, left, [None, *states], least)
            if wrong := tried[key]:
                # First what a kill alone does, and loses; last what is left to the next run.
                order = "next run" in wrong, wrong == AS_TEXT, [*WAYS].index(way), held
                how = f"{WAYS[way]} behind {performed[count - 1].kind}"
                ends.append((order, f"{how}: {'' if held else GONE}{wrong}"))
    return min(ends, key=lambda end: end[0], default=("", ""))[1]


def files_of(folder: Path) -> dict[str, bytes]:
    """The files and their bytes."""
    return {path.name: path.read_bytes() for path in folder.glob("*")}


def what_is_wrong(save: Any, load: Any, folder: Path, saved: list[Any], least: int) -> str:
    """What a load gives that it must not, or what the next save does; empty: all is right."""
    where = "the load"
    try:
        loaded = load(folder)
        if loaded is None and least:
            return NOTHING
        if loaded in saved[:least]:
            return f"loads step {loaded[0]}, and {saved[least][0]} was saved"
        if loaded not in saved[least : least + 2]:
            return MIXED
        where = "the next run"
        save(RecordedDisk(folder.with_name("other")), folder, 99, b"next")
        return "" if load(folder) == (99, b"next") else "loads another state in the next run"
    except Exception as error:
        return f"{type(error).__name__} by {where}"


REMOVAL = """    for path in folder.iterdir():
        if path != finished:
            disk.remove(path)
"""
CREATE, SYNC = "    file = disk.create(unfinished)\n", "    disk.sync_folder(folder)\n"
MISTAKES = [
    g.Mistake(
        "changes files without disk",
        "Only the methods of `disk` are recorded, and followed by an end. Write, rename and remove "
        "with them.",
        g.patch(" disk.remove(path)\n", " path.unlink()\n"),
        seen=lambda s: NO_DISK in s.y,
    ),
    g.Mistake(
        "removes the state before too early",
        "Until the new state is on the disk under its final name, the old one is the only one. "
        "Remove it last.",
        g.patch(REMOVAL, "", CREATE, f"{REMOVAL}{CREATE}"),
        seen=lambda s: KILL in s.y and GONE in s.y and "remove" in s.y,
        hint=2,
    ),
    g.Mistake(
        "writes over the state before",
        "From the first operation on the old state is gone, and the new one is not there yet. "
        "Write the new one under another name.",
        g.patch('folder / "unfinished",', 'next(folder.glob("step-*"), folder / "unfinished"),'),
        seen=lambda s: KILL in s.y and GONE in s.y and "remove" not in s.y,
    ),
    g.Mistake(
        "loads a file that is not finished",
        "The file has the name of a finished state while it is being written. Give it that name "
        "when its bytes are on the disk, or let the load see that it is not whole.",
        g.patch('folder / "unfinished", folder', 'folder / f"step-{step:08d}", folder'),
        seen=lambda s: KILL in s.y and GONE not in s.y and MIXED in s.y,
        hint=2,
    ),
    g.Mistake(
        "a pointer that is not whole itself",
        "The states are whole, and the file that says which one is the newest is not, or names one "
        "that is gone. A pointer needs the same care; without one, the load looks for the newest.",
        g.patch(
            SYNC,
            "    latest = disk.create(folder / 'latest')\n"
            f"    disk.write(latest, finished.name.encode())\n{SYNC}",
            *("path != finished", "path.name not in ('latest', finished.name)"),
            'sorted(folder.glob("step-*"))',
            '[folder / path.read_text() for path in folder.glob("latest")]',
        ),
        seen=lambda s: GONE not in s.y and (NOTHING in s.y or "ValueError by the load" in s.y),
        hint=2,
    ),
    g.Mistake(
        "gives the final name to bytes that are not on the disk",
        "The rename reached the disk, and the bytes did not: a power cut leaves a short file under "
        "the final name. Sync the file before the rename.",
        g.patch("    disk.sync(file)\n", ""),
        seen=lambda s: BYTES in s.y,
        hint=3,
    ),
    g.Mistake(
        "does not sync the names",
        "The bytes are on the disk, and the name of the file is not: a power cut takes back the "
        "rename of a save that has returned. Names belong to their folder, which is synced itself.",
        g.patch(SYNC, ""),
        seen=lambda s: NAMES in s.y and AS_TEXT not in s.y,
        hint=3,
    ),
    g.Mistake(
        "compares steps as text",
        "As text 9 is greater than 10, so the load takes the older of two states. Compare "
        "numbers, or write all names with equally many digits.",
        g.patch("{step:08d}", "{step}"),
        seen=lambda s: AS_TEXT in s.y,
        hint=3,
    ),
    g.Mistake(
        "the next run stops at what is left there",
        "A run that ended in a save leaves an unfinished file. The next run must be able to save "
        "nevertheless.",
        g.patch(CREATE, f"    assert not unfinished.exists()\n{CREATE}"),
        seen=lambda s: "next run" in s.y,
    ),
    g.Mistake(
        "leaves the states before",
        "The results are right, and the disk is full one day. When the new state counts, remove "
        "the others.",
        g.patch(REMOVAL, ""),
        over_budget=lambda s: s.ranks[0].notes[0].value > 1,
    ),
]

GRADER = g.Questions(
    functions=("save", "load_newest"),
    cases=cases,
    right=lambda states: "",
    call=call,
    mistakes=MISTAKES,
    closed=("labkit.checkpoint",),
    shown="after an end behind every operation the next run loads the last whole state",
)
