"""What the pipeline calculator computes and says: no widgets here, labkit.pipeline and calc only.

A rank has the same layers whatever the schedule: with v virtual stages each stage takes a v-th of
its time and of its activations, while a message is as large as ever. The unit of time is a rank's
forward of one microbatch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from labkit import arguments, calc
from labkit.pipeline import (
    Costs,
    Schedule,
    Timing,
    gpipe,
    in_flight,
    interleaved,
    naive,
    one_f_one_b,
    plan,
    simulate,
    zero_bubble_h1,
    zero_bubble_v,
)

SCHEDULES: dict[str, Callable[..., Any]] = {
    "naive": naive,
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": interleaved,
    "ZB-H1": zero_bubble_h1,
    "ZB-V": zero_bubble_v,
}


@dataclass(frozen=True)
class PipelineSetup:
    """Where the knobs stand. ValueError, TypeError for what no pipeline has.

    backward: of a rank's layers, send: of one message; both in forwards. A backward to 2 is I and
    W, half each; what is above 2 is recomputed, and that is I's: W takes 1, however much is
    recomputed. activation_bytes: of one microbatch on all layers of a rank, as they are kept.
    """

    schedule: str = "1F1B"
    ranks: int = 4
    microbatches: int = 8
    virtual: int = 2
    backward: float = 2.0
    send: float = 0.0
    activation_bytes: float = 1e9

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, str) or self.schedule not in SCHEDULES:
            raise ValueError(f"schedule={self.schedule!r}: give one of {', '.join(SCHEDULES)}")
        for name in ("ranks", "microbatches", "virtual"):
            arguments.whole(name, getattr(self, name), "1 or more")
        for name in ("backward", "send", "activation_bytes"):
            arguments.number(name, getattr(self, name), "a finite number, 0 or more", least=0)

    @property
    def has_virtual_stages(self) -> bool:
        """Whether `virtual` means anything."""
        return SCHEDULES[self.schedule] is interleaved

    @property
    def is_split(self) -> bool:
        """Whether a backward is two operations, I and W."""
        return SCHEDULES[self.schedule] in (zero_bubble_h1, zero_bubble_v)


@dataclass(frozen=True)
class PipelineAnswer:
    """What follows from a setup, or from the nearest one that there is: see `setup`."""

    asked: PipelineSetup

    @cached_property
    def setup(self) -> PipelineSetup:
        """What is computed: an interleaved schedule has a multiple of the ranks in microbatches."""
        p, m = self.asked.ranks, self.asked.microbatches
        if not self.asked.has_virtual_stages:
            is_v = SCHEDULES[self.asked.schedule] is zero_bubble_v
            return replace(self.asked, virtual=2 if is_v else 1)
        nearest = max(1, (2 * m + p) // (2 * p)) * p  # of two equally near ones the larger
        return replace(self.asked, microbatches=nearest)

    @cached_property
    def schedule(self) -> Schedule:
        """The operations of every rank."""
        choices = {"virtual": self.setup.virtual} if self.setup.has_virtual_stages else {}
        row = SCHEDULES[self.setup.schedule]
        return plan(row, self.setup.ranks, self.setup.microbatches, **choices)

    @property
    def num_operations(self) -> int:
        """Of the schedule, counted without it, so that a huge one can be refused."""
        kinds = 3 if self.setup.is_split else 2
        return kinds * self.setup.ranks * self.setup.virtual * self.setup.microbatches

    @cached_property
    def timing(self) -> Timing:
        """The same with times, in forwards of a rank."""
        v, backward = self.setup.virtual, self.setup.backward
        weights = min(1.0, backward / 2)
        costs = Costs(
            forward=1 / v,
            input_gradient=(backward - weights) / v,
            weight_gradient=weights / v,
            send=self.setup.send,
        )
        return simulate(self.schedule, costs)

    @cached_property
    def in_flight(self) -> list[int]:
        """By rank, microbatches at most; each counts on every stage."""
        return in_flight(self.schedule)

    @property
    def held(self) -> list[str]:
        """The same as text: 4, or 11/2 where a rank has two stages."""
        share = f"/{self.setup.virtual}" if self.setup.virtual > 1 else ""
        return [f"{most}{share}" for most in self.in_flight]

    @property
    def held_bytes(self) -> list[float]:
        """By rank, what these take; a microbatch is held whole until its B, or its W."""
        return [most * self.setup.activation_bytes / self.setup.virtual for most in self.in_flight]

    @property
    def note(self) -> str:
        """What differs from what was asked, and why; nothing where it could be had."""
        asked, used = self.asked, self.setup
        if used.microbatches != asked.microbatches:
            return (
                f"Interleaved microbatches go in rounds of one per rank, and {asked.microbatches} "
                f"is no multiple of {asked.ranks}: {used.microbatches} are used."
            )
        if used.has_virtual_stages and used.virtual == 1:
            return "Interleaved with one stage per rank is 1F1B: give it 2 virtual stages or more."
        return ""

    @property
    def headline(self) -> str:
        """The bubble and the memory in a sentence."""
        most = max(self.held_bytes)
        rank = self.held_bytes.index(most)
        return (
            f"Bubble {self.timing.bubble('total'):.1%} of total time, "
            f"{self.timing.bubble('ideal'):.1%} of ideal time; rank {rank} holds the most, "
            f"{self.held[rank]} microbatches, {calc.bytes_text(most)}."
        )

    def times(self) -> list[list[str]]:
        """Name, value and how it comes about, of makespan and bubble."""
        used, makespan = self.setup, self.timing.makespan
        ideal = used.microbatches * (1 + used.backward)
        work = f"{used.microbatches} x (1 + {used.backward:g}) = {ideal:.5g}"
        idle = f"({makespan:.5g} - {ideal:.5g})"
        return [
            ["makespan", f"{makespan:.5g}", "forwards of a rank"],
            ["ideal", f"{ideal:.5g}", f"the work alone: {work}"],
            ["bubble, of total", f"{self.timing.bubble('total'):.1%}", f"{idle} / {makespan:.5g}"],
            ["bubble, of ideal", f"{self.timing.bubble('ideal'):.1%}", f"{idle} / {ideal:.5g}"],
        ]

    def memory(self) -> list[list[str]]:
        """A heading, microbatches in flight and their bytes, a column per rank."""
        return [
            ["", *(f"rank {rank}" for rank in range(self.setup.ranks))],
            ["in flight, at most", *self.held],
            ["activations", *map(calc.bytes_text, self.held_bytes)],
        ]

    def text(self) -> str:
        """All of it, aligned."""
        lines = [f"{name:20}{value:>8}   {how}" for name, value, how in self.times()]
        table = self.memory()
        widths = [max(map(len, column)) for column in zip(*table)]
        lines += [
            row[0].ljust(20) + "".join(f"{cell:>{w + 2}}" for cell, w in zip(row[1:], widths[1:]))
            for row in table
        ]
        return "\n".join(filter(None, [*lines, self.note, self.headline]))
