"""The folder in which ranks and the driver leave files for each other, tried out."""

import mmap
import tempfile
from pathlib import Path

from labkit.launch.machine.checkup.finding import Finding, Level, size_text
from labkit.launch.machine.machine import folder_sizes

_ENOUGH_BYTES = 500_000_000
_LEAST_BYTES = 20_000_000  # journals of eight ranks, and a payload
_ELSEWHERE = "name another folder in the environment variable TMPDIR, on a local disk, and restart"


def temporary_files(folder: Path | None = None) -> Finding:
    """Whether files can be made there, mapped into memory and seen through it."""
    try:
        folder = Path(tempfile.gettempdir()) if folder is None else folder
        with tempfile.TemporaryDirectory(prefix="labkit-doctor-", dir=folder) as mine:
            fault = _fault_of_mapping(Path(mine) / "journal")
    except OSError as error:
        return Finding(
            "temporary files",
            f"{folder or 'no usable folder'}: {error.strerror or error}",
            Level.ERROR,
            "a run keeps its function, its ranks' journals and their results in such a folder",
            f"make it writable, or {_ELSEWHERE}",
        )
    if fault:
        return Finding(
            "temporary files",
            f"{folder}: {fault}",
            Level.ERROR,
            "ranks write their journals into mapped files, so that a dead rank's can still be read",
            _ELSEWHERE,
        )
    sizes = folder_sizes(folder)
    free = None if sizes is None else sizes[1]
    text = f"{folder}: {'unknown space' if free is None else size_text(free) + ' free'}"
    if free is None or free >= _ENOUGH_BYTES:
        return Finding("temporary files", f"{text}, mapped files work")
    return Finding(
        "temporary files",
        text,
        Level.ERROR if free < _LEAST_BYTES else Level.WARNING,
        "results and journals of a run go there; a full disk ends ranks in the middle of it",
        f"make room there, or {_ELSEWHERE}",
    )


def _fault_of_mapping(path: Path) -> str:
    """What does not work as a journal needs it; empty where all does."""
    with open(path, "w+b") as file:
        file.truncate(mmap.PAGESIZE)
        try:
            mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        except (OSError, ValueError) as error:
            return f"files there cannot be mapped into memory ({error})"
        with mapped:
            mapped[:4] = b"seen"
            if path.read_bytes()[:4] != b"seen":  # before a flush: as the driver reads a journal
                return "what is written through a mapping does not show in the file"
    return ""
