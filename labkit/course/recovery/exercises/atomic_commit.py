"""Grade atomic_commit: the process and the machine end behind every operation, and a load follows.

Then the learner saves the next state. After a kill, the power is cut in this save, too. The result
is the end that tells most of those that go wrong.
"""

import functools
import itertools
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from labkit.checkpoint.disk import RecordedDisk
from labkit.checkpoint.power_cut import Operation, PowerCut, operations
from labkit.grade import grader as g

KILL, BYTES, NAMES = "a kill", "a power cut, bytes lost,", "a power cut, names lost,"
AGAIN = "a kill, and a power cut in the next save,"
GONE, MIXED, NOTHING = "the state is gone, ", "loads what was not saved", "loads nothing"
OLDER = "loads step"
RIGHT = "every load gives the newest whole state"
AS_TEXT = "loads step 999, and 10000 was saved"
NEXT = 20_000, b"next"
Judge = Callable[[Any, Any], str]  # (a folder's files, the states that a load may give) -> mistake


def cases(draw: g.Draw) -> list[g.Case]:
    """Steps of 1, 3 and 5 digits; the last state is shorter than those before."""
    sizes = (50, 4000, 30)
    states = [(step, draw.rng.randbytes(size)) for step, size in zip((9, 999, 10_000), sizes)]
    return [g.Case(f"states of {sizes} bytes", states)]


def call(watch: Any, args: tuple[Any, ...]) -> str:
    """Save the states, end behind each operation in each way, load, and save the next one."""
    save, load = watch.load("save"), watch.load("load_newest")
    saved, counts, made = [None, *args[0]], list[int](), None
    with TemporaryDirectory() as name:
        root, log = Path(name, "root"), Path(name, "log")
        fill(root, {})
        log.touch()
        if load(root) is not None:
            return "loads something from an empty folder"
        for state in saved[1:]:
            save(RecordedDisk(log), root, *state)
            counts.append(len(operations([log])))
        performed = operations([log])
        watch.note("files", len(files_of(root)))
        with suppress(KeyError):  # it renames or removes what it has not made
            made = PowerCut(root, performed).surviving_files(True, True)
        if files_of(root) != made:
            return "the folder has files that the operations of disk do not make"
        judge = functools.cache(functools.partial(what_is_wrong, watch, saved))
        if wrong := worst_end(judge, root, performed, saved, counts):
            return wrong
        for count in range(counts[-2] + 1, counts[-1] + 1):  # one save tells enough
            least = sum(count >= each for each in counts)
            if wrong := end_of_the_next_save(watch, judge, root, performed[:count], saved[least:]):
                return wrong
    return RIGHT


def worst_end(
    judge: Judge, root: Path, performed: list[Operation], saved: list[Any], counts: list[int]
) -> str:
    """The end that tells most of those that go wrong: first what a kill alone does, and loses."""
    ends, chance = [], random.Random(0)
    # The unsynced bytes and names that a power cut keeps.
    ways: list[Any] = [(KILL, True, True), (BYTES, False, True), (NAMES, True, False)]
    ways += 12 * [("a power cut", chance, chance)]  # the more, the more names have changed
    for count, operation in enumerate(performed, start=1):
        cut, least = PowerCut(root, performed[:count]), sum(count >= each for each in counts)
        after_kill = cut.surviving_files(True, True)
        num_ways = len(ways) if operation.kind == "remove" else 4
        for order, (way, *kept) in enumerate(ways[:num_ways]):
            files = cut.surviving_files(*kept)
            may = tuple(saved[least : least + 2])
            if wrong := judge(tuple(sorted(files.items())), may):
                # Bytes under a name that a lost rename has brought back are no state.
                named = [files[each] for each in files if each in after_kill]
                held = not least or any(saved[least][1] in data for data in named)
                how = f"{way} behind {operation.kind}: {'' if held else GONE}{wrong}"
                ends.append((order, held, count, how))
    return min(ends, default=("",))[-1]


def end_of_the_next_save(
    watch: Any, judge: Judge, root: Path, performed: list[Operation], saved: list[Any]
) -> str:
    """Return the first power cut in the next run's save, after a kill, that goes wrong.

    saved: the newest state whose save had returned, and those that came after it.
    """
    shutil.rmtree(root)
    fill(root, PowerCut(root, performed).surviving_files(True, True))
    log = root.with_name("next log")
    log.write_text("")
    watch.load("load_newest")(root)
    watch.load("save")(RecordedDisk(log), root, *NEXT)
    more = operations([log])
    for count, operation in enumerate(more, start=1):
        cut = PowerCut(root, [*performed, *more[:count]])
        may = (NEXT,) if count == len(more) else (*saved, NEXT)
        for kept in [(False, True), (True, False), *((True, all_but(i)) for i in range(6))]:
            if wrong := judge(tuple(sorted(cut.surviving_files(*kept).items())), may):
                return f"{AGAIN} behind {operation.kind}: {wrong}"
    return ""


def all_but(number: int) -> Any:
    """Choose for a PowerCut: of the changes of names that were not synced one is taken back."""
    answers = itertools.chain([0.0] * number, [1.0], itertools.repeat(0.0))
    return SimpleNamespace(random=answers.__next__)


