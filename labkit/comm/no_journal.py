"""A journal for groups outside of `labkit.run`."""

from labkit.comm.callers import Call
from labkit.comm.journal import Journal


class NoJournal(Journal):
    """A journal that writes nothing: for groups outside of `labkit.run`, such as under torchrun."""

    num_collectives = 0

    def __init__(self) -> None:
        """Nothing to open."""

    def group(self, name: str, ranks: tuple[int, ...]) -> int:
        """Nothing is entered."""
        return 0

    def caller(self) -> Call:
        """Nobody is looked up."""
        return Call(0, 0, "")

    def post(self, *args: object, **fields: object) -> int:
        """Nothing is written."""
        return 0

    def begin_region(self, name: str) -> int:
        """Nothing is written."""
        return 0

    def waiting(self, record: int) -> None:
        """Nothing is written."""

    def done(self, record: int) -> None:
        """Nothing is written."""

    def failed(self, record: int) -> None:
        """Nothing is written."""
