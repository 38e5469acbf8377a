"""A step simulated rank by rank, to hold the classes of calc.simulate.step against."""

import itertools
import math
import random
from functools import partial

from labkit.calc.pieces import Pieces
from labkit.calc.simulate import Jitter, SlowLink, SlowNode, Straggler
from labkit.pipeline import gpipe, interleaved, one_f_one_b, plan

ROWS = {"gpipe": gpipe, "1f1b": one_f_one_b, "interleaved": partial(interleaved, virtual=2)}


def pieces(num_stages, m, **other):
    """Stages of unequal cost, so that nothing is equal by chance."""
    given = {
        "forward_s": tuple(1 + 0.1 * (stage % 3) for stage in range(num_stages)),
        "backward_s": tuple(2 + 0.3 * (stage % 2) for stage in range(num_stages)),
        "send_s": 0.25,
        "reduce_s": tuple(1.5 + 0.2 * stage for stage in range(num_stages)),
        "gather_s": tuple(0.7 + 0.1 * stage for stage in range(num_stages)),
        "optimizer_s": 0.4,
        "num_microbatches": m,
        "compute_s": tuple(2.4 + 0.1 * stage / num_stages for stage in range(num_stages)),
    }
    return Pieces(**{**given, **other})


class EveryRank:
    """All ranks, one by one: no classes, no cells. Operations run when they can, until all have."""

    def __init__(self, pieces, layout, disturbances, schedule, rng):
        self.pieces, self.layout, self.given, self.rng = pieces, layout, disturbances, rng
        self.schedule = plan(ROWS[schedule], layout.pp, pieces.num_microbatches)
        self.at = [layout.coordinates(rank) for rank in range(layout.world_size)]
        self.end, self.begin = {}, {}  # (rank, op) -> seconds
        self.through = [0.0] * layout.world_size

    def grouped(self, key):
        ranks = sorted(range(self.layout.world_size), key=key)
        return [list(group) for _, group in itertools.groupby(ranks, key)]

    def slower(self, rank):
        jitter = sum(each.share for each in self.given if isinstance(each, Jitter))
        factor = math.prod(
            each.factor for each in self.given if isinstance(each, Straggler) and each.rank == rank
        )
        return factor * (1 + (jitter * self.rng.expovariate(1) if jitter else 0))

    def link(self, ranks):
        slow = [1.0]
        for each in self.given:
            touched = [rank for rank in ranks if rank in getattr(each, "ranks", ())]
            if isinstance(each, SlowNode) and touched:
                slow.append(each.factor)
            if isinstance(each, SlowLink) and len(touched) == 2:
                slow.append(each.factor)
        return max(slow)

    def seconds(self, op, ranks):
        stage = op.stage
        forward, backward = self.pieces.forward_s[stage], self.pieces.backward_s[stage]
        if self.pieces.exchanged_s:  # with the same stage of all replicas, whatever their tp
            of_stage = [
                r for r in range(len(self.at)) if self.at[r]["pp"] == self.at[ranks[0]]["pp"]
            ]
            by_tp = [
                [r for r in of_stage if self.at[r]["tp"] == tp] for tp in range(self.layout.tp)
            ]
            more = max(self.link(group) for group in by_tp) - 1
            forward += more * self.pieces.exchanged_s[stage][0]
            backward += more * self.pieces.exchanged_s[stage][1]
        whole, mine = forward + backward, forward if op.kind == "F" else backward
        computing = mine * (self.pieces.compute_s[stage] / whole)
        return mine - computing + computing * max(self.slower(rank) for rank in ranks)

    def arrival(self, op, rank):
        need = op.needs(self.schedule.num_stages)
        if need is None:
            return 0.0
        kind = "F" if op.kind == "F" else "B"
        source = next(
            other
            for other in self.layout.group("pp", rank)
            if self.at[other]["pp"] == need[1] % self.layout.pp
        )
        if (source, (kind, *need[1:])) not in self.end:
            return None
        sent = 0.0 if source == rank else self.pieces.send_s * self.link([source, rank])
        return self.end[source, (kind, *need[1:])] + sent

    def pipeline(self):
        in_step = self.grouped(lambda r: (self.at[r]["dp"] // self.layout.ep, self.at[r]["pp"]))
        place = dict.fromkeys(range(len(in_step)), 0)
        first_seen = set()
        while any(place[n] < len(self.row(ranks)) for n, ranks in enumerate(in_step)):
            for n, ranks in enumerate(in_step):
                while place[n] < len(self.row(ranks)):
                    op = self.row(ranks)[place[n]]
                    arrivals = [self.arrival(op, rank) for rank in ranks]
                    if None in arrivals:
                        break
                    start = max([*arrivals, *(self.through[rank] for rank in ranks)])
                    end = start + self.seconds(op, ranks)
                    for rank in ranks:
                        self.begin[rank, tuple(op)] = start
                        self.end[rank, tuple(op)] = self.through[rank] = end
                    place[n] += 1
                    first_seen.add(op)

    def row(self, ranks):
        return self.schedule.rows[self.at[ranks[0]]["pp"]]

    def step(self):
        self.pipeline()
        ends = []
        for ranks in self.grouped(lambda r: (self.at[r]["pp"], self.at[r]["tp"])):
            slow, stages = self.link(ranks), self.schedule.stages_of(self.at[ranks[0]]["pp"])
            begins = max(self.through[rank] for rank in ranks)
            reduced = begins + slow * sum(self.pieces.reduce_s[stage] for stage in stages)
            updated = max(reduced + self.pieces.optimizer_s * self.slower(rank) for rank in ranks)
            ends.append(updated + slow * sum(self.pieces.gather_s[stage] for stage in stages))
        return max(ends)


def every_rank(pieces, layout, disturbances=(), schedule="1f1b", seed=0):
    return EveryRank(pieces, layout, disturbances, schedule, random.Random(seed)).step()
