"""Simulated steps beside real ones, on 2 to 8 ranks of a throttled cluster.

    python examples/cluster_simulation.py              the table: simulated, replayed, measured
    python examples/cluster_simulation.py straggler    the cases whose names have that in them

A real step: every rank is a process; its forwards and backwards take 60 and 120 ms by sleeping (a
rank that sleeps needs no core), its messages and its ring all-reduce are real and take what the
links of the Topology need. The simulation knows the seconds of an operation, and of a message and
an all-reduce by calc's formulas: nothing is measured first. Replayed is the real step's program, by
the virtual clock of labkit.replay. Measured is the real step on this machine, which adds its own
time.

Of a ring over 4 ranks of two hosts calc's formula takes a little too much: a chunk may go on while
another is under way on a slow link, and ranks that are there begin before a straggler comes.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

import labkit
from labkit import Link, Topology, calc
from labkit.calc.pieces import Pieces
from labkit.collectives import ring_all_reduce
from labkit.comm import Region, Timeline
from labkit.mesh import Mesh
from labkit.pipeline import Costs, EmulatedPipeline, Row, gpipe, interleaved, one_f_one_b, plan

ROWS: dict[str, Row] = {"gpipe": gpipe, "1f1b": one_f_one_b, "interleaved": interleaved}
FORWARD_S, BACKWARD_S = 0.06, 0.12
NUM_MICROBATCHES = 4
NUM_STEPS = 2
HIDDEN = 8
ROWS_NUMEL = 9_000  # rows of a microbatch
MESSAGE_BYTES = 4 * ROWS_NUMEL * HIDDEN
FAST, SLOW = Link(20e6, 1e-3), Link(8e6, 4e-3)
ONE_HOST = {"hosts": 1, "fast": FAST}


@dataclass(frozen=True)
class Case:
    """A layout on a topology, with the bytes of its gradients and what is slow."""

    name: str
    layout: calc.Layout
    topology: Topology
    schedule: str = "1f1b"
    gradient_bytes: int = 0
    disturbances: tuple[calc.simulate.Disturbance, ...] = ()
    """Disturbances of the simulation. A Straggler is slow in the real run, too; a SlowLink is in
    the topology."""
    slower: dict[int, float] = field(default_factory=dict)
    """rank -> factor, of the real run."""

    @property
    def virtual(self) -> int:
        """Stages of a rank."""
        return self.layout.virtual


def _hosts(hosts: int, ranks_per_host: int) -> Topology:
    return Topology(
        hosts=hosts,
        ranks_per_host=ranks_per_host,
        fast=FAST,
        slow=SLOW,
        slow_links_per_host=ranks_per_host,
    )


def cases() -> list[Case]:
    """Each differs from the one before in one thing or two."""
    dp4, pp4 = calc.Layout(world_size=4), calc.Layout(world_size=4, pp=4)
    square = calc.Layout(world_size=4, pp=2)
    # dp slowest: each replica on a host of its own, and gradients reduced between hosts.
    eight = calc.Layout(world_size=8, pp=4, order=("dp", "pp", "cp", "tp"))
    between = SLOW.seconds(MESSAGE_BYTES) / FAST.seconds(MESSAGE_BYTES)
    one_host, two_hosts = Topology(ranks_per_host=4, **ONE_HOST), _hosts(2, 2)
    slow_first = {"disturbances": (calc.simulate.Straggler(0, 1.5),), "slower": {0: 1.5}}
    slow_fifth = {"disturbances": (calc.simulate.Straggler(5, 1.5),), "slower": {5: 1.5}}
    return [
        Case("dp 2, slow tier", calc.Layout(world_size=2), _hosts(2, 1), gradient_bytes=1_600_000),
        Case("dp 4, slow tier", dp4, two_hosts, gradient_bytes=1_600_000),
        Case("pp 4, gpipe", pp4, one_host, "gpipe"),
        Case("pp 4, 1f1b", pp4, one_host),
        Case("pp 4, 1f1b, slow tier", pp4, _hosts(4, 1)),
        Case("pp 2, interleaved", calc.Layout(world_size=2, pp=2, virtual=2), _hosts(2, 1),
             "interleaved"),
        Case("dp 2 x pp 2", square, two_hosts, gradient_bytes=1_600_000),
        Case("dp 2 x pp 4", eight, _hosts(2, 4), gradient_bytes=1_600_000),
        Case("dp 4, straggler", dp4, two_hosts, gradient_bytes=1_600_000, **slow_first),
        Case("dp 2 x pp 4, straggler", eight, _hosts(2, 4), gradient_bytes=1_600_000, **slow_fifth),
        Case("pp 4, slow link in the middle", pp4, two_hosts,
             disturbances=(calc.simulate.SlowLink(1, 2, between),)),
    ]  # fmt: skip


def pieces_of(case: Case) -> Pieces:
    """Seconds by formula: of an operation as chosen, of messages and all-reduces by calc."""
    num_stages = case.layout.pp * case.virtual
    is_slow = case.layout.pp > 1 and case.topology.host_of(case.layout.stride("pp")) > 0
    link = SLOW if is_slow else FAST
    reduce_s = _reduce_seconds(case) / case.virtual
    return Pieces(
        forward_s=(FORWARD_S / case.virtual,) * num_stages,
        backward_s=(BACKWARD_S / case.virtual,) * num_stages,
        send_s=link.seconds(MESSAGE_BYTES),
        reduce_s=(reduce_s,) * num_stages,
        gather_s=(0.0,) * num_stages,
        optimizer_s=0.0,
        num_microbatches=NUM_MICROBATCHES,
    )


def _reduce_seconds(case: Case) -> float:
    """Return the seconds of a ring over dp, at the speed of its slowest link."""
    ranks = case.layout.group("dp", 0)
    if len(ranks) == 1:
        return 0.0
    is_slow = len({case.topology.host_of(rank) for rank in ranks}) > 1
    link = SLOW if is_slow else FAST
    if not is_slow or case.topology.host_of(ranks[1]) > 0:
        ring = calc.collective("all_reduce", "ring", len(ranks), case.gradient_bytes)
        return ring.seconds(link.alpha, link.beta)
    per_host = sum(case.topology.host_of(rank) == 0 for rank in ranks)
    alphas, betas = (FAST.alpha, SLOW.alpha), (FAST.beta, SLOW.beta)
    one = {"nbytes": case.gradient_bytes, "ranks_per_host": per_host}
    return calc.collective("all_reduce", "ring", len(ranks), **one).seconds(alphas, betas)


def real_steps(world: labkit.Group, case: Case, times: float = 1.0) -> None:
    """Steps that all ranks begin together. times: 0 for operations that take no time."""
    mesh = Mesh(world, **case.layout.sizes)
    choices = {"virtual": case.virtual} if case.virtual > 1 else {}
    schedule = plan(ROWS[case.schedule], mesh.pp.size, NUM_MICROBATCHES, **choices)
    stages = {stage: nn.Linear(HIDDEN, HIDDEN) for stage in schedule.stages_of(mesh.pp.rank)}
    free = Costs(forward=0, input_gradient=0, weight_gradient=0)
    pipeline = EmulatedPipeline(schedule, stages, nn.functional.mse_loss, free, mesh.pp)
    x = torch.zeros(NUM_MICROBATCHES * ROWS_NUMEL, HIDDEN)
    gradients = torch.zeros(case.gradient_bytes // 4)
    pipeline.step(x, x)  # the first step tells shapes
    forward_s, backward_s = (times * seconds for seconds in operation_seconds(case, world.rank))
    half = backward_s / 2
    pipeline.set_costs(Costs(forward=forward_s, input_gradient=half, weight_gradient=half))
    for _ in range(NUM_STEPS):
        world.barrier()
        with world.region("step"):
            pipeline.step(x, x)
            if case.gradient_bytes:
                ring_all_reduce(gradients, mesh.dp)


def operation_seconds(case: Case, rank: int) -> tuple[float, float]:
    """Return the seconds of a forward and of a backward on a rank."""
    share = case.slower.get(rank, 1.0) / case.virtual
    return FORWARD_S * share, BACKWARD_S * share


def replayed(case: Case) -> float:
    """Seconds of a real step's program on a virtual clock: of sends, waits and links, in order."""
    result = labkit.run(real_steps, case.layout.world_size, (case, 0.0), timeout=600)

    def work_s(rank: int, region: Region) -> float:
        seconds = operation_seconds(case, rank)
        return dict(zip(("forward", "backward"), seconds)).get(region.name, 0.0)

    return best_step(labkit.replay(result.timeline, case.topology, work_s))


