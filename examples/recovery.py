"""Test which state a training job can lose: power cuts and kills, here and with torch's DCP.

    python examples/recovery.py            all of it: about six minutes
    python examples/recovery.py --quick    a sample of the first four: 20 s

- the power is cut behind every operation of every rank's saves, synchronous and asynchronous ones;
  of what was not synced all, nothing or a part is left. Then a real load: one saved state, whole?
- real ranks are killed (SIGKILL) behind their operations, and the next run loads
- the same with torch's Distributed Checkpoint, which saves a second version over the first
- in every layout: does a job that was saved and loaded end like one that never stopped, bit for
  bit, with dropout?
- without --quick: what one failure costs in three ways to go on; one training through 50 kills
  (kills.py); seconds beside DCP

Exits with 1 where a state of the lab is mixed or lost, or where a job ends otherwise. What DCP does
is printed as measured, and decides nothing.
"""

import argparse
import io
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from kills import report as one_training
from torch import nn
from torch.nn import functional as F

import labkit
from labkit import RankError
from labkit.checkpoint import Checkpointer, read_tensors
from labkit.checkpoint.disk import RecordedDisk
from labkit.checkpoint.power_cut import PowerCut, operations
from labkit.combined import CombinedTraining
from labkit.course.recovery.evidence import RUNGS, after_a_kill
from labkit.data import Corpus
from labkit.data_parallel import DDP
from labkit.data_parallel.ddp import train_step as data_parallel_step
from labkit.mesh import Mesh
from labkit.model import GPT, GPTConfig
from labkit.moe import ExpertParallelGPT, MoEConfig
from labkit.moe.train_moe import train_step as moe_step
from labkit.optimizer import AdamW
from labkit.pipeline import Pipeline, PipelineGPT, one_f_one_b, plan, token_loss
from labkit.pipeline import train_step as pipeline_step
from labkit.tensor_parallel import parallelize
from labkit.tensor_parallel.gpt_tp import train_step as tensor_parallel_step
from labkit.train import TrainConfig, loss
from labkit.zero import FullyShardedModule, Zero1Optimizer, Zero2Optimizer

NOTHING, MIXED = 0, None
run = partial(labkit.run, device="cpu")  # also on a machine with a GPU

# 31 tokens and 22 features of the MLP divide by no number of ranks, 2 key-value heads not by 4.
SIZES = {"num_layers": 4, "hidden": 16, "num_heads": 4, "num_kv_heads": 2, "ffn": 22}
CONFIG = GPTConfig(vocab=31, context=6, **SIZES)
SETTINGS = TrainConfig(num_sequences=8, learning_rate=1e-2, dtype=torch.float64)
MOE = MoEConfig(num_experts=5, top_k=2, router="bias_balanced")
CORPUS = Corpus("bytes below 31", torch.arange(900, dtype=torch.uint8).remainder(31))


@dataclass
class Job:
    """A model and its optimizer in one layout, and how they take a step on a batch."""

    model: nn.Module
    optimizer: Any
    step: Callable[[Any], Any]
    extra: dict[str, Any] = field(default_factory=dict)


def data_parallel(group, seed):
    """Replicas, averaged by DDP."""
    module = gpt(seed)
    model, optimizer = DDP(module, group), AdamW(module.parameters(), 1e-2)
    return Job(model, optimizer, partial(data_parallel_step, model, optimizer))


def sharded_states(optimizer_class, group, seed):
    """ZeRO-1 or ZeRO-2."""
    module = gpt(seed)
    optimizer = optimizer_class(module.parameters(), AdamW, group, learning_rate=1e-2)
    return Job(module, optimizer, partial(backward_and_step, module, optimizer, group))


def zero3(group, seed):
    """ZeRO-3."""
    model = FullyShardedModule(gpt(seed), group)
    optimizer = AdamW(model.parameters(), 1e-2)
    return Job(model, optimizer, partial(backward_and_step, model, optimizer, group))


def backward_and_step(model, optimizer, group, batch):
    """A step on a rank's share of a batch, which counts by its rows."""
    share = batch.share(group.rank, group.size)
    optimizer.zero_grad()
    (loss(model, share) * (len(share) * group.size / len(batch))).backward()
    optimizer.step()


