"""Print how many files and lines somebody reads who follows one path through labkit to its end.

    python scripts/reading_paths.py                every path
    python scripts/reading_paths.py zero3 check    these, with their files

Each path is run in its smallest case, on two ranks where it takes ranks, and every call of labkit's
functions is noted. A reader opens the files of these functions, but for the rooms that the path
stands on: whoever reads ZeRO-3 knows what an all-reduce is.

    files, lines     that a reader opens, and how long they are
    ran              functions of them that ran, and their lines
    below            files of the rooms that it stands on
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

LABKIT = Path(__file__).resolve().parents[1] / "labkit"
Functions = set[tuple[str, str, int, int]]
"""(file below labkit/, name, first line, number of lines)"""

# Files that everything uses: checks of arguments, the model and data of all strategies.
EVERYWHERE = ("__init__.py", "arguments.py", "interrupts.py", "copies.py", "lazy.py")
MODEL = ("gpt_config.py", "model.py", "data.py", "optimizer.py", "train.py")
RANKS = ("comm", "launch", "doctor")


@dataclass(frozen=True)
class ReadingPath:
    """A program, and the files that its reader goes through."""

    says: str
    goal: int
    """Files to the end, at most."""
    program: Callable[..., None]
    stands_on: tuple[str, ...] = ()
    """Rooms and files that count as known."""
    on_ranks: bool = True
    """True: `program` runs on each of two ranks, with the world; False: in this process."""


@contextmanager
def noted(found: Functions) -> Iterator[None]:
    """Note each function of labkit that is called in this thread."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code not in seen:
            seen.add(code)
            path = Path(code.co_filename)
            if path.is_relative_to(LABKIT) and not code.co_name.startswith("<"):
                num_lines = len(inspect.getsourcelines(code)[0])
                name = path.relative_to(LABKIT).as_posix()
                found.add((name, code.co_qualname, code.co_firstlineno, num_lines))

    seen: set[CodeType] = set()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def on_rank(world: Any, program: Callable[..., None]) -> Functions:
    """Return the functions that ran on this rank."""
    found: Functions = set()
    program(world)  # imported code runs, too
    with noted(found):
        program(world)
    return found


def functions_of(path: ReadingPath) -> Functions:
    """Return the functions that run, on all ranks together."""
    if path.on_ranks:
        from labkit import run

        result = run(on_rank, 2, (path.program,))
        return {each for found in result.values for each in found}
    found: Functions = set()
    with redirect_stdout(StringIO()):
        path.program()
        with noted(found):
            path.program()
    return found


def all_reduce(world: Any) -> None:
    """Nothing else."""
    import torch

    world.all_reduce(torch.ones(7))


def ring(world: Any) -> None:
    """Sends and receives."""
    import torch

    from labkit.collectives import ring_all_reduce

    ring_all_reduce(torch.ones(7), world)


def ddp(world: Any) -> None:
    """Wrap, and one step."""
    from labkit.data_parallel import DDP

    _one_step(DDP(_mlp(), world))


def zero3(world: Any) -> None:
    """Wrap, and one step."""
    import torch

    from labkit.zero import FullyShardedModule

    model = FullyShardedModule(_mlp(), group=world)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _one_step(model)
    optimizer.step()


def one_f_one_b(world: Any) -> None:
    """Two stages, four microbatches."""
    import torch
    from torch.nn.functional import mse_loss

    from labkit.pipeline import Pipeline, one_f_one_b, plan

    stages = {world.rank: torch.nn.Linear(4, 4)}
    pipeline = Pipeline(plan(one_f_one_b, world.size, 4), stages, mse_loss, world)
    pipeline.step(torch.ones(4, 4), torch.ones(4, 4))


def tensor_parallel(world: Any) -> None:
    """A column, a row, forward and backward."""
    import torch

    from labkit.tensor_parallel import ColumnLinear, RowLinear

    up = ColumnLinear(torch.nn.Linear(4, 7), world)
    down = RowLinear(torch.nn.Linear(7, 4), world)
    down(up(torch.ones(3, 4))).sum().backward()


