"""Grade atomic_commit: the process and the machine end behind every operation, and a load follows.

Then the learner saves the next state. After a kill, the power is cut in this save, too. The result
is the end that tells most of those that go wrong.
"""

import itertools
import random
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
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


class LosesOne(random.Random):
    """Of the changes of names that were not synced, a power cut takes back one."""

    def __init__(self, number: int) -> None:
        super().__init__(0)
        self.answers = [0.0] * number + [1.0]

    def random(self) -> float:
        """Below 0.5: the next change is kept."""
        return self.answers.pop(0) if self.answers else 0.0


def cases(draw: g.Draw) -> list[g.Case]:
    """Steps of 1, 3 and 5 digits; the last state is shorter than those before."""
    sizes = (50, 4000, 30)
    states = [(step, draw.rng.randbytes(size)) for step, size in zip((9, 999, 10_000), sizes)]
    return [g.Case(f"states of {sizes} bytes", states)]


def call(watch: Any, args: tuple[Any, ...]) -> str:
    """Save the states, end behind each operation in each way, load, and save the next one."""
    save, load = watch.load("save"), watch.load("load_newest")
    states, counts, made = args[0], list[int](), None
    with TemporaryDirectory() as name:
        root, log = Path(name, "root"), Path(name, "log")
        root.mkdir()
        saved = [None, *states]
        log.touch()
        if load(root) is not None:
            return "loads something from an empty folder"
        for step, data in states:
            save(RecordedDisk(log), root, step, data)
            counts.append(len(operations([log])))
        performed = operations([log])
        watch.note("files", len(files_of(root)))
        with suppress(KeyError):  # it renames or removes what it has not made
            made = PowerCut(root, performed).left(True, True)
        if files_of(root) != made:
            return "the folder has files that the operations of disk do not make"
        ends, tried, chance = [], dict[Any, str](), random.Random(0)
        kills = set[Any]()
        # What is kept of the bytes, and of the names, that were not synced.
        ways: list[Any] = [(KILL, True, True), (BYTES, False, True), (NAMES, True, False)]
        ways += 12 * [("a power cut", chance, chance)]  # the more, the more names have changed
        for count, operation in enumerate(performed, start=1):
            cut, least = PowerCut(root, performed[:count]), sum(count >= each for each in counts)
            num_ways = len(ways) if operation.kind == "remove" else 4
            for order, (way, *kept) in enumerate(ways[:num_ways]):
                files = cut.left(*kept)
                held = not least or any(states[least - 1][1] in data for data in files.values())
                key = least, *sorted(files.items())
                if key not in tried:  # many ends leave the same
                    left = a_folder(Path(name, f"{count} {order}"), files)
                    tried[key] = what_is_wrong(save, load, left, saved, least)
                    watch.note("files", len(files_of(left)))
                if wrong := tried[key]:
                    if way == NAMES and least:  # its bytes may be there under another name
                        alone = Path(name, f"{count} alone")
                        held = is_found(load, alone, files, states[least - 1])
                    how = f"{way} behind {operation.kind}: {'' if held else GONE}{wrong}"
                    # First what a kill alone does, and loses.
                    ends.append((order, held, count, how))
            kill = least, *(str(cut.left(*kept)) for _, *kept in ways[:3])
            if not ends and count > counts[-2] and kill not in kills:  # one save tells enough
                kills.add(kill)
                wrong = cut_in_the_next_save(save, load, root, performed[:count], saved[least:])
                ends += [(len(ways), False, count, f"{AGAIN} {wrong}")] * bool(wrong)
    return min(ends, default=(RIGHT,))[-1]


def cut_in_the_next_save(
    save: Any, load: Any, root: Path, performed: list[Operation], may: list[Any]
) -> str:
    """What a load gives that it must not, after a kill and a power cut in the next run's save.

    may: the newest state whose save had returned, and those that came after it.
    """
    with TemporaryDirectory() as name:
        folder = a_folder(Path(name, "folder"), PowerCut(root, performed).left(True, True))
        log = Path(name, "log")
        log.touch()
        load(folder)
        save(RecordedDisk(log), folder, 20_000, b"next")
        more = [
            each._replace(path=root / each.path.relative_to(folder))
            for each in operations([log])
            if each.path.is_relative_to(folder)
        ]
        tried = []
        for count, operation in enumerate(more, start=1):
            cut = PowerCut(root, [*performed, *more[:count]])
            allowed = [(20_000, b"next")] if count == len(more) else [*may, (20_000, b"next")]
            ways = [(False, True), (True, False), *((True, LosesOne(i)) for i in range(6))]
            for files in itertools.starmap(cut.left, ways):
                if (files, allowed) not in tried:
                    tried.append((files, allowed))
                    left, wrong = a_folder(Path(name, f"{len(tried)}"), files), ""
                    try:
                        if (loaded := load(left)) not in allowed:
                            wrong = f"{OLDER} {loaded[0]}" if loaded else NOTHING
                    except Exception as error:
                        wrong = f"{type(error).__name__} by the load"
                    if wrong:
                        return f"behind {operation.kind}: {wrong}"
    return ""


