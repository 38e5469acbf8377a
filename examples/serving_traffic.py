"""Random traffic with cancellations and killed ranks: every request ends, and nothing leaks.

    requests, 10 a second -> router -> replica 0: rank 0, rank 1      two ranks share a model
                                       replica 1: rank 0, rank 1      (tensor parallelism)
                                       replica 2: rank 0, rank 1

Now and then a rank is killed, or frozen. Its replica starts again, and its requests go on at
another one. Some requests are cancelled in the midst of their answers. At the end:

- Has each request ended in the tokens of naive generation, each once and in order, or in an error
  that says why? Greedy or drawn, with pages shared or preempted: in float64 they are the same.
- Is something left: pages in caches, processes, threads, open files and ports, temporary folders?

    python examples/serving_traffic.py --seconds 600
"""

import argparse
import collections
import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from labkit import arguments, run
from labkit.model import GPT, GPTConfig
from labkit.serving import (
    Engine,
    PagedCache,
    QueueFull,
    Replicas,
    Request,
    Router,
    Sampling,
    by_prefix,
    chunked_prefill,
)
from labkit.serving.parallel_decoders import TensorParallelDecoder
from labkit.serving.requests import sample
from labkit.tensor_parallel import parallelize

CONFIG = GPTConfig(vocab=31, context=96, num_layers=2, hidden=16, num_heads=4, num_kv_heads=2)
NUM_REPLICAS, NUM_RANKS, NUM_PAGES = 3, 2, 32
REQUESTS_PER_SECOND, SECONDS_PER_FAILURE = 10.0, 4.0
IS_CANCELLED, IS_FROZEN = 0.15, 0.25  # probabilities
MAX_UNFINISHED = 32
PATIENCE_S, LONGEST_END_S = 4.0, 60.0


def make_model():
    """The same on each rank, with larger weights than at the start of training, for varied text."""
    torch.manual_seed(0)
    model = GPT(CONFIG, dtype=torch.float64)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(20 if weight.dim() == 2 and "token" not in name else 1)
    return model


def make_engine(world):
    """On each rank of a replica. So few pages that requests are preempted under load."""
    decoder = TensorParallelDecoder(parallelize(make_model(), world))
    cache = PagedCache(decoder.cache_config, NUM_PAGES, page_size=4, dtype=torch.float64)
    return Engine(decoder, cache, partial(chunked_prefill, token_budget=32))


@torch.no_grad()
def naive(model, request):
    """The answer of the model itself, which computes all tokens in each forward."""
    tokens, generator = list(request.prompt), torch.Generator().manual_seed(request.sampling.seed)
    for _ in range(request.max_new_tokens):
        logits_V = model(torch.tensor([tokens]))[0, -1]
        tokens.append(sample(logits_V, request.sampling, generator))
        if tokens[-1] in request.stop:
            break
    return tokens[len(request.prompt) :]


def draw_questions(draw, model, num):
    """(request, answer): prompts that begin alike, greedy and drawn answers, some that stop."""
    beginnings = [[], *([draw.randrange(CONFIG.vocab) for _ in range(20)] for _ in range(3))]
    questions = []
    for _ in range(num):
        own = [draw.randrange(CONFIG.vocab) for _ in range(draw.randint(1, 20))]
        request = Request(
            prompt=draw.choice(beginnings) + own,
            max_new_tokens=draw.randint(1, 40),
            sampling=Sampling(draw.choice([0.0, 1.0]), top_p=0.9, seed=draw.getrandbits(31)),
            stop=frozenset(draw.choice([[], [3, 4]])),
        )
        questions.append((request, naive(model, request)))
    return questions


@dataclass
class Asked:
    """A request of the traffic: what it should get, and what it got."""

    answer: list[int]
    tokens: list[int] = field(default_factory=list)
    end: str | None = None  # a finish_reason, or "cancelled"
    error: str = ""

    @property
    def fault(self):
        """Return the request's problem at the end; None if there is none."""
        if self.end is None:
            return f"it has not ended after {len(self.tokens)} tokens"
        is_whole = self.end in ("stop", "length")
        if self.tokens != (self.answer if is_whole else self.answer[: len(self.tokens)]):
            return f"it got {self.tokens} instead of {self.answer}"
        if self.end == "error" and not self.error:
            return "its error says nothing"
        return None


class Traffic:
    """Requests of clients, and their answers."""

    def __init__(self, router, questions, draw):
        self.router, self.questions, self.draw = router, questions, draw
        self.asked, self.leaving = {}, {}  # by id; leaving: the time
        self.num_refused = 0

    def ask(self, now_s):
        """One more request, if the router takes it. The client may leave within a second."""
        request, answer = self.draw.choice(self.questions)
        try:
            id = self.router.add(request)
        except QueueFull:
            self.num_refused += 1
            return
        self.asked[id] = Asked(answer)
        if self.draw.random() < IS_CANCELLED:
            self.leaving[id] = now_s + self.draw.random()

    def leave(self, now_s):
        """Cancel the requests of clients whose time has come."""
        for id in [id for id, at_s in self.leaving.items() if at_s <= now_s]:
            del self.leaving[id]
            if self.asked[id].end is None:
                self.router.cancel(id)
                self.asked[id].end = "cancelled"

    def receive(self):
        """Take what the router has."""
        for output in self.router.step():
            asked = self.asked[output.id]
            if output.token is not None:
                asked.tokens.append(output.token)
            asked.end, asked.error = output.finish_reason, output.error


