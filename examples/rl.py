"""Reinforcement learning over ranks: exact facts of every rung, and trainings side by side.

    python examples/rl.py            all of it: about an hour, most of it trainings
    python examples/rl.py --quick    without trainings: under 50 s

Rungs 1 to 5, on CartPole and small games:

- parameters of PPO and of two agents (QMIX), trained on 2 to 4 ranks and in one process
- V-trace beside the sum that the paper writes
- draws from shards of a replay memory beside one memory's, and beside the priorities (chi-square)
- without --quick: samples to a return of 475, one slow actor (benchmarks/rl.py); what exploring
  costs two agents (benchmarks/rl_agents.py)

Rung 6, reinforcement learning of the lab's GPT (labkit/rl/language.py):

- log-probabilities of trainers and engines in jobs on several numbers of ranks: equal in every bit?
  The same job with the lab's ordinary GPT and decoder, whose products depend on the batch
- the cost of equal bits, beside the ordinary GPT: a training step, a pass of the decoder
- GRPO's gradient beside the loss written out, one token after the other
- a weight update by bytes needed beside a broadcast of everything: bytes by rank, seconds
- ranks killed (SIGKILL) at random moments: does the job end in the bits of one that was never
  killed, with every rollout used once?
- without --quick: trainings with staleness 0, 1 and 4 (benchmarks/rl_language.py)

Case files: jobs with one of nine faults, and healthy ones (labkit/inject/rl_faults.py). Which fault
do the rules of labkit/profile/rl_diagnosis.py name, from the figures by update?

Exits with 1 where an exact fact is not so. Times are printed with their spread (median, least to
most), and decide nothing.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

import labkit
from labkit import RankError
from labkit.checkpoint import RolloutBank
from labkit.inject import ROLLOUT_FAULTS, rollout_settings
from labkit.inject.rl_faults import HEALTHY
from labkit.launch import launch
from labkit.model import GPT, GPTConfig
from labkit.profile import name_fault
from labkit.rl import (
    Generator,
    InvariantDecoder,
    InvariantGPT,
    Parts,
    Settings,
    ShardedReplay,
    Trainer,
    WeightSync,
    group_advantages,
    grpo_loss,
    ppo,
    two_agents,
)
from labkit.rl.completion import Completion
from labkit.rl.language import train
from labkit.rl.v_trace import v_trace
from labkit.rl.weight_sync import LABEL
from labkit.serving import Decoder, PagedCache, ScheduledTokens
from labkit.shards import named_shards
from labkit.zero import FullyShardedModule

run = partial(labkit.run, device="cpu")  # also on a machine with a GPU
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

SHORT = Settings(
    num_updates=4, num_prompts=5, group_size=4, warm_start=10, max_running=16, in_flight=16
)
LAYOUTS = {  # trainers, engines, ranks of an engine
    "1 trainer, 1 engine of 1": (1, 1, 1),
    "2 trainers, 1 engine of 2": (2, 1, 2),
    "4 trainers, 2 engines of 1": (4, 2, 1),
    "1 trainer, 1 engine of 4": (1, 1, 4),
}


class OrdinaryTrainer(Trainer):
    """A trainer of the lab's GPT."""

    def make_module(self):
        """Return the policy."""
        return GPT(self.settings.config, self.settings.seed)


class OrdinaryGenerator(Generator):
    """An engine of the lab's GPT."""

    def make_decoder(self):
        """Return a decoder of the whole model."""
        return Decoder(GPT(self.settings.config))


ORDINARY = Parts(trainer=OrdinaryTrainer, generator=OrdinaryGenerator)


def spread(numbers, digits=2):
    """Return the median, and the least and the most."""
    median, least, most = statistics.median(numbers), min(numbers), max(numbers)
    return f"{median:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