def measured(case: Case) -> float:
    """Seconds until the slowest rank's end, in the best of some steps: other work only adds."""
    result = labkit.run(
        real_steps, case.layout.world_size, (case,), topology=case.topology, timeout=600
    )
    return best_step(result.timeline)


def best_step(timelines: Sequence[Timeline]) -> float:
    """Seconds of the shortest step, from the first rank that begins to the last that ends."""
    steps = [[each for each in ranks.regions if each.name == "step"] for ranks in timelines]
    return min(
        max(each.end_s or 0.0 for each in of_ranks) - min(each.start_s for each in of_ranks)
        for of_ranks in zip(*steps, strict=True)
    )


def simulated(case: Case) -> calc.simulate.SimulatedStep:
    """Return the same step, of which nothing runs."""
    return calc.simulate.step(
        pieces_of(case), case.layout, case.disturbances, schedule=case.schedule
    )


def table(wanted: str = "") -> Iterator[tuple[Case, float, float, float]]:
    """(case, simulated seconds, replayed, measured), one at a time."""
    for case in cases():
        if wanted in case.name:
            yield case, simulated(case).seconds, replayed(case), measured(case)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("case", nargs="?", default="", help="a part of the names of some cases")
    wanted = parser.parse_args().case
    if not any(wanted in case.name for case in cases()):
        parser.error(f"{wanted!r} is in no case's name: {', '.join(case.name for case in cases())}")
    print(f"{'case':<32}{'ranks':>5}{'simulated':>11}{'replayed':>10}{'measured':>10}", end="")
    print(f"{'residual':>10}")
    for case, predicted, replay_s, found in table(wanted):
        print(f"{case.name:<32}{case.layout.world_size:>5}{predicted:>9.3f} s", end="")
        print(f"{replay_s:>8.3f} s{found:>8.3f} s{found / predicted - 1:>+10.1%}", flush=True)


if __name__ == "__main__":
    main()