def tensor_parallel(group, seed):
    """Every layer cut over the ranks."""
    model = parallelize(gpt(seed), group)
    optimizer = AdamW(model.parameters(), 1e-2)
    return Job(model, optimizer, partial(tensor_parallel_step, model, optimizer))


def pipelined(group, seed):
    """Layers dealt out to stages, 1F1B."""
    schedule = plan(one_f_one_b, group.size, 4)
    model = PipelineGPT(CONFIG, schedule, group.rank, seed, torch.float64)
    pipeline = Pipeline(schedule, model.stages, token_loss, group, tied=model.tied)
    optimizer = AdamW(model.parameters(), 1e-2)
    return Job(model, optimizer, partial(pipeline_step, pipeline, optimizer))


def combined(group, seed, **sizes):
    """dp x pp x tp, with ZeRO-1 over dp."""
    mesh = Mesh(group, **sizes)
    settings = TrainConfig(num_sequences=8, learning_rate=1e-2, dtype=torch.float64, seed=seed)
    training = CombinedTraining(mesh, CONFIG, settings, num_microbatches=2)
    return Job(training.model, training.optimizer, training.step)


def experts(group, seed):
    """Five experts over the ranks."""
    mesh = Mesh(group, dp=1, ep=group.size)
    model = ExpertParallelGPT(CONFIG, MOE, mesh.ep, seed, torch.float64)
    optimizer = AdamW(model.parameters(), 1e-2)
    return Job(model, optimizer, partial(moe_step, model, optimizer, mesh=mesh))


def gpt(seed):
    """The model of all layouts."""
    return GPT(CONFIG, seed, torch.float64)


DENSE = {
    "data parallel": (data_parallel, (1, 2, 3)),
    "zero1": (partial(sharded_states, Zero1Optimizer), (2,)),
    "zero2": (partial(sharded_states, Zero2Optimizer), (4,)),
    "zero3": (zero3, (3, 4)),
    "tensor parallel": (tensor_parallel, (2, 4)),
    "pipeline": (pipelined, (3,)),
    "dp 2 x tp 2": (partial(combined, dp=2, pp=1, tp=2), (4,)),
    "dp 2 x pp 2": (partial(combined, dp=2, pp=2, tp=1), (4,)),
    "pp 2 x tp 2": (partial(combined, dp=1, pp=2, tp=2), (4,)),
}
LAYOUTS = {f"{name}, {n}": (make, n) for name, (make, sizes) in DENSE.items() for n in sizes}
EXPERTS = {f"experts, {n}": (experts, n) for n in (1, 2, 4)}


def dropout(model):
    """After the embedding, or the first layer, which some rank has. How many it found."""
    found = 0
    inner = getattr(model, "module", model)
    for module in inner.modules():
        if hasattr(module, "position") or module is getattr(inner, "first", None):
            module.register_forward_hook(lambda _, inputs, x: F.dropout(x, 0.3))
            found += 1
    return found


def batch(step):
    """The global batch of a step."""
    return SETTINGS.batches(CORPUS, CONFIG.context).at(step)


def sub_world(world, size):
    """A group of the first ranks; None on the others."""
    group = world.split(0 if world.rank < size else None)
    return group if world.rank < size else None


def goes_on(world, folder, layouts):
    """By layout: whether a job that was saved and loaded ends like one that never stopped."""
    found = {}
    for name, (make, size) in layouts.items():
        group = sub_world(world, size)
        if group is not None:
            found[name] = ends_equal(group, folder / name, make)
    return found


def ends_equal(group, folder, make):
    """Return whether both end equal, bit for bit, and the number of this rank's layers with
    dropout."""
    torch.manual_seed(7)
    whole = make(group, 0)
    num_dropouts = dropout(whole.model)
    for step in range(2):
        whole.step(batch(step))
    Checkpointer(folder, whole.model, whole.optimizer, group, extra=whole.extra).save(2)
    whole.step(batch(2))
    torch.manual_seed(8)
    resumed = make(group, 1)
    dropout(resumed.model)
    loaded = Checkpointer(
        folder, resumed.model, resumed.optimizer, group, extra=resumed.extra
    ).load()
    resumed.step(batch(loaded.step))
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs), num_dropouts