SERIAL = {"dtype": torch.float64, "seed": 3}
TRAININGS = {  # numbers of environments and episodes that 2, 3 and 4 do not divide
    "PPO": lambda world: ppo.train(
        world, ppo.PPOConfig(num_environments=5, num_steps=12, num_samples=120, **SERIAL)
    ),
    "QMIX": lambda world: two_agents.train(
        world,
        two_agents.GAMES["two steps"],
        two_agents.AgentsConfig(learner="qmix", num_updates=5, num_episodes=9, **SERIAL),
    ),
}


def rungs_1_to_5(is_quick):
    """Print the exact facts of the first rungs; whether all are so."""
    is_right = [v_trace_is_the_papers_sum(), draws_go_by_priority()]
    print("parameters after a training on n ranks beside one process: the largest difference")
    for name, training in TRAININGS.items():
        expected = run(training, 1).values[0].parameters
        for n in (2,) if is_quick else (2, 3, 4):
            found = run(training, n).values[-1].parameters
            off = max(float((found[key] - value).abs().max()) for key, value in expected.items())
            print(f"  {name:6}{n} ranks   {off:.1e}")
            is_right.append(off < 1e-9)
    if not is_quick:
        for program in ("rl.py", "rl_agents.py"):
            subprocess.run([sys.executable, BENCHMARKS / program], check=True)
    return all(is_right)


def v_trace_is_the_papers_sum():
    """Print the largest difference from the sum over later steps, each with its own product."""
    generator, (T, E), gamma = torch.Generator().manual_seed(0), (7, 3), 0.9
    log_ratios, rewards, values = torch.randn(3, T, E, dtype=torch.float64, generator=generator)
    ended = torch.rand(T, E, generator=generator) < 0.2
    last = torch.zeros(E, dtype=torch.float64)
    following = torch.cat([values[1:], last[None]])
    discount = gamma * (~ended).double()
    weight = log_ratios.exp().clamp(max=1)
    delta = weight * (rewards + discount * following - values)
    written = values.clone()
    for s in range(T):
        for t in range(s, T):
            written[s] += (discount[s:t] * weight[s:t]).prod(0) * delta[t]
    found = v_trace(log_ratios, rewards, ended, values, last, gamma=gamma).values
    off = float((found - written).abs().max())
    print(f"V-trace beside the paper's sum: largest difference {off:.1e}")
    return off < 1e-12


def drawn(world, priorities, cuts):
    """Return how often all ranks together draw each row."""
    rows = torch.arange(len(priorities)).tensor_split(cuts)[world.rank]
    memory = ShardedReplay(world, len(rows) + 1, 1, seed=3, dtype=torch.float64)
    memory.add(rows.double()[:, None], priorities[rows])
    counts = torch.zeros(len(priorities), dtype=torch.float64)
    for _ in range(30):
        numbers = memory.sample(301, 0.5).rows_BW[:, 0].long()
        counts += numbers.bincount(minlength=len(counts))
    return world.all_reduce(counts)


def draws_go_by_priority():
    """Print chi-square's p; whether shards draw what one memory draws, by priority.

    A sampler that is right fails with a probability of one in a million.
    """
    priorities = torch.randint(1, 64, (29,), generator=torch.Generator().manual_seed(1)).double()
    priorities /= 8  # their sums are exact in any order
    whole, shards = (run(drawn, n, (priorities, cuts)).values[0] for n, cuts in _SHARDS)
    expected = whole.sum() * priorities / priorities.sum()
    statistic = ((shards - expected) ** 2 / expected).sum()
    p = float(torch.special.gammaincc(torch.tensor(14.0), (statistic / 2).float()))
    are_equal = torch.equal(whole, shards)
    print(
        f"9,030 draws from 29 rows in shards of 5, 17, 1 and 6: p = {p:.2f}; "
        f"{'the same' if are_equal else 'OTHER'} rows as from one memory"
    )
    return are_equal and p > 1e-6


_SHARDS = [(1, ()), (4, (5, 22, 23))]


