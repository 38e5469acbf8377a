"""Pipelines simulated from their list of operations: no ranks, and no formula of calc.

runs.simulated.bubble(8, 16) adds up the idle time of labkit.pipeline's event simulation, so that it
can stand beside calc.bubble_fraction(8, 16), which knows no list.
"""

from functools import cache

from labkit.model import GPTConfig
from labkit.pipeline import (
    Costs,
    balance,
    even,
    gpipe,
    in_flight,
    interleaved,
    layer_costs,
    naive,
    one_f_one_b,
    plan,
    simulate,
    stage_costs,
    stale_weights,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)

_ORDERS = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb_h1": zero_bubble_h1,
    "zb_h2": zero_bubble_h2,
    "zb_v": zero_bubble_v,
}
_STAGES = 4


def bubble(
    stages: int,
    microbatches: int,
    schedule: str = "1f1b",
    virtual: int = 1,
    relative_to: str = "total",
) -> float:
    """The idle share of a step whose stages are equal: F = I = W, and messages take no time."""
    options = {"virtual": virtual} if schedule == "interleaved" else {}
    timing = simulate(plan(_ORDERS[schedule], stages, microbatches, **options))
    return timing.bubble(relative_to)


def bubble_of_a_rank(stages: int, microbatches: int, schedule: str) -> float:
    """The idle share of the rank that waits most, from its own first operation to its own last.

    The zero-bubble papers count so: a rank's later start is no bubble.
    """
    timing = simulate(plan(_ORDERS[schedule], stages, microbatches))
    own = [row[-1].end - row[0].start for row in timing.rows]
    return max(1 - busy / time for busy, time in zip(timing.busy, own))


def microbatches_held(stages: int, microbatches: int, schedule: str) -> list[int]:
    """By rank, how many microbatches' activations it holds at once, at most."""
    return in_flight(plan(_ORDERS[schedule], stages, microbatches))


def time_of_1f1b_over_gpipe(send: float) -> float:
    """On 4 stages with 8 microbatches. send: of a message, in forwards of a stage."""
    one, other = (
        simulate(plan(row, _STAGES, 8), Costs(send=send)).makespan for row in (one_f_one_b, gpipe)
    )
    return one / other


def head_in_blocks() -> float:
    """Operations of the head over those of a block, in a model of Llama 3.2 1B's sizes."""
    costs, _ = _cuts(_STAGES)
    return costs[-1] / costs[1]


def slowest_stage_in_blocks(cut: str) -> float:
    """Operations of the slowest of four stages of that model, in blocks; "even" or "balanced"."""
    costs, cuts = _cuts(_STAGES)
    return max(stage_costs(costs, cuts[cut])) / costs[1]


def bubble_of_a_cut(cut: str, microbatches: int = 16) -> float:
    """Idle share of the total of 1F1B on four stages of that model, cut "even" or "balanced"."""
    costs, cuts = _cuts(_STAGES)
    loads = stage_costs(costs, cuts[cut])
    of_stages = Costs(forward=loads, input_gradient=loads, weight_gradient=loads)
    return simulate(plan(one_f_one_b, _STAGES, microbatches), of_stages).bubble()


def updates_behind(stage: int) -> int:
    """PipeDream, 4 stages: updates of a stage between a microbatch's forward and its backward."""
    return stale_weights(plan(one_f_one_b, _STAGES, 16))[stage]


@cache
def _cuts(stages: int) -> tuple[list[float], dict[str, list[range]]]:
    config = GPTConfig(
        vocab=128_256,
        context=8192,
        num_layers=16,
        hidden=2048,
        num_heads=32,
        num_kv_heads=8,
        ffn=12_288,  # three matrices of SwiGLU's 8,192 stand as two
    )
    costs = layer_costs(config)
    return costs, {"even": even(len(costs), stages), "balanced": balance(costs, stages)}
