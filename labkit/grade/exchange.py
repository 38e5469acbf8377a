"""What grader and ranks hand each other: a private folder with a few files per rank.

    arguments-2    driver -> rank 2: its inputs of every case, and nobody else's
    record-4-2     rank 2 -> driver: what came of case 4

A rank deletes its inputs as it reads them, and no rank's code under test starts before all have
done so. Expected values are in none of these files: only the driver ever knows them. Records are
written case by case, so those before a crash or a hang are there; and they hold tensors and plain
data only (plain_data.py), so that nothing of the learner's runs in the driver.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from labkit.grade import plain_data

Arguments = tuple[Any, ...]
"""Of one call: tensors, and plain numbers such as the rank of a root."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one rank did with one case, as the rank tells it."""

    output: torch.Tensor | None
    """The returned tensor; None where something else came back, or nothing."""
    output_type: str
    """The type of what came back."""
    arguments: list[torch.Tensor]
    """The tensors among the arguments, as they were afterwards."""
    shares_memory: bool
    """Whether the output lies in the memory of an argument."""
    raised: str
    """The type of the exception that ended the case; empty where it returned."""
    broken_rule: str
    """The name of a BrokenRule class, or empty: kept even where the code caught the error."""
    rule_message: str
    rule_site: list[Any]
    """file, line, function"""
    returned_before: bool = False
    """Whether the output lies in the memory of an earlier case's."""
    outputs: list[torch.Tensor] = field(default_factory=list)
    """The returned tensors of a tuple or a list, or the one; empty where any of them is none."""

    @property
    def returned(self) -> bool:
        """Whether the function came back."""
        return not self.raised


@dataclass(frozen=True)
class Exchange:
    """The folder, from either side."""

    folder: str

    def put_arguments(self, rank: int, cases: Sequence[Arguments]) -> None:
        """Leave a rank its inputs, case by case."""
        torch.save([list(arguments) for arguments in cases], self._arguments(rank))

    def take_arguments(self, rank: int) -> list[Arguments]:
        """A rank's own inputs, in the memory layouts they had; they are gone from the folder."""
        cases = torch.load(self._arguments(rank), weights_only=True)
        self._arguments(rank).unlink()
        return [tuple(arguments) for arguments in cases]

    def put_record(self, case: int, rank: int, record: Record) -> None:
        """Leave the driver a record; it is there as a whole or not at all."""
        path = self._record(case, rank)
        values = {each.name: getattr(record, each.name) for each in fields(Record)}
        path.with_suffix(".part").write_bytes(plain_data.dumps(values))
        os.replace(path.with_suffix(".part"), path)

    def get_record(self, case: int, rank: int) -> Record | None:
        """What a rank left of a case; None where it never came to the end of it."""
        try:
            return Record(**plain_data.loads(self._record(case, rank).read_bytes()))
        except FileNotFoundError:
            return None

    def _arguments(self, rank: int) -> Path:
        return Path(self.folder, f"arguments-{rank}")

    def _record(self, case: int, rank: int) -> Path:
        return Path(self.folder, f"record-{case}-{rank}")


@contextmanager
def new_exchange() -> Iterator[Exchange]:
    """A folder that only this user can read, for the length of a block."""
    folder = tempfile.mkdtemp(prefix="labkit-grade-")
    try:
        yield Exchange(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