def equal_bits(names):
    """Print a table; whether all ratios of unchanged policies are exactly 1."""
    print("ratios of synchronous jobs: exp(trainer's - engine's log-probability), by token")
    is_right = True
    for name in names:
        trainers, engines, ranks = LAYOUTS[name]
        settings = replace(SHORT, trainers=trainers, engine_ranks=ranks)
        off, tokens = ratios(settings, trainers + engines * ranks, Parts())
        print(f"  {name:28}{tokens:5} tokens   largest |ratio - 1| {off:.1e}")
        is_right &= off == 0
    off, tokens = ratios(replace(SHORT, trainers=1), 2, ORDINARY)
    print(f"  {'1 and 1, ordinary products':28}{tokens:5} tokens   largest |ratio - 1| {off:.1e}")
    return is_right


def ratios(settings, num_ranks, parts):
    """Return the largest |ratio - 1| of a job's tokens and probes, and how many tokens."""
    result = run(train, num_ranks, (settings, None, parts)).values[0]
    off = max(max(each.ratio_off, each.unchanged_off) for each in result.figures)
    return off, sum(each.tokens for each in result.figures)


def timed_products(world, repetitions):
    """Return milliseconds of a training step and of a decoder's pass, by model."""
    torch.set_num_threads(1)
    config = GPTConfig(vocab=64, context=64, num_layers=4, hidden=64, num_heads=4)
    tokens_BT = torch.randint(0, 64, (32, 48), generator=torch.Generator().manual_seed(0))
    found = {"training step of 1,536 tokens": {}, "pass of 32 single tokens": {}}
    for name, make, decoder in (
        ("tiles", InvariantGPT, InvariantDecoder),
        ("ordinary", GPT, Decoder),
    ):
        model = make(config)
        cache = PagedCache(config, 200)
        for row in range(32):
            cache.reserve(row, 64, 64)
        engine = decoder(model)
        engine([ScheduledTokens(row, tokens_BT[row, :40].tolist(), 0) for row in range(32)], cache)
        steps, passes = [], []
        for number in range(repetitions):
            began_s = time.perf_counter()
            model(tokens_BT).square().mean().backward()
            steps.append(1e3 * (time.perf_counter() - began_s))
            batch = [
                ScheduledTokens(row, [int(tokens_BT[row, 40])], 40 + number) for row in range(32)
            ]
            began_s = time.perf_counter()
            engine(batch, cache)
            passes.append(1e3 * (time.perf_counter() - began_s))
        found["training step of 1,536 tokens"][name] = steps
        found["pass of 32 single tokens"][name] = passes
    return found


def cost(repetitions):
    """Print milliseconds with tiles and without."""
    print("what equal bits cost, milliseconds on one rank")
    for what, by_model in run(timed_products, 1, (repetitions,)).values[0].items():
        tiles, ordinary = by_model["tiles"], by_model["ordinary"]
        factor = statistics.median(tiles) / statistics.median(ordinary)
        print(f"  {what:31} tiles {spread(tiles)}, ordinary {spread(ordinary)}: {factor:.1f} times")