def fail_one(replicas, draw):
    """Kill or freeze a rank of a replica that runs; the signal, or None where it ended before."""
    ranks = sum(replicas.pids, [])
    how = signal.SIGSTOP if draw.random() < IS_FROZEN else signal.SIGKILL
    with contextlib.suppress(ProcessLookupError, IndexError):
        os.kill(draw.choice(ranks), how)
        return how
    return None


def serve_traffic(replicas, questions, seconds, draw):
    """Traffic and failures for so long, then until all requests have ended, or a minute longer."""
    router = Router(replicas, by_prefix, max_unfinished=MAX_UNFINISHED)
    traffic, failures = Traffic(router, questions, draw), collections.Counter()
    begin_s, ask_s, fail_s = time.monotonic(), 0.0, SECONDS_PER_FAILURE / 2
    while (now_s := time.monotonic() - begin_s) < seconds or router.has_work:
        while ask_s <= min(now_s, seconds):
            ask_s += draw.expovariate(REQUESTS_PER_SECOND)
            traffic.ask(now_s)
        if fail_s <= min(now_s, seconds):
            fail_s += draw.expovariate(1 / SECONDS_PER_FAILURE)
            failures[fail_one(replicas, draw)] += 1
        traffic.leave(now_s)
        traffic.receive()
        if now_s > seconds + LONGEST_END_S:
            break
    return traffic, failures


def pages_in_use(replicas):
    """Return the pages in use by replicas once they have nothing to do."""
    until_s = time.monotonic() + LONGEST_END_S
    while len(replicas.ready) < NUM_REPLICAS or any(replicas.used_pages.values()):
        if time.monotonic() > until_s:
            break
        replicas.events(0.1)
    return sum(replicas.used_pages.values())


def resources():
    """Return the processes and files that this process holds, without what nobody uses any more."""
    gc.collect()
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    parents = dict(map(int, line.split()) for line in listed.splitlines())

    def is_ours(pid):
        return pid == os.getpid() or (pid in parents and is_ours(parents[pid]))

    return {
        "processes": sum(map(is_ours, parents)),
        "threads": threading.active_count(),
        "open files and ports": len(os.listdir("/dev/fd")),
        "folders": len(list(Path(tempfile.gettempdir()).glob(f"labkit-*-{os.getpid()}-*"))),
    }


def report(seconds, seed=0):
    """Print what happened; whether all requests ended as they should, and nothing is left."""
    torch.set_num_threads(1)  # with more, one waits for cores that ranks have
    draw = random.Random(seed)
    questions = draw_questions(draw, make_model(), 100)
    run(lambda world: None, 1, device="cpu")  # starts what stays: the server that forks ranks
    before = resources()
    options = {"num_ranks": NUM_RANKS, "restarts": 10**6, "patience_s": PATIENCE_S}
    options |= {"start_patience_s": PATIENCE_S}  # a rank may be frozen while it makes its engine
    with Replicas(make_engine, NUM_REPLICAS, **options) as replicas:
        traffic, failures = serve_traffic(replicas, questions, seconds, draw)
        num_pages, num_starts = pages_in_use(replicas), sum(replicas.num_starts)
    time.sleep(0.5)  # until threads of connections that are closed have ended
    left = {what: number - before[what] for what, number in resources().items()}
    left["pages"] = num_pages
    ends = collections.Counter(each.end for each in traffic.asked.values())
    faults = {id: each.fault for id, each in traffic.asked.items() if each.fault}
    print(
        f"{len(traffic.asked)} requests in {seconds:g} s, and {traffic.num_refused} refused since "
        f"{MAX_UNFINISHED} were not finished\n"
        f"  {failures[signal.SIGKILL]} ranks killed and {failures[signal.SIGSTOP]} frozen: "
        f"{num_starts} starts of {NUM_REPLICAS} replicas with {NUM_RANKS} ranks\n"
        f"  {traffic.router.num_moved} answers went on at another replica\n"
        f"  ended: {ends['stop'] + ends['length']} with all their tokens, {ends['cancelled']} "
        f"cancelled, {ends['error']} with an error\n"
        f"  with other tokens than naive generation, or without an end: {len(faults)}\n"
        f"  left at the end: " + ", ".join(f"{number} {what}" for what, number in left.items())
    )
    for id, fault in list(faults.items())[:5]:
        print(f"  request {id}: {fault}")
    return not faults and not any(number > 0 for number in left.values())


def main():
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=arguments.duration, default=600, help="of traffic; 600")
    chosen = parser.parse_args()
    return 0 if report(chosen.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
