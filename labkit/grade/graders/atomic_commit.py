"""Grade atomic_commit: the process and the machine end behind every operation, and a load follows.

Three states are saved with a disk that records its operations. The power is cut behind each of
them. On what is left runs the learner's load, and then a save of the next state: what came out
wrong is the result.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from labkit.checkpoint.disk import RecordedDisk
from labkit.checkpoint.power_cut import Operation, PowerCut, cuts, operations
from labkit.grade.grader import Case, Draw, Mistake, Observed, Outcome, Questions, patch, program

SAVE, LOAD = "save", "load_newest"
STEPS = (8, 9, 10)
KILLED = "all kept"
OUTSIDE = "what the disk has not written"
MIXED, NOTHING = "no state that was saved", "nothing"
OLDER = "step {}, and the save of step {} had returned"
AS_TEXT = OLDER.format(9, 10)


class Failure(NamedTuple):
    """An end behind which a load was wrong."""

    ended: str  # the operation before it
    way: str  # of the cut
    wrong: str  # what was loaded instead of a state that was saved
    held: bool  # whether the last state that counted is in some file


def cases(draw: Draw) -> Iterator[Case]:
    """States of several lengths; the last one is shorter than those before."""
    for sizes in ((30, 50, 40), (4000, 20, 300)):
        states = [draw.rng.randbytes(size) for size in sizes]
        yield Case(f"states of {sizes} bytes", states, function=SAVE)


def call(watch: Any, args: tuple[Any, ...]) -> list[Failure]:
    """Save the states, end behind each operation in each way, load, and save the next one."""
    (states,) = args
    save, load = watch.load(SAVE, 4), watch.load(LOAD, 1)
    with tempfile.TemporaryDirectory() as name:
        root, log = Path(name, "root"), Path(name, "log")
        root.mkdir()
        log.touch()
        before = [0]
        empty = load(root)
        for step, data in zip(STEPS, states, strict=True):
            save(RecordedDisk(log), root, step, data)
            before.append(len(operations([log])))
        watch.note("files", len(list(root.iterdir())))
        failures, tried = [], dict[Any, str]()
        if empty is not None:
            failures.append(Failure("", KILLED, "something in an empty folder", False))
        performed = operations([log])
        if is_changed_otherwise(root, performed):
            return [Failure("", KILLED, OUTSIDE, True)]
        for count, way, left in cuts(root, performed):
            least = sum(count >= number for number in before[1:])
            files = {path.name: path.read_bytes() for path in left.iterdir()}
            old = states[least - 1] if least else b""
            held = any(old in data for data in files.values()) or not least
            key = least, *sorted(files.items())
            if key not in tried:  # many cuts leave the same
                tried[key] = what_is_wrong(save, load, left, states, least)
            if tried[key]:
                failures.append(Failure(performed[count - 1].kind, way, tried[key], held))
    return failures


def is_changed_otherwise(root: Path, performed: list[Operation]) -> bool:
    """Whether the folder has other files than the recorded operations make."""
    with tempfile.TemporaryDirectory() as name:
        try:
            PowerCut(root, performed).leave(Path(name, "left"), True, True)
        except KeyError:  # the disk renames or removes what it has not made
            return True
        there, made = (
            {path.name: path.read_bytes() for path in folder.iterdir()}
            for folder in (root, Path(name, "left"))
        )
    return there != made


def what_is_wrong(save: Any, load: Any, folder: Path, states: list[bytes], least: int) -> str:
    """What a load gives that it must not, or what the next save does; empty: all is right."""
    saved = [None, *zip(STEPS, states, strict=True)]
    try:
        loaded = load(folder)
    except Exception as error:
        return f"{type(error).__name__} by {LOAD}"
    if loaded not in saved[least : least + 2]:
        if loaded is None:
            return NOTHING
        return OLDER.format(loaded[0], STEPS[least - 1]) if loaded in saved[:least] else MIXED
    try:
        save(RecordedDisk(folder.with_name("other")), folder, 99, b"next")
        loaded = load(folder)
    except Exception as error:
        return f"{type(error).__name__} by the next run"
    return "" if loaded == (99, b"next") else "another state in the next run"


def right(states: list[bytes]) -> list[Failure]:
    """No load is wrong."""
    return []


def described(s: Observed) -> str:
    """The first wrong load in words."""
    if not s.y:
        return f"{max(e.value for e in s.ranks[0].events if e.what == 'files')} files are left"
    ended, way, wrong, _ = s.y[0]
    if wrong == OUTSIDE:
        return "the folder has files that the operations of disk do not make"
    how = "a kill" if way == KILLED else f"a power cut, {way},"
    number = f"{len(s.y)} ends are wrong. The first" if len(s.y) > 1 else "One end is wrong. It"
    return f"{number}: {how} behind {ended or 'nothing'}. The load then gives {wrong}"


def failed(
    matches: Callable[[Failure], bool], never: Callable[[Failure], bool] = lambda f: False
) -> Callable[[Observed], bool]:
    """Predicate: some failures match, and none is of the other kind."""

    def seen(s: Observed) -> bool:
        failures = [Failure(*each) for each in s.y]
        return any(map(matches, failures)) and not any(map(never, failures))

    return seen


def is_of_the_next_run(f: Failure) -> bool:
    """The load was right, and what followed was not."""
    return "next run" in f.wrong


REMOVAL = """    for path in folder.iterdir():
        if path != finished:
            disk.remove(path)
