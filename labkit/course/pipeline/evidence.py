"""Measure pipelines: what stages hold, and how long they wait.

Memory is counted on four real ranks. The bubble is read from the clocks of real ranks, which sleep
instead of computing, so that ten of them really run at once on two cores. All else is real:
messages, order, waiting. Wire: 32 B per row over each boundary, and back.

Simulated pipelines have no ranks and no formula of calc: runs.pipeline.bubble(8, 16) adds up the
idle time of labkit.pipeline's event simulation, so that it can stand beside
calc.bubble_fraction(8, 16), which knows no list of operations.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit import Group
from labkit.interview.real_run import real_run, run
from labkit.interview.recorded_times import timed_run
from labkit.memory import Meter
from labkit.model import GPTConfig
from labkit.optimizer import SGD
from labkit.pipeline import (
    Costs,
    PipeDream,
    Pipeline,
    PipelineGPT,
    Timing,
    balanced_stages,
    emulated_step,
    even_stages,
    gpipe,
    in_flight,
    interleaved,
    layer_costs,
    measured,
    naive,
    one_f_one_b,
    plan,
    simulate,
    stage_costs,
    stale_weights,
    token_loss,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from labkit.pipeline.simulation import Span

_RANKS, _MICROBATCHES = 4, 8
_ORDERS = {"gpipe": gpipe, "1f1b": one_f_one_b}
_CONFIG = GPTConfig(vocab=64, context=64, num_layers=6, hidden=64)
FORWARD_S = 0.02
_TRIES = 2
_PLANNED = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb_h1": zero_bubble_h1,
    "zb_h2": zero_bubble_h2,
    "zb_v": zero_bubble_v,
}
_STAGES = 4


@real_run
def microbatches_held(schedule: str) -> list[float]:
    """By rank, the peak of activations in one step of 8 microbatches, over that of one alone.

    schedule: "gpipe" or "1f1b". The peak is that of labkit.memory's meter.
    """
    return [of_rank[schedule] for of_rank in _peaks()]


@real_run
def versions_alive(stage: int) -> int:
    """PipeDream, 16 microbatches: the most versions of a stage's weights held at once."""
    return run(_pipedream, _RANKS).values[stage]


@real_run
def summed_over_mean_gradient() -> float:
    """Return a stage's gradient, four microbatches' own mean losses added up, over the batch's
    one."""
    right, wrong = (run(_gradient, 2, args=(times,)).values[0] for times in (1, 4))
    return wrong / right


@cache
def _peaks() -> list[dict[str, float]]:
    return run(_peaks_of_rank, _RANKS).values


def _peaks_of_rank(world: Group) -> dict[str, float]:
    one = _peak_bytes(world, "gpipe", 1)
    return {name: _peak_bytes(world, name, _MICROBATCHES) / one for name in _ORDERS}


def _peak_bytes(world: Group, name: str, num_microbatches: int) -> int:
    schedule = plan(_ORDERS[name], world.size, num_microbatches)
    model = PipelineGPT(_CONFIG, schedule, world.rank)
    pipeline = Pipeline(schedule, model.stages, token_loss, world, tied=model.tied)
    tokens = torch.zeros(2 * num_microbatches, _CONFIG.context, dtype=torch.int64)
    with Meter(model) as meter:
        pipeline.step(tokens, tokens)
    return max(meter.usage.bytes_of["activations"])


def _pipedream(world: Group) -> int:
    torch.manual_seed(0)
    schedule = plan(one_f_one_b, world.size, 2 * _MICROBATCHES)
    stages = {world.rank: nn.Linear(8, 8)}
    pipeline = PipeDream(schedule, stages, F.mse_loss, lambda p: SGD(p, 0.01), world)
    x = torch.randn(schedule.num_microbatches, 8)
    pipeline.step(x, x)
    return pipeline.num_versions[world.rank]


def _gradient(world: Group, times: float) -> float:
    """times: 4 undoes the weight, a quarter, that Pipeline gives each of four losses."""
    torch.manual_seed(0)
    schedule = plan(one_f_one_b, world.size, 4)
    stages = {world.rank: nn.Linear(4, 4)}

    def loss(y: Tensor, targets: Tensor) -> Tensor:
        return times * F.mse_loss(y, targets)

    Pipeline(schedule, stages, loss, world).step(torch.ones(8, 4), torch.zeros(8, 4))
    gradient = stages[world.rank].weight.grad
    assert gradient is not None
    return gradient.norm().item()


def gpipe_timing(num_stages: int, num_microbatches: int) -> Timing:
    """Return a step of GPipe on so many ranks: forwards of FORWARD_S seconds, backwards of twice as
    many.

    Of two steps the shorter one: whatever else runs on the machine can only add to a step.
    """
    schedule = plan(gpipe, num_stages, num_microbatches)
    return measured(
        schedule,
        [
            [Span(op, *times) for op, times in zip(row, of_rank, strict=True)]
            for row, of_rank in zip(
                schedule.rows, gpipe_spans(num_stages, num_microbatches), strict=True
            )
        ],
    )


@timed_run
def gpipe_spans(num_stages: int, num_microbatches: int) -> list[list[list[float]]]:
    """By rank: start and end of each of its operations in that step, from the first start."""
    schedule = plan(gpipe, num_stages, num_microbatches)
    costs = Costs(forward=FORWARD_S, input_gradient=FORWARD_S, weight_gradient=FORWARD_S)
    by_rank = run(emulated_step, num_stages, args=(schedule, costs, _TRIES), timeout=600).values
    steps = [measured(schedule, [steps[n].spans for steps in by_rank]) for n in range(_TRIES)]
    best = min(steps, key=lambda step: step.makespan)
    return [[[round(each.start, 6), round(each.end, 6)] for each in row] for row in best.rows]


def idle_share(num_stages: int, num_microbatches: int, relative_to: str = "total") -> float:
    """Return the ranks' idle time as a share of all their time ("total") or of their work
    ("ideal").

    A clock's reading: waking up and messages put it some points above the formula.
    """
    return gpipe_timing(num_stages, num_microbatches).bubble(relative_to)


def bubble(
    stages: int,
    microbatches: int,
    schedule: str = "1f1b",
    virtual: int = 1,
    relative_to: str = "total",
) -> float:
    """The idle share of a step whose stages are equal: F = I = W, and messages take no time."""
    options = {"virtual": virtual} if schedule == "interleaved" else {}
    timing = simulate(plan(_PLANNED[schedule], stages, microbatches, **options))
    return timing.bubble(relative_to)


def bubble_of_a_rank(stages: int, microbatches: int, schedule: str) -> float:
    """The idle share of the rank that waits most, from its own first operation to its own last.

    The zero-bubble papers count so: a rank's later start is no bubble.
    """
    timing = simulate(plan(_PLANNED[schedule], stages, microbatches))
    own = [row[-1].end - row[0].start for row in timing.rows]
    return max(1 - busy / time for busy, time in zip(timing.busy, own))


def most_in_flight(stages: int, microbatches: int, schedule: str) -> list[int]:
    """By rank, how many microbatches' activations it holds at once, at most."""
    return in_flight(plan(_PLANNED[schedule], stages, microbatches))


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
    return costs, {
        "even": even_stages(len(costs), stages),
        "balanced": balanced_stages(costs, stages),
    }
