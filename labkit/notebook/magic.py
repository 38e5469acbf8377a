"""`%%ranks 4`: a cell on four ranks, which keep their variables for the next one.

    %load_ext labkit

    %%ranks 4                    start four ranks and run the cell on them
    %%ranks                      run the cell on the running ranks
    %%ranks --on 0,2             on two of them; the others stay idle
    %%ranks --timeout 300        a cell may take 120 s, unless it says otherwise
    %%ranks 2 --device cuda      as for labkit.run

    %ranks status                processes and variables
    %ranks restart               new ranks without variables
    %ranks stop                  end the ranks
    %ranks push x                a copy of the notebook's x for every rank
    %ranks pull x                x of every rank, as a list in the notebook's x
    last = %ranks last           the last cell's Run: last.show(), last.traffic

Each rank has `world`, `rank`, `world_size`, `torch` and `labkit`. The value of the cell's last line
is shown by rank, unless it ends with a semicolon. Each rank draws random numbers of its own until a
cell sets a seed.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, output_can_be_silenced

from labkit.doctor import sources
from labkit.launch import Session
from labkit.launch.request import checked_ranks, checked_timeout
from labkit.launch.session.in_rank import Cell
from labkit.launch.session.session import CellRun

_OPTIONS = "a number of ranks, --on 0,2, --timeout 300, --device cpu"
_MOST_DIGITS = 18  # beyond some thousand digits, int() raises an error of its own


@dataclass(frozen=True)
class RanksLine:
    """The options in the first line of a `%%ranks` cell; None where it leaves one open."""

    world_size: int | None = None
    on: list[int] | None = None
    timeout_s: float = 120
    device: str | None = None


def parse(line: str) -> RanksLine:
    """Read `4 --on 0,2 --timeout 300 --device cpu`, in any order. Raises ValueError."""
    found: dict[str, object] = {}
    words = re.sub(r"\s*,\s*", ",", line.replace("=", " ")).split()
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            _enter(found, "world_size", _world_size(word))
        elif not words:
            raise ValueError(f"{word} needs a value; what can stand here: {_OPTIONS}")
        elif word == "--on":
            _enter(found, "on", _ranks(words.pop(0)))
        elif word == "--timeout":
            _enter(found, "timeout_s", _seconds(words.pop(0)))
        elif word == "--device":
            _enter(found, "device", words.pop(0))
        else:
            raise ValueError(f"{word} is unknown; what can stand here: {_OPTIONS}")
    return RanksLine(**found)  # type: ignore[arg-type]


def _enter(found: dict[str, object], name: str, value: object) -> None:
    if name in found:
        raise ValueError(f"{found[name]} and {value}: give one of them")
    found[name] = value


def _world_size(word: str) -> int:
    if not _is_number(word) or int(word) < 1:
        raise ValueError(f"{word!r} is not a number of ranks; write %%ranks 4, for example")
    return int(word)


def _is_number(word: str) -> bool:
    return word.isdecimal() and len(word) <= _MOST_DIGITS


def _ranks(word: str) -> list[int]:
    parts = [part for part in word.split(",") if part]
    if not parts or not all(map(_is_number, parts)):
        raise ValueError(f"--on {word}: name ranks by number, with commas, as in --on 0,2")
    return [int(part) for part in parts]


def _seconds(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"--timeout {word}: give a number of seconds") from None


_GONE = "the variables of earlier cells are gone."


class CellSyntaxError(Exception):
    """A cell that is not Python. Nothing of it has reached a rank."""

    def _render_traceback_(self) -> list[str]:
        """Shown without the frames of the magic."""
        return str(self).splitlines()


@magics_class
class RanksMagics(Magics):
    """`%%ranks` and `%ranks`, and the one session behind them."""

    def __init__(self, shell: Any) -> None:
        """shell: the IPython that runs the notebook's cells."""
        super().__init__(shell)
        self._notebook = shell
        self.session: Session | None = None

    @output_can_be_silenced
    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> CellRun | None:
        """Run a cell on ranks (%%ranks), or manage the ranks themselves (%ranks)."""
        if cell is None:
            return self._see_to(line)
        try:
            if not cell.strip():
                raise ValueError("the cell is empty")
            asked = parse(line)
            compiled = self._compiled(cell)
            session = self._session_for(asked)
        except ValueError as error:
            raise UsageError(f"%%ranks {line}".strip() + f": {error}") from None
        result = session.execute(compiled, asked.on, timeout=asked.timeout_s)
        return result if result.has_values else None

    def _compiled(self, body: str) -> Cell:
        """Compile the cell, with the line numbers that the reader sees."""
        inputs = self._notebook.history_manager.input_hist_raw  # the last is the cell that runs now
        # Not execution_count: while a cell runs, some versions of IPython count the next one.
        number, raw = len(inputs) - 1, inputs[-1]
        head, found, _ = raw.rpartition(body.rstrip("\n"))
        if not found:  # a cell that is kept out of the history
            number, head, raw = len(inputs), "%%ranks\n", f"%%ranks\n{body}"
        try:
            return Cell.of(body, number, raw, head.count("\n"))
        except SyntaxError as error:
            text = "".join(traceback.format_exception_only(error))
            text = sources.with_cells_named(text).rstrip()
            if (error.text or "").lstrip().startswith(("%", "!")):
                text += "\nA %magic or a !command works in the notebook only, not on ranks."
            raise CellSyntaxError(f"{text}\nNothing was sent to the ranks.") from None

    def _session_for(self, asked: RanksLine) -> Session:
        """Return the open session, or a new one if the line asks for it."""
        old = self.session
        world_size = asked.world_size or (old.world_size if old else None)
        if world_size is None:
            raise ValueError("no ranks are running; `%%ranks 4` starts four")
        checked_ranks(asked.on, world_size)
        checked_timeout(asked.timeout_s)
        device = asked.device or (old.device if old else None)
        if old and (world_size, device) == (old.world_size, old.device):
            return old
        self.session = Session(world_size, device=device)
        if old:
            old.close()
            before = f"{old.world_size} on {old.device}"
            print(f"{_new(self.session)} instead of {before}: {_GONE}")
        return self.session

    def _see_to(self, line: str) -> CellRun | None:
        action, *names = line.split() or ["status"]
        session = self.session
        if action not in ("status", "restart", "stop", "push", "pull", "last"):
            raise UsageError(
                f"%ranks {line}: choose status, restart, stop, push, pull or last; to run a cell "
                "on ranks, `%%ranks 4` is its first line; `%ranks?` says what each does"
            )
        if bool(names) != (action in ("push", "pull")):
            raise UsageError(f"%ranks {action} takes {'no names' if names else 'names'}")
        if session is None:
            print("No ranks are running. `%%ranks 4` as the first line of a cell starts four.")
        elif action == "status":
            print(session.status())
        elif action == "restart":
            session.restart()
            print(f"{_new(session)}: {_GONE}")
        elif action == "stop":
            self.close()
            print("The ranks have ended, and their variables are gone.")
        elif action == "last":
            return session.last
        else:
            self._carry(session, action, names)
        return None

    def _carry(self, session: Session, action: str, names: list[str]) -> None:
        """Copy values from the notebook to the ranks (push), or from them to it (pull)."""
        for name in names:
            try:
                if action == "pull":
                    self._notebook.user_ns[name] = session.pull(name)
                elif name in self._notebook.user_ns:
                    session.push(name, self._notebook.user_ns[name])
                else:
                    raise ValueError(f"the notebook has no variable {name!r}")
            except (ValueError, TypeError, NameError) as error:
                raise UsageError(f"%ranks {action} {name}: {error}") from None

    def close(self) -> None:
        """End the session, if there is one."""
        if self.session:
            self.session.close()
        self.session = None


RanksMagics.ranks.__doc__ = __doc__  # what `%ranks?` shows


def _new(session: Session) -> str:
    ranks = "1 new rank" if session.world_size == 1 else f"{session.world_size} new ranks"
    return f"{ranks} on {session.device}"


_loaded: list[RanksMagics] = []


def load(shell: Any) -> None:
    """Make the magics known to an IPython shell."""
    _loaded.append(RanksMagics(shell))
    shell.register_magics(_loaded[-1])


def unload() -> None:
    """End the sessions that the magics have started."""
    while _loaded:
        _loaded.pop().close()