"""
MISTAKES = [
    Mistake(
        "changes files without disk",
        "Only the methods of `disk` are recorded, and followed by an end. Write, rename and remove "
        "with them.",
        seen=lambda s: any(each[2] == OUTSIDE for each in s.y),
        made_by=patch("            disk.remove(path)\n", "            path.unlink()\n"),
    ),
    Mistake(
        "writes over the state before",
        "From the first operation on the old state is gone, and the new one is not there yet. "
        "Write the new one under another name.",
        seen=failed(
            lambda f: f.way == KILLED and not f.held,
            never=lambda f: f.ended == "remove" and not f.held,
        ),
        made_by=patch(
            'folder / "unfinished",', 'next(folder.glob("step-*"), folder / "unfinished"),'
        ),
    ),
    Mistake(
        "removes the state before too early",
        "Until the new state is on the disk under its final name, the old one is the only one. "
        "Remove it last.",
        hint=2,
        seen=failed(
            lambda f: f.way == KILLED and not f.held and f.ended == "remove",
            never=is_of_the_next_run,
        ),
        made_by=patch(
            REMOVAL,
            "",
            "    file = disk.create(unfinished)\n",
            f"{REMOVAL}    file = disk.create(unfinished)\n",
        ),
    ),
    Mistake(
        "loads a file that is not finished",
        "The file has the name of a finished state while it is being written. Give it that name "
        "when its bytes are on the disk, or let the load see that it is not whole.",
        hint=2,
        seen=failed(lambda f: f.way == KILLED and f.held and f.wrong == MIXED),
        made_by=patch('folder / "unfinished", folder', 'folder / f"step-{step:08d}", folder'),
    ),
    Mistake(
        "a pointer that is not whole itself",
        "The states are whole, and the file that says which one is the newest is not, or names one "
        "that is gone. A pointer needs the same care; without one, the load looks for the newest.",
        hint=2,
        seen=failed(
            lambda f: f.way == KILLED and f.wrong in (NOTHING, f"ValueError by {LOAD}"),
            never=lambda f: not f.held,
        ),
        made_by=program("""
def save(disk, folder, step, data):
    for name, content in ((str(step), data), ("latest", str(step).encode())):
        file = disk.create(folder / name)
        disk.write(file, content)
        disk.sync(file)
        disk.close(file)
    disk.sync_folder(folder)
    for path in folder.iterdir():
        if path.name not in (str(step), "latest"):
            disk.remove(path)


def load_newest(folder):
    if not (folder / "latest").exists():
        return None
    step = (folder / "latest").read_bytes().decode()
    return int(step), (folder / step).read_bytes()
"""),
    ),
    Mistake(
        "gives the final name to bytes that are not on the disk",
        "The rename reached the disk, and the bytes did not: a power cut leaves a short file under "
        "the final name. Sync the file before the rename.",
        hint=3,
        seen=failed(
            lambda f: f.way == "bytes lost" and f.wrong == MIXED,
            never=lambda f: f.way == KILLED,
        ),
        made_by=patch("    disk.sync(file)\n", ""),
    ),
    Mistake(
        "does not sync the names",
        "The bytes are on the disk, and the name of the file is not: a power cut takes back the "
        "rename of a save that has returned. Names belong to their folder, which is synced itself.",
        hint=3,
        seen=failed(
            lambda f: f.way == "names lost" and f.wrong != AS_TEXT,
            never=lambda f: f.way in (KILLED, "bytes lost"),
        ),
        made_by=patch("    disk.sync_folder(folder)\n", ""),
    ),
    Mistake(
        "compares steps as text",
        "As text 9 is greater than 10, so the load takes the older of two states. Compare "
        "numbers, or write all names with equally many digits.",
        hint=3,
        seen=failed(lambda f: f.wrong == AS_TEXT, never=lambda f: f.wrong != AS_TEXT),
        made_by=patch("{step:08d}", "{step}"),
    ),
    Mistake(
        "the next run stops at what is left there",
        "A run that ended in a save leaves an unfinished file. The next run must be able to save "
        "nevertheless.",
        seen=failed(is_of_the_next_run, never=lambda f: not is_of_the_next_run(f)),
        made_by=patch(
            "    file = disk.create(unfinished)\n",
            "    if unfinished.exists():\n        raise FileExistsError(unfinished)\n"
            "    file = disk.create(unfinished)\n",
        ),
    ),
    Mistake(
        "leaves the states before",
        "The results are right, and the disk is full one day. When the new state counts, remove "
        "the others.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: any(e.what == "files" and e.value > 1 for e in s.ranks[0].events),
        made_by=patch(REMOVAL, ""),
    ),
]

GRADER = Questions(
    name="atomic_commit",
    functions=(SAVE, LOAD),
    cases=cases,
    right=right,
    call=call,
    describe=described,
    num_arguments=4,
    mistakes=MISTAKES,
    closed=("labkit.checkpoint",),
    keeps_arguments=True,
    shown="after an end behind every operation the next run loads the last whole state",
)