def is_found(load: Any, folder: Path, files: dict[str, bytes], state: tuple[int, bytes]) -> bool:
    """Whether a load gives a state where no file without it is in the folder."""
    with suppress(Exception):
        alone = {name: data for name, data in files.items() if state[1] in data}
        return bool(load(a_folder(folder, alone)) == state)
    return False


def a_folder(folder: Path, files: dict[str, bytes]) -> Path:
    """A new folder with these files."""
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


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
            return f"{OLDER} {loaded[0]}, and {saved[least][0]} was saved"
        if loaded not in saved[least : least + 2]:
            return MIXED
        where = "the next run"
        save(RecordedDisk(folder.with_name("other")), folder, 20_000, b"next")
        return "" if load(folder) == (20_000, b"next") else "loads another state in the next run"
    except Exception as error:
        return f"{type(error).__name__} by {where}"


def most_files(s: g.Observed) -> int:
    """How many files a save has left that ended by itself."""
    return max(note.value for note in s.ranks[0].notes)


REMOVAL = """    for path in folder.iterdir():
        if path != finished:
            disk.remove(path)
"""
CREATE, SYNC = "    file = disk.create(unfinished)\n", "    disk.sync_folder(folder)\n"
CLEANS_FIRST = f"""    finished_ones = sorted(folder.glob("step-*"))
    for path in folder.iterdir():
        if path not in finished_ones[-1:]:
            disk.remove(path)
{CREATE}"""
MISTAKES = [
    g.Mistake(
        "gives up the state before too early",
        "Until the new state is on the disk under its final name, the old one is the only one. "
        "Write the new one under another name, and remove the old one last.",
        [
            g.patch(REMOVAL, "", CREATE, f"{REMOVAL}{CREATE}"),
            g.patch(REMOVAL, "", SYNC, f"{REMOVAL}{SYNC}"),
        ],
        seen=lambda s: GONE in s.y and (KILL in s.y or "behind remove" in s.y),
        hint=2,
    ),
    g.Mistake(
        "loads a file that is not finished",
        "The file has the name of a finished state while it is being written. Give it that name "
        "when its bytes are on the disk, or let the load see that it is not whole.",
        g.patch('folder / "unfinished", folder', 'folder / f"step-{step:08d}", folder'),
        seen=lambda s: (KILL in s.y or "cut behind" in s.y) and GONE not in s.y and MIXED in s.y,
        hint=2,
    ),
    g.Mistake(
        "does not sync the names",
        "The bytes are on the disk, and the name of the file is not: a power cut takes back the "
        "rename of a save that has returned. Names belong to their folder, which is synced itself.",
        g.patch(SYNC, ""),
        seen=lambda s: NAMES in s.y and GONE in s.y,
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
        seen=lambda s: OLDER in s.y and not any(each in s.y for each in (GONE, AGAIN, AS_TEXT)),
        hint=2,
    ),
    g.Mistake(
        "trusts what a killed run has not synced",
        "After a kill the newest state can be there in memory only: the rename was not synced. If "
        "the next save removes the older state first, and the power is cut, the disk may have "
        "neither. Remove at the end of save, behind sync_folder, which makes all names durable.",
        g.patch(CREATE, CLEANS_FIRST),
        seen=lambda s: AGAIN in s.y,
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
        seen=lambda s: (
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
        seen=lambda s: BYTES in s.y,
        hint=3,
    ),
    g.Mistake(
        "compares steps as text",
        "As text 999 is greater than 10000, so the load takes the older of two states. Compare "
        "numbers, or write all names with equally many digits.",
        g.patches("{step:08d}", "{step}", "{step:03d}"),
        seen=lambda s: AS_TEXT in s.y,
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
