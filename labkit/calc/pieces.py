"""The parts of a training step, in seconds. The planner adds them up; the simulation runs them.

    one rank of stage s, v stages on each rank

    F  forward_s[s]   = compute + exposed collectives of tp, cp and ep, of one microbatch; and those
                        of dp that are in every microbatch: gathers of zero 3
    B  backward_s[s]  = the same of backward, with what is recomputed; reduces of zero 2 and 3
       send_s         = activations to the next stage, or their gradients to the one before
       reduce_s[s]    = gradients over dp, once a step; beside backward as far as `overlap` says
       gather_s[s]    = parameters over dp, once a step, after the optimizer
       optimizer_s    = the rank's share of the update

Planner and simulation share only this, so that each can check the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit import arguments


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Seconds of a step's parts. A tuple has one entry per stage (pp * virtual), in model order.

    ValueError for tuples of unequal lengths and for negative seconds.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    """Whole backward of one microbatch: input and weight gradients, recomputation, collectives."""
    send_s: float
    reduce_s: tuple[float, ...]
    gather_s: tuple[float, ...]
    optimizer_s: float
    overlap: float = 0.0
    """Share of reduce and gather that can run beside computing of the same rank, 0 to 1."""
    num_microbatches: int = 1
    compute_s: tuple[float, ...] = ()
    """Seconds of computing within forward_s + backward_s, by stage; (): all of it."""
    exchanged_s: tuple[tuple[float, float], ...] = ()
    """Seconds of the exchange over dp within (forward_s, backward_s), by stage.

    (): nothing, as with ZeRO 0 and 1.
    """

    def __post_init__(self) -> None:
        arguments.counted("num_microbatches", self.num_microbatches)
        for name in ("forward_s", "backward_s", "reduce_s", "gather_s", "compute_s"):
            seconds = getattr(self, name)
            if not isinstance(seconds, tuple | list):
                raise TypeError(f"{name}={seconds!r:.60}: give seconds of each stage, (1.5, 1.5)")
        self._check_seconds()
        self._check_parts()
        for name in ("send_s", "optimizer_s", "overlap"):
            arguments.number(name, getattr(self, name), "0 or more", least=0)
        if self.overlap > 1:
            raise ValueError(f"overlap={self.overlap}: give a share, 0 to 1")

    def _check_seconds(self) -> None:
        stages = len(self.forward_s)
        for name in ("forward_s", "backward_s", "reduce_s", "gather_s", "compute_s"):
            seconds = getattr(self, name)
            if len(seconds) != stages and not (name == "compute_s" and not seconds):
                raise ValueError(
                    f"{name} is of {len(seconds)} stages, and forward_s of {stages}; give one "
                    "number for each stage"
                )
            for each in seconds:
                arguments.number(name, each, "0 or more", least=0)
        if sum(self.forward_s) + sum(self.backward_s) == 0:
            raise ValueError(
                "forward_s and backward_s are 0 everywhere: a step takes time; give some"
            )

    def _check_parts(self) -> None:
        for stage, alone in enumerate(self.compute_s):
            whole = self.forward_s[stage] + self.backward_s[stage]
            if alone > whole * (1 + 1e-9):
                raise ValueError(
                    f"compute_s of stage {stage} is {alone:g} s, a part of its forward and "
                    f"backward, which take {whole:g} s together; give at most that"
                )
        if self.exchanged_s and len(self.exchanged_s) != len(self.forward_s):
            raise ValueError(
                f"exchanged_s is of {len(self.exchanged_s)} stages, and forward_s of "
                f"{len(self.forward_s)}; give a pair for each stage, or ()"
            )
        parts = zip(self.exchanged_s, self.forward_s, self.backward_s, strict=False)
        for (forth, back), forward, backward in parts:
            if not (0 <= forth <= forward and 0 <= back <= backward):
                raise ValueError(
                    f"exchanged_s has {forth:g} s of a forward of {forward:g} s and {back:g} s of "
                    f"a backward of {backward:g} s: give parts of them"
                )

    @property
    def num_stages(self) -> int:
        """Stages of the model, over all ranks of a pipeline."""
        return len(self.forward_s)