def fill(folder: Path, files: dict[str, bytes]) -> None:
    """Make a folder with these files."""
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files and their bytes."""
    return {path.name: path.read_bytes() for path in folder.glob("*")}


def what_is_wrong(watch: Any, saved: list[Any], files: Any, may: tuple[Any, ...]) -> str:
    """Say what a load gives but what it may, or what the next save does; empty: all is right."""
    save, load = watch.load("save"), watch.load("load_newest")
    where = "the load"
    with TemporaryDirectory() as name:
        folder, log = Path(name, "folder"), Path(name, "log")
        fill(folder, dict(files))
        try:
            loaded = load(folder)
            if loaded not in may:
                if loaded is None:
                    return NOTHING
                is_older = loaded in saved
                return f"{OLDER} {loaded[0]}, and {may[0][0]} was saved" if is_older else MIXED
            where = "the next run"
            save(RecordedDisk(log), folder, 30_000, b"next")
            watch.note("files", len(files_of(folder)))
            is_right = load(folder) == (30_000, b"next")
            return "" if is_right else "loads another state in the next run"
        except Exception as error:
            return f"{type(error).__name__} by {where}"


def most_files(s: g.Observed) -> int:
    """Return the most files left by a save that was not interrupted."""
    return max(note.value for note in s.ranks[0].notes)


REMOVAL = """    for path in folder.iterdir():
        if path != finished:
            disk.remove(path)
"""
CREATE, SYNC = "    file = disk.create(unfinished)\n", "    disk.sync_folder(folder)\n"
MISTAKES = [
    g.Mistake(
        "gives up the state before too early",
        "Until the new state is on the disk under its final name, the old one is the only one. "
        "Write the new one under another name, and remove the old one last.",
        [
            g.patch(REMOVAL, "", CREATE, f"{REMOVAL}{CREATE}"),
            g.patch(REMOVAL, "", SYNC, f"{REMOVAL}{SYNC}"),
        ],
        wrong=lambda s: GONE in s.y and (KILL in s.y or "behind remove" in s.y),
        hint=2,
    ),
    g.Mistake(
        "loads a file that is not finished",
        "The file has the name of a finished state while it is being written. Give it that name "
        "when its bytes are on the disk, or let the load see that it is not whole.",
        g.patch('folder / "unfinished", folder', 'folder / f"step-{step:08d}", folder'),
        wrong=lambda s: (KILL in s.y or "cut behind" in s.y) and GONE not in s.y and MIXED in s.y,
        hint=2,
    ),
    g.Mistake(
        "does not sync the names",
        "The bytes are on the disk, and the name of the file is not: a power cut takes back the "
        "rename of a save that has returned. Names belong to their folder, which is synced itself.",
        g.patch(SYNC, ""),
        wrong=lambda s: NAMES in s.y and GONE in s.y,
        hint=3,
    ),
    g.Mistake(
        "loads an older state than the newest",
        "An interrupted save leaves two whole states, and so does a power cut that takes back the "
        "removal of the older one. The load looks at all of them, and takes the largest step.",
        g.patch(
            *("int(finished[-1].name", "int(finished[0].name"),
            *("finished[-1].read_bytes", "finished[0].read_bytes"),
        ),
        wrong=lambda s: OLDER in s.y and not any(each in s.y for each in (GONE, AGAIN, AS_TEXT)),
        hint=2,
    ),
    g.Mistake(
        "trusts what a killed run has not synced",
        "After a kill the newest state can be there in memory only: the rename was not synced. If "
        "the next save removes the older state first, and the power is cut, the disk may have "
        "neither. Remove at the end of save, behind sync_folder, which makes all names durable.",
        g.patch(
            CREATE,
            "    newest = sorted(folder.glob('step-*'))[-1:]\n"
            f"{REMOVAL.replace('!= finished', 'not in newest')}{CREATE}",
        ),
        wrong=lambda s: AGAIN in s.y,
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
        wrong=lambda s: (
            not any(each in s.y for each in (GONE, AGAIN))
            and (NOTHING in s.y or "ValueError by the load" in s.y)
        ),
        hint=2,
    ),
    g.Mistake(
        "gives the final name to bytes that are not on the disk",
        "The rename reached the disk, and the bytes did not: a power cut leaves a short file under "
        "the final name. Sync the file before the rename.",
        g.patch("    disk.sync(file)\n", ""),
        wrong=lambda s: BYTES in s.y,
        hint=3,
    ),
    g.Mistake(
        "compares steps as text",
        "As text 999 is greater than 10000, so the load takes the older of two states. Compare "
        "numbers, or write all names with equally many digits.",
        g.patches("{step:08d}", "{step}", "{step:03d}"),
        wrong=lambda s: AS_TEXT in s.y,
        hint=3,
    ),
    g.Mistake(
        "leaves files of earlier saves",
        "The results are right, and the disk is full one day. When the new state counts, remove "
        "all other files: older states, and what a save has left that was interrupted.",
        g.patch(REMOVAL, ""),
        over_budget=lambda s: most_files(s) > 1 and f"{most_files(s)} files are left by a save",
    ),
]

GRADER = g.Questions(
    functions=("save", "load_newest"),
    cases=cases,
    right=lambda states: RIGHT,
    call=call,
    mistakes=MISTAKES,
    closed=("labkit.checkpoint",),
    shown="after an end behind every operation the next run loads the last whole state",
)
