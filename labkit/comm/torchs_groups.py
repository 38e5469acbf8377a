"""What reports call torch's process groups, of which its record has the name and a number.

    torch.distributed      the default one, "0"          torch.distributed/1    the first other one

The number is of this process alone. The name is the same on all members, but is used again: see
made_anew.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from labkit.comm import made_anew
from labkit.comm.recorded import TITLE


def names_of(entries: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Of each process group, by its number here: what a report calls it, the same on all ranks."""
    with _naming:
        for entry in entries:
            if entry["pg_id"] not in _names:
                name = title(group_of(entry))
                moment = _last_moments.get(entry["pg_id"])
                _names[entry["pg_id"]] = name + made_anew.suffix(name, moment)
        return {entry["pg_id"]: _names[entry["pg_id"]] for entry in entries}


def note_moment(numbers: Iterable[str]) -> None:
    """One of the groups of these numbers is about to be destroyed: its name may be used again."""
    for number in numbers:
        _last_moments.setdefault(int(number), made_anew.now())


# Kept, as torch's record does not say which of two groups of one name an entry is of.
_names: dict[int, str] = {}
_last_moments: dict[int, made_anew.Moment] = {}
"""At which a group was there that had been used, by its number; of those there since, none yet."""
_naming = threading.Lock()


def group_of(entry: Mapping[str, Any]) -> str:
    """What torch calls its process group; empty for one that was made past torch.distributed."""
    return str(entry["process_group"][0])


def title(process_group: str) -> str:
    """How a report calls a process group that it knows from torch only."""
    return TITLE if process_group == "0" else f"{TITLE}/{process_group}"
