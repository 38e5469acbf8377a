"""Pipeline schedules beside torch's own: seconds of a step, forward and backward, no optimizer.

    gpipe, 1f1b, interleaved    the lab's executor with one schedule or another
    beside                      ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B
    zb_h1                       beside 1f1b of the lab: what splitting costs on few cores

The same stages of a GPT, the same microbatches, gradients compared before anything is timed. With
more ranks than cores a bubble costs nothing, for somebody else uses the core: a ratio shows what
the executor itself costs, its messages and its bookkeeping, and not what a schedule saves.

Then the seconds in which one process simulates 64 stages of 512 microbatches.

One run, alternating, medians of the slowest rank. `python benchmarks/pipeline.py [ranks]`
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from measure import alternate, command_line, machine
from torch import Tensor
from torch.distributed import pipelining

import labkit
from labkit.model import GPTConfig
from labkit.pipeline import (
    Pipeline,
    PipelineGPT,
    Row,
    gpipe,
    interleaved,
    one_f_one_b,
    plan,
    simulate,
    token_loss,
    zero_bubble_h1,
)

CONFIG = GPTConfig(context=64, num_layers=8, hidden=192, num_heads=4)
NUM_MICROBATCHES, ROWS_OF_ONE = 8, 2
REPETITIONS = 31
ROWS: dict[str, Row] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": partial(interleaved, virtual=2),
    "zb_h1": zero_bubble_h1,
}
TORCHS = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
}
YARDSTICK = {name: f"torch, {name}" for name in TORCHS} | {"zb_h1": "1f1b"}
Step = Callable[[], None]


def model_of(world: labkit.Group, name: str) -> PipelineGPT:
    """Return the stages of this rank; equal blocks each, so that both cut alike."""
    schedule = plan(ROWS[name], world.size, NUM_MICROBATCHES)
    return PipelineGPT(CONFIG, schedule, world.rank)


def ours(world: labkit.Group, name: str, model: PipelineGPT, tokens_BT: Tensor) -> Step:
    """Return the lab's. The head's weight is not tied: torch's has no such thing."""
    pipeline = Pipeline(model.schedule, model.stages, token_loss, world)

    def step() -> None:
        model.zero_grad()
        pipeline.step(tokens_BT, tokens_BT)

    return step


def torchs(world: labkit.Group, name: str, model: PipelineGPT, tokens_BT: Tensor) -> Step:
    """torch's schedule of this name, over the same stages."""
    stages = [
        pipelining.PipelineStage(module, stage, model.schedule.num_stages, torch.device("cpu"))
        for stage, module in model.stages.items()
    ]
    is_multi = name == "interleaved"
    schedule = TORCHS[name](stages if is_multi else stages[0], NUM_MICROBATCHES, loss_fn=token_loss)
    first, last = 0 in model.stages, model.schedule.num_stages - 1 in model.stages

    def step() -> None:
        model.zero_grad()
        args = (tokens_BT,) if first else ()
        losses: list[Tensor] = []
        target = tokens_BT if last else None
        schedule.step(*args, target=target, losses=losses, return_outputs=False)

    return step


def compare(world: labkit.Group) -> dict[str, float]:
    """By name: median seconds of a step of the slowest rank."""
    generator = torch.Generator().manual_seed(1)
    shape = (NUM_MICROBATCHES * ROWS_OF_ONE, CONFIG.context)
    tokens_BT = torch.randint(CONFIG.vocab, shape, generator=generator)
    candidates: dict[str, Step] = {}
    for name in ROWS:
        models = {name: model_of(world, name)}
        candidates[name] = ours(world, name, models[name], tokens_BT)
        if name in TORCHS:
            theirs = f"torch, {name}"
            models[theirs] = model_of(world, name)
            candidates[theirs] = torchs(world, name, models[theirs], tokens_BT)
        for each in models:
            candidates[each]()
        require_equal(*models.values())
    return alternate(world, candidates, REPETITIONS)


def require_equal(one: torch.nn.Module, *others: torch.nn.Module) -> None:
    """Both have the gradients of the same mean loss."""
    for other in others:
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-6)


def main() -> None:
    """Print milliseconds, and each schedule's ratio to its yardstick."""
    parser = command_line(__doc__)
    parser.add_argument("ranks", nargs="*", type=int, help="2, 4 or both; both")
    chosen = parser.parse_args().ranks or [2, 4]
    if not set(chosen) <= {2, 4}:
        parser.error(f"ranks {chosen}: all of these schedules run on 2 and on 4 only")
    print(f"{NUM_MICROBATCHES} microbatches of {ROWS_OF_ONE} x {CONFIG.context} tokens, {CONFIG}.")
    print(machine())
    for num_ranks in chosen:
        seconds = labkit.run(compare, num_ranks, timeout=600).values[0]
        print(f"{num_ranks} ranks")
        for name, beside in YARDSTICK.items():
            ratio = seconds[name] / seconds[beside]
            print(
                f"  {name:<13}{1e3 * seconds[name]:>8.1f} ms   {beside:<20}"
                f"{1e3 * seconds[beside]:>8.1f} ms   ratio {ratio:.2f}",
                flush=True,
            )
    schedule = plan(one_f_one_b, 64, 512)
    began_s = time.perf_counter()
    simulate(schedule)
    print(f"simulate: 64 stages, 512 microbatches in {time.perf_counter() - began_s:.2f} s")


if __name__ == "__main__":
    main()
