"""Where labkit keeps what it remembers of a learner."""

import os
from pathlib import Path


def home() -> Path:
    """The folder of everything that labkit remembers: `$LABKIT_HOME`, or this system's place.

    It need not exist yet. It belongs on a disk of this machine: SQLite's write-ahead log takes
    memory that all writers share, which two hosts of a network file system do not. Raises OSError
    where the variable names the home of a user who is none.
    """
    chosen = os.environ.get("LABKIT_HOME")
    if chosen:
        try:
            return Path(chosen).expanduser()
        except RuntimeError as error:
            raise OSError(f"LABKIT_HOME={chosen}: {error}; name a folder") from error
    try:
        import platformdirs  # part of the lab, not of what a rank needs
    except ImportError:
        return Path.home() / ".labkit"
    return Path(platformdirs.user_data_dir("labkit", appauthor=False))


def store_path() -> Path:
    """The one file of the store; `-wal` and `-shm` stand beside it while somebody has it open."""
    return home() / "progress.sqlite3"


def store_name() -> str:
    """The store's path for a message, also where there can be none."""
    try:
        return str(store_path())
    except OSError:
        return "the progress store"
