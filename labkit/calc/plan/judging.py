"""Whether a layout fits, and if not which term broke it: by how many bytes, and what would help.

refused    a rule says that such a layout does not exist                 rules.py
too large  the fullest GPU needs more than it has; the largest part of it is named, and where
           parameters and gradients alone are too many already, they are
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.calc.layout import Layout
from labkit.calc.plan.gpu_memory import fullest, memory
from labkit.calc.plan.job import Job
from labkit.calc.plan.parameters_by_rank import held_by_ranks
from labkit.calc.plan.rules import Refusal, refusal, warnings_of
from labkit.calc.result import Result
from labkit.calc.units import bytes_text, count_text

_OF_STATES = ("parameters", "gradients")


@dataclass(frozen=True)
class Verdict:
    """About one layout. True where it fits."""

    job: Job
    layout: Layout
    refused: Refusal | None = None
    memory: Result | None = None
    """Of the fullest GPU; None where a rule refuses the layout."""
    warnings: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.fits

    @property
    def fits(self) -> bool:
        """No rule refuses it, and the fullest GPU has room."""
        return self.memory is not None and float(self.memory) <= self.job.room_bytes

    @property
    def over_bytes(self) -> float:
        """That the fullest GPU lacks; 0 where it fits, and where a rule refuses."""
        return 0.0 if self.memory is None else max(0.0, float(self.memory) - self.job.room_bytes)

    @property
    def term(self) -> str:
        """What broke it: the largest part of the memory, or the rule's title; "" where it fits."""
        if self.refused is not None:
            return self.refused.title
        if self.memory is None or self.fits:
            return ""
        return max(self.memory.parts, key=lambda name: float(self.memory.parts[name]))  # type: ignore[union-attr]

    @property
    def reason(self) -> str:
        """In a sentence or two."""
        if self.refused is not None:
            return str(self.refused)
        assert self.memory is not None
        room = f"{self.memory} of {bytes_text(self.job.room_bytes)}"
        if self.fits:
            return f"it fits: {room}"
        part = self.memory.parts[self.term]
        text = (
            f"{room}: {bytes_text(self.over_bytes)} too many; the largest part is {self.term}, "
            f"{part} ({part.substitution})"
        )
        return text + self._of_parameters(self.memory)

    def _of_parameters(self, held: Result) -> str:
        alone = sum(float(held.parts[name]) for name in _OF_STATES)
        if alone <= self.job.room_bytes:
            return ""
        rank = fullest(self.job, self.layout)[0]
        num = held_by_ranks(self.job.config, self.layout)[rank].total
        return (
            f"; {count_text(num)} parameters on one GPU take {bytes_text(alone)} for weights and "
            "gradients alone"
        )

    def __str__(self) -> str:
        said = [f"{self.layout}: {self.reason}", *(f"    {each}" for each in self.warnings)]
        return "\n".join(said)


def verdict(job: Job, layout: Layout) -> Verdict:
    """Whether it works and fits, and what to think of besides."""
    refused = refusal(job, layout)
    if refused is not None:
        return Verdict(job, layout, refused)
    return Verdict(job, layout, None, memory(job, layout), tuple(warnings_of(job, layout)))