def checkpoint(world: Any) -> None:
    """Save the module and optimizer of two replicas, and load them."""
    import torch

    from labkit.checkpoint import Checkpointer
    from labkit.data_parallel import NaiveDDP

    model = NaiveDDP(_mlp(), world)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    checkpointer = Checkpointer(os.environ["LABKIT_PATHS"], model, optimizer, world)
    loaded = checkpointer.load()
    checkpointer.save(loaded.step + 1 if loaded else 1)


def plain_ring(world: Any) -> None:
    """Chunks that differ by one."""
    import torch

    from labkit.collectives.plain import ring_all_reduce

    ring_all_reduce(torch.ones(7), world)


def plain_ddp(world: Any) -> None:
    """Equal parameters, and one step."""
    from labkit.data_parallel.plain import average_gradients, broadcast_parameters

    model = _mlp()
    broadcast_parameters(model, world)
    _one_step(model)
    average_gradients(model, world)


def plain_zero1(world: Any) -> None:
    """A step of SGD."""
    import torch

    from labkit.zero.plain_zero1 import zero1_step

    sgd = SimpleNamespace(step=lambda weights, gradients: weights.sub_(gradients))
    zero1_step(torch.ones(7), torch.ones(7), sgd, world)


def plain_zero3(world: Any) -> None:
    """Two units, y = w0 x."""
    import torch

    from labkit.zero.plain_zero3 import zero3_unit

    unit = SimpleNamespace(
        shard=torch.ones(2),
        numel=3,
        forward=lambda weights, x: weights[0] * x,
        backward=lambda weights, x, gradient: (gradient * weights[0], torch.ones(3)),
    )
    zero3_unit([unit, unit], torch.ones(5), torch.ones_like, world)


def plain_tensor_parallel(world: Any) -> None:
    """Forward and backward."""
    import torch

    from labkit.tensor_parallel.plain import column_row_mlp

    x, up, down = torch.ones(3, 4, requires_grad=True), torch.ones(2, 4), torch.ones(4, 2)
    column_row_mlp(x, up, torch.ones(2), down, torch.ones(4), world).sum().backward()


def plain_ring_attention(world: Any) -> None:
    """Two tokens on each rank."""
    import torch

    from labkit.context_parallel.plain import ring_attention

    x = torch.ones(1, 2, 4)
    ring_attention(x, x, x, 4, world)


def plain_pipeline(world: Any) -> None:
    """Two stages, four microbatches."""
    import torch
    from torch.nn.functional import mse_loss

    from labkit.pipeline.plain import pipeline_step

    pipeline_step(torch.nn.Linear(4, 4), mse_loss, torch.ones(7, 4), torch.ones(7, 4), 4, world)


def plain_experts(world: Any) -> None:
    """An expert on each rank."""
    import torch

    from labkit.moe.plain import switch_layer

    switch_layer(torch.ones(3, 4), torch.ones(2, 4), {world.rank: torch.nn.Linear(4, 4)}, world)


def plain_checkpoint(world: Any) -> None:
    """Save a shard of two, and load it."""
    import torch

    from labkit.checkpoint import Disk
    from labkit.checkpoint.plain import load_shard, save_shards

    folder = Path(os.environ["LABKIT_PATHS"], "plain")
    loaded = load_shard(folder, world)
    save_shards(Disk(), folder, loaded[0] + 1 if loaded else 1, torch.ones(3), world)


def plain_serving() -> None:
    """Two prompts, one at a time."""
    from labkit.model import GPT, GPTConfig
    from labkit.serving.plain import generate

    config = GPTConfig(vocab=31, context=16, num_layers=1, hidden=12, num_heads=3, ffn=22)
    generate(GPT(config), [[1, 2, 3], [4]], [2, 3], 1)


def launch() -> None:
    """The driver's side alone."""
    from labkit import run

    run(_nothing, 2)


def request() -> None:
    """Four tokens."""
    from labkit.model import GPT, GPTConfig
    from labkit.serving import Decoder, Engine, PagedCache, Request, preempting

    config = GPTConfig(vocab=31, context=16, num_layers=1, hidden=12, num_heads=3, ffn=22)
    engine = Engine(Decoder(GPT(config)), PagedCache(config, num_pages=8, page_size=4), preempting)
    engine.generate([Request([1, 2, 3], 4)])