def gradient():
    """Print the largest difference from the loss written out; whether it is rounding only."""
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, 12, 9, generator=generator, dtype=torch.float64)
    log_probs = (draw() - 2).requires_grad_()
    generated, reference = log_probs.detach() + draw() / 3, log_probs.detach() + draw() / 3
    rewards_PG = torch.rand(3, 4, generator=generator, dtype=torch.float64).round(decimals=1)
    mask = draw() > 0
    written, advantages = 0.0, group_advantages(rewards_PG).flatten()
    for b, t in mask.nonzero().tolist():
        group = rewards_PG[b // 4]
        advantage = (group[b % 4] - group.mean()) / (group.var(correction=0).sqrt() + 1e-4)
        r = (log_probs[b, t] - generated[b, t]).exp()
        d = reference[b, t] - log_probs[b, t]
        written = written - min(r * advantage, r.clamp(0.8, 1.2) * advantage)
        written = written + 0.3 * (d.exp() - d - 1)
    (expected,) = torch.autograd.grad(written / mask.sum(), log_probs)
    loss = grpo_loss(log_probs, generated, reference, advantages, mask, 0.2, 0.3)
    (found,) = torch.autograd.grad(loss, log_probs)
    difference = float((found - expected).abs().max())
    print(f"GRPO's gradient beside the loss as written: largest difference {difference:.1e}")
    return difference < 1e-12


WIDE = GPTConfig(vocab=64, context=64, num_layers=4, hidden=128, num_heads=4)


def updates(world, trainers, engine_ranks, repetitions):
    """Return (bytes needed, seconds) of updates to this rank, and seconds of broadcasts."""
    number = (world.rank - trainers) // engine_ranks
    group = world.split(max(number, -1) + 1)
    is_trainer = world.rank < trainers
    model = InvariantGPT(WIDE, group=None if is_trainer else group)
    sharded = FullyShardedModule(model, group) if is_trainer else None
    sources = list(named_shards(sharded)) if sharded else []
    targets = [] if sharded else list(named_shards(model))
    sync = WeightSync(world, sources, targets)
    needed = 4 * sum(shard.extent.numel for shard in targets)
    numel = sum(parameter.numel() for parameter in InvariantGPT(WIDE).parameters())
    seconds = {"by bytes needed": [], "broadcast of everything": []}
    for _ in range(repetitions):
        world.barrier()
        began_s = time.perf_counter()
        sent = sync.send()
        if targets:
            sync.install(sync.receive())
        for pending in sent:
            pending.wait()
        world.barrier()
        seconds["by bytes needed"].append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        row_N = torch.empty(numel)
        if sharded:
            row_N = torch.cat([x.flatten() for x in sharded.full_parameters().values()])
        with world.label("everything"):  # after the all-gather between trainers
            world.broadcast(row_N)
        world.barrier()
        seconds["broadcast of everything"].append(time.perf_counter() - began_s)
    return needed, seconds


def weight_updates(repetitions):
    """Print bytes and seconds; whether every engine rank receives its shards' bytes, no more."""
    print(
        f"a weight update, {sum(p.numel() for p in InvariantGPT(WIDE).parameters()):,} parameters"
    )
    is_right = True
    for engine_ranks in (1, 2):
        result = run(updates, 4, (2, engine_ranks, repetitions))
        engines = result.values[2:]
        received = {LABEL: [], "everything": []}
        for label, of_ranks in received.items():
            for timeline in result.timeline[2:]:
                mine = [each.received_bytes for each in timeline.operations if each.label == label]
                of_ranks.append(sum(mine) // repetitions)
        print(f"  2 trainers, {2 // engine_ranks} engine(s) of {engine_ranks} rank(s)")
        for (name, seconds), of_ranks in zip(engines[0][1].items(), received.values(), strict=True):
            milliseconds = spread([1e3 * each for each in seconds], 1)
            print(f"    {name:25}{of_ranks[0]:>11,} bytes to each engine rank   {milliseconds} ms")
        is_right &= received[LABEL] == [needed for needed, _ in engines]
    return is_right


JOB = replace(SHORT, num_updates=10, checkpoint_every=2, task=replace(SHORT.task, seed=3))


def kills(count):
    """Print how a job ends after random kills; whether its bits and rollouts are right."""
    with tempfile.TemporaryDirectory() as name:
        began_s = time.monotonic()
        undisturbed = run(train, 4, (JOB, Path(name, "undisturbed"))).values[0]
        longest_s = time.monotonic() - began_s
        draw, folder, num_killed = random.Random(0), Path(name, "killed"), 0
        result = None
        while result is None or num_killed < count:
            if result is not None:  # it ended between two kills: another job
                folder = Path(name, f"killed-{num_killed}")
            after_s = draw.uniform(0.0, longest_s) if num_killed < count else None
            result = attempt(folder, draw.randrange(4), after_s)
            num_killed += result is None
            if result is not None and not ends_alike(undisturbed, result, folder):
                print(f"  after {num_killed} kills the job ended DIFFERENTLY")
                return False
    print(
        f"{num_killed} kills at random moments: jobs end in the bits of the undisturbed one, and "
        "use each rollout once"
    )
    return True


def attempt(folder, rank, after_s):
    """Run the job, with a rank killed after some seconds; its result, None if it was killed."""
    timers = []

    def start(pids):
        if after_s is not None:
            timers.append(threading.Timer(after_s, killed, (pids[rank],)))
            timers[0].start()

    def killed(pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    try:
        options = {"device": "cpu", "echo": False, "on_start": start}
        return launch(train, 4, [(JOB, folder)], **options).values[0]
    except RankError:
        return None
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()


def ends_alike(undisturbed, result, folder):
    """Return whether parameters are equal in every bit, and the bank has each answer once."""
    bank = RolloutBank(folder / "rollouts.log")
    stored = [Completion.from_bytes(each.payload) for each in bank.take(len(bank))]
    bank.close()
    expected = [
        (n // JOB.group_size, n % JOB.group_size) for n in range(JOB.batch * JOB.num_updates)
    ]
    used = [each.groups for each in result.figures]
    return (
        all(torch.equal(x, result.parameters[name]) for name, x in undisturbed.parameters.items())
        and [(each.group, each.member) for each in stored] == expected
        and used == [each.groups for each in undisturbed.figures][JOB.num_updates - len(used) :]
    )


def rung_6(is_quick):
    """Print the tables of reinforcement learning of a language model; whether all is right."""
    names = list(LAYOUTS)[1:2] if is_quick else list(LAYOUTS)
    is_right = [equal_bits(names), gradient(), weight_updates(5 if is_quick else 20)]
    cost(5 if is_quick else 20)
    is_right.append(kills(2 if is_quick else 20))
    if not is_quick:
        subprocess.run([sys.executable, BENCHMARKS / "rl_language.py"], check=True)
    return all(is_right)


def jobs(world, settings, parts):
    """Run jobs one after the other; their results."""
    return [train(world, each, None, parts) for each in settings]


def case_files(is_quick):
    """Print which fault the rules name in jobs with one of nine faults, and with none.

    Rules and faults are those of `labkit case --room rl`. The table is printed as it is, with its
    misses, and decides nothing.
    """
    if is_quick:
        return True
    print("faults named by their figures (labkit/profile/rl_diagnosis.py): right, of jobs; misses")
    for name, fault in [*ROLLOUT_FAULTS.items(), (None, HEALTHY)]:
        count = 5 if name else 20
        dials = [fault.difficulties[number % len(fault.difficulties)] for number in range(count)]
        settings = [rollout_settings(name, each, 1000 + n) for n, each in enumerate(dials)]
        misses = []
        for difficulty, of, trained in zip(
            dials, settings, run(jobs, 4, (settings, fault.parts)).values[0], strict=True
        ):
            named = name_fault(trained.figures, trained.stalled)
            if (named and named.name) != name:
                found = named.name if named else "none"
                misses.append(f"{found} (difficulty {difficulty}, seed {of.seed})")
        shown = ", ".join(misses) or "no miss"
        print(f"  {name or 'healthy':14}{count - len(misses):3} of {count:2}   {shown}", flush=True)
    return True


RUNGS = [rungs_1_to_5, rung_6, case_files]


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="without trainings")
    chosen = parser.parse_args()
    is_right = [rung(chosen.quick) for rung in RUNGS]
    return 0 if all(is_right) else 1


if __name__ == "__main__":
    sys.exit(main())