def small_job(world, folder, seed=0, **options):
    """A sharded model with an optimizer, its checkpoints, and a step."""
    torch.manual_seed(seed)
    model = FullyShardedModule(nn.Linear(7, 5), world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        model(torch.ones(2, 7)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step, Checkpointer(folder, model, optimizer, world, **options)


def saves(world, folder, log, wait=True, kills=None):
    """Save three steps, return to the first, and save another second step.

    kills: a rank, and after which of its operations. Returns the four states, and how many
    operations there were when each save had returned, and when the first step was loaded again.
    """
    kill_after = kills[1] if kills and kills[0] == world.rank else None
    disk = RecordedDisk(log / f"log-{world.rank}", kill_after)
    _, step, checkpointer = small_job(world, folder, keep_last=3, disk=disk)
    states, num_before = [], []
    for number in (1, 2, 3, 2):
        if len(states) == 3:
            checkpointer.load(step=1)
            world.barrier()
            num_before.append(len(operations(log.glob("log-*"))))
            step(), step()  # another state than all before
        step()
        checkpointer.save(number, wait=wait)
        checkpointer.wait()
        world.barrier()  # rank 0 has removed the one before
        num_before.append(len(operations(log.glob("log-*"))))
        states.append(read_tensors(folder))
        world.barrier()
    return states, num_before


def loaded_state(world, folder, states):
    """Return which of the states a load gives, from 1; NOTHING; MIXED for something else."""
    _, _, checkpointer = small_job(world, folder, seed=1)
    if checkpointer.load() is None:
        return NOTHING
    mine = {each.name: each.tensor.flatten() for each in checkpointer.contents.shards()}
    equal = [all(torch.equal(x, state[n].flatten()) for n, x in mine.items()) for state in states]
    return equal.index(True) + 1 if any(equal) else MIXED


def loads_after_cuts(world, root, log, states, num_ways=None):
    """By operation: the states that are loaded after a cut of the power behind it.

    num_ways: how many of the ways in which things are lost are drawn for each; None: all.
    """
    performed = operations(log.glob("log-*"))
    draw = random.Random(0)
    ways = [(False, False), (False, True), (True, False), (True, True), (draw, draw), (draw, draw)]
    found = []
    for count in range(len(performed) + 1):
        found.append([])
        for data, names in draw.sample(ways, num_ways or len(ways)):
            left = log / "left"
            PowerCut(root, performed[:count]).write_survivors(left, data, names)
            found[-1].append(loaded_state(world, left / "job", states))
            shutil.rmtree(left)
    return found


def state_after_kill(folder, states, rank, kill_after):
    """Return the state loaded after a kill, and the right one: the last save that got its name."""
    with suppress(RankError):
        run(saves, 2, (folder / "job", folder, True, (rank, kill_after)))
    performed = operations(folder.glob("log-*"))
    num_saved = sum("removed" not in each.rest for each in performed if each.kind == "rename")
    return run(loaded_state, 1, (folder / "job", states)).values[0], num_saved


def dcp_saves_twice(world, folder):
    """Version 1 everywhere; rank 1 is killed before it writes its part of version 2."""
    warnings.simplefilter("ignore")  # that it overwrites
    for version in (1.0, 2.0):
        state = {f"weight of rank {world.rank}": torch.full((4,), version)}
        if version == 2.0 and world.rank == 1:

            class Killed(dcp.FileSystemWriter):
                def write_data(self, *given):
                    os.kill(os.getpid(), signal.SIGKILL)

            dcp.save(state, storage_writer=Killed(folder))
        dcp.save(state, checkpoint_id=folder)


def dcp_loads(world, folder):
    """Return the values that each rank finds."""
    state = {f"weight of rank {world.rank}": torch.zeros(4)}
    dcp.load(state, checkpoint_id=folder)
    return next(iter(state.values())).tolist()


def power_cuts(num_ways):
    """Print a table; whether every load gave one state, and none was lost."""
    print("power cut behind each operation of two ranks' saves: what the next load gives")
    is_right = True
    for wait in (True, False):
        with tempfile.TemporaryDirectory() as name:
            root, log = Path(name, "root"), Path(name, "log")
            root.mkdir(), log.mkdir()
            states, num_before = run(saves, 2, (root / "job", log, wait)).values[0]
            arguments = (root, log, states, num_ways)
            found = run(loads_after_cuts, 1, arguments, timeout=600).values[0]
        counts = Counter(state for after_cut in found for state in after_cut)
        lost = sum(
            state is not MIXED and state < least
            for least, after_cut in zip(least_states(num_before), found, strict=True)
            for state in after_cut
        )
        print(
            f"  {'synchronous' if wait else 'asynchronous':13}{len(found) - 1:4} operations"
            f"{counts.total():6} cuts   none yet {counts[NOTHING]}, a saved state "
            f"{sum(n for state, n in counts.items() if state)}, mixed {counts[MIXED]}, lost {lost}"
        )
        is_right &= not counts[MIXED] and not lost
    return is_right


def least_states(num_before):
    """By operation: the oldest state that may be loaded after it, as every later save has returned.

    A return to the first step gives up the two after it.
    """
    first, second, third, returned, fourth = num_before
    least = [0] * first + [1] * (second - first) + [2] * (third - second) + [3] * (returned - third)
    return least + [1] * (fourth - returned) + [4]


def kills(kill_after):
    """Print a table; whether every load gave the last save that counted."""
    print("SIGKILL behind operations of real ranks: what the next run loads")
    is_right = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "undisturbed")
        folder.mkdir()
        states = run(saves, 2, (folder / "job", folder)).values[0][0]
        for rank in (0, 1):
            found = []
            for number in kill_after:
                folder = Path(name, f"{rank}-{number}")
                folder.mkdir()
                found.append(state_after_kill(folder, states, rank, number))
            equal = sum(state == expected for state, expected in found)
            print(f"  rank {rank} {len(found):6} kills   the last save that counted {equal}")
            is_right &= equal == len(found)
    return is_right


def dcp_drill():
    """Print what torch's DCP does."""
    with tempfile.TemporaryDirectory() as name:
        with suppress(RankError):
            run(dcp_saves_twice, 2, (Path(name),))
        try:
            values = run(dcp_loads, 2, (Path(name),)).values
        except RankError as error:
            values = str(error).partition("\n")[0]
    print("torch's DCP saves version 2 over version 1, and rank 1 is killed before it writes:")
    print(f"  the next load gives {values}")


def resumed(layouts):
    """Print a table; whether all jobs end equal."""
    print("saved and loaded beside never stopped, dropout on: parameters after the next step")
    with tempfile.TemporaryDirectory() as name:
        of_ranks = run(goes_on, 4, (Path(name), layouts), timeout=600).values
    are_equal = {
        name: all(of_rank[name][0] for of_rank in of_ranks if name in of_rank) for name in layouts
    }
    for name, is_equal in are_equal.items():
        print(f"  {name:22}{'equal in every bit' if is_equal else 'DIFFERENT'}")
    return all(are_equal.values())


def costs(moments):
    """Print a table; whether only the disk made the job repeat steps that were complete."""
    print("one failure of four ranks: what it costs to go on (median, least to most)")
    is_right = True
    for rung in RUNGS:
        with redirect_stdout(io.StringIO()):  # which says that an attempt has failed
            found = [after_a_kill(rung, killed_in) for killed_in in moments]
        steps, sent, moved, seconds = zip(*found, strict=True)
        print(
            f"  {rung:12} steps repeated {spread(steps, 0)}, seconds lost {spread(seconds, 2)}, "
            f"bytes sent per save {sent[0]:,}, moved to be back {moved[0]:,}"
        )
        is_right &= rung == "from disk" or max(steps) <= 1
    return is_right


def spread(numbers, digits):
    """Median, and the range."""
    median, least, most = statistics.median(numbers), min(numbers), max(numbers)
    return f"{median:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def beside_dcp():
    """Print what the benchmark measures."""
    program = Path(__file__).parents[1] / "benchmarks" / "checkpoint.py"
    print("seconds beside torch's DCP (benchmarks/checkpoint.py):", flush=True)
    subprocess.run([sys.executable, program], check=True)


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a sample of each")
    chosen = parser.parse_args()
    layouts = {**LAYOUTS, **EXPERTS}
    is_right = [
        power_cuts(1 if chosen.quick else None),
        kills(range(2, 40, 9) if chosen.quick else range(1, 60, 2)),
        resumed(layouts),
    ]
    dcp_drill()
    if not chosen.quick:
        is_right += [costs(range(9, 16)), one_training(50)]
        beside_dcp()
    return 0 if all(is_right) else 1


if __name__ == "__main__":
    sys.exit(main())