def check() -> None:
    """A right answer, the driver's side."""
    from labkit.grade.engine import check

    check("ring_all_reduce", LABKIT.parent / "solutions" / "ring_all_reduce.py")


def card() -> None:
    """Shown, answered, graded."""
    from labkit.notebook import card

    card("co-2")


def _nothing(world: Any) -> None:
    """Do nothing; `launch` starts this."""


def _mlp() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.GELU(), torch.nn.Linear(7, 3))


def _one_step(model: Any) -> None:
    import torch

    model(torch.ones(5, 4)).sum().backward()


PATHS = {
    "all_reduce": ReadingPath("world.all_reduce(x)", 6, all_reduce),
    "plain_ring": ReadingPath("plain ring", 1, plain_ring, RANKS),
    "ring": ReadingPath("ring_all_reduce", 3, ring, RANKS),
    "plain_ddp": ReadingPath("plain data parallelism", 1, plain_ddp, RANKS),
    "ddp": ReadingPath("the DDP ladder", 5, ddp, RANKS),
    "plain_zero1": ReadingPath("plain ZeRO-1", 1, plain_zero1, RANKS),
    "plain_zero3": ReadingPath("plain ZeRO-3", 1, plain_zero3, RANKS),
    "zero3": ReadingPath("ZeRO-3, wrap and a step", 5, zero3, RANKS),
    "plain_pipeline": ReadingPath("plain 1F1B", 1, plain_pipeline, RANKS),
    "one_f_one_b": ReadingPath("a 1F1B step", 5, one_f_one_b, RANKS),
    "plain_tensor_parallel": ReadingPath("plain column and row", 1, plain_tensor_parallel, RANKS),
    "tensor_parallel": ReadingPath("column and row", 2, tensor_parallel, RANKS),
    "plain_ring_attention": ReadingPath("plain ring attention", 1, plain_ring_attention, RANKS),
    "launch": ReadingPath("run()", 6, launch, ("comm", "doctor"), on_ranks=False),
    "plain_experts": ReadingPath("plain experts", 1, plain_experts, RANKS),
    "plain_checkpoint": ReadingPath("plain checkpoint, disk", 2, plain_checkpoint, RANKS),
    "checkpoint": ReadingPath("saved and loaded", 6, checkpoint, (*RANKS, "data_parallel")),
    "plain_serving": ReadingPath("plain serving", 1, plain_serving, on_ranks=False),
    "request": ReadingPath("a served request", 6, request, on_ranks=False),
    "check": ReadingPath("a check", 7, check, RANKS, on_ranks=False),
    "card": ReadingPath("a card in a sitting", 6, card, on_ranks=False),
}


def main() -> None:
    """Print a row for each path, and the files of those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="*", help=f"of {', '.join(PATHS)}; all without files")
    names = parser.parse_args().paths
    if unknown := [name for name in names if name not in PATHS]:
        parser.error(f"{unknown[0]} is no path; there are {', '.join(PATHS)}")
    folder = tempfile.TemporaryDirectory()
    os.environ |= {"LABKIT_HOME": folder.name, "LABKIT_PATHS": folder.name}
    print(f"{'path':26}{'goal':>5}{'files':>6}{'lines':>7}{'ran':>6}{'lines':>7}{'below':>7}")
    for name in names or PATHS:
        path = PATHS[name]
        found = functions_of(path)
        known = (*EVERYWHERE, *MODEL, *path.stands_on)
        opened = sorted({file for file, *_ in found if file.split("/")[0] not in known})
        lines = {file: len((LABKIT / file).read_text().splitlines()) for file in opened}
        ran = [num_lines for file, _, _, num_lines in found if file in lines]
        num_below = len({file for file, *_ in found}) - len(opened)
        print(
            f"{path.says:26}{path.goal:5}{len(opened):6}{sum(lines.values()):7,}"
            f"{len(ran):6}{sum(ran):7,}{num_below:7}"
        )
        if names:
            for file in opened:
                functions = sum(1 for each in found if each[0] == file)
                print(f"    {file:44}{lines[file]:7,}{functions:6}")


if __name__ == "__main__":
    main()
