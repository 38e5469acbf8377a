"""The same answers everywhere: caches, schedulers and layouts of ranks beside naive generation.

    python examples/serving_answers.py

Requests of different lengths share a cache that is too small for all of them, so some are
preempted. Their tokens are drawn by seeds, in float64, and equal those of a model that computes one
request at a time, all of its tokens in every forward. Afterwards all pages are free again. Exits
with 1 where this is not so. serving.py prints this table with others.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial

import torch

import labkit
from labkit.model import GPT, GPTConfig
from labkit.pipeline import PipelineGPT, gpipe, plan
from labkit.serving import (
    ContiguousCache,
    Decoder,
    DisaggregatedEngine,
    Engine,
    Leader,
    NoCache,
    PagedCache,
    PipelineDecoder,
    SwappingEngine,
    TensorParallelDecoder,
    chunked_prefill,
    continuous,
    follow,
    poisson_trace,
    preempting,
    prefill,
    priorities,
    static_batches,
)
from labkit.serving.requests import Generation, sample
from labkit.tensor_parallel import parallelize

TINY = GPTConfig(vocab=32, context=64, num_layers=2, hidden=16, num_heads=4, num_kv_heads=2)


def traffic(num):
    """Small requests of different lengths, some with a stop token, at different priorities."""
    trace = poisson_trace(num, 1.0, vocab=TINY.vocab, mean_prompt=8, mean_answer=8)
    requests = [replace(each, max_new_tokens=20) for _, each in trace]
    return [replace(each, priority=number % 3) for number, each in enumerate(requests)]


def tiny(model=None):
    """The model of the exact facts, with larger weights than at the start of training.

    With those, each token would predict itself.
    """
    model = model or GPT(TINY, dtype=torch.float64)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and ("blocks" in name or "position" in name):
                weight.mul_(20)
    return model


@torch.no_grad()
def naive(model, request):
    """The answer without a cache or another request."""
    generation = Generation(0, request)
    while not generation.finish_reason:
        logits_V = model(torch.tensor([generation.tokens]))[0, -1]
        token = sample(logits_V, request.sampling, generation.generator)
        generation.tokens.append(token)
    return generation.tokens[len(request.prompt) :]


def paged(decoder, num_pages=12):
    """A cache that is too small for all requests at once."""
    return PagedCache(decoder.cache_config, num_pages, 4, torch.float64)


def on_one_rank():
    """By name, an engine of each rung."""
    decoder = Decoder(tiny())
    contiguous = partial(ContiguousCache, TINY, 128, torch.float64)
    return {
        "no cache, continuous": Engine(decoder, NoCache(TINY), continuous),
        "contiguous, static batches": Engine(decoder, contiguous(), static_batches),
        "contiguous, continuous": Engine(decoder, contiguous(), continuous),
        "pages, preempting": Engine(decoder, paged(decoder), preempting),
        "pages, swapping": SwappingEngine(
            decoder, paged(decoder), preempting, max_host_bytes=2**20
        ),
        "pages, chunked prefill": Engine(
            decoder, paged(decoder), partial(chunked_prefill, token_budget=9)
        ),
        "pages, priorities": Engine(decoder, paged(decoder), priorities),
    }


def lead(world, decoder, requests):
    """Serve on all ranks: the answers, and whether all pages are free again; from rank 0."""
    engine = Engine(decoder, paged(decoder), partial(chunked_prefill, token_budget=9))
    if world.rank:
        return follow(engine, world)
    with Leader(engine, world) as leader:
        return served(leader, requests)


def tensor_parallel(world, requests):
    """Each rank has some of the heads."""
    return lead(world, TensorParallelDecoder(parallelize(tiny(), world)), requests)


def pipelined(world, requests):
    """Each rank has some of the layers."""
    schedule = plan(gpipe, num_ranks=world.size, num_microbatches=1)
    model = tiny(PipelineGPT(TINY, schedule, world.rank, dtype=torch.float64))
    return lead(world, PipelineDecoder(model, world), requests)


def disaggregated(world, requests):
    """Rank 1 computes prompts, rank 0 single tokens."""
    decoder = Decoder(tiny())
    cache = paged(decoder)
    if world.rank:
        return prefill(decoder, cache, world)
    with DisaggregatedEngine(decoder, cache, preempting, world) as engine:
        return served(engine, requests)


def on_two_ranks(world, requests):
    """By layout, what rank 0 has found."""
    layouts = {
        "tensor parallel, 2 ranks": tensor_parallel,
        "pipeline, 2 ranks": pipelined,
        "prefill apart, 2 ranks": disaggregated,
    }
    return {name: serve(world, requests) for name, serve in layouts.items()}


def served(engine, requests):
    """The answers, and whether as many pages are free as before."""
    num_free = engine.num_free_pages
    return engine.generate(requests), engine.num_free_pages == num_free


def exact_answers(num):
    """Print a row for each engine; whether all answers are naive ones and no page is lost."""
    print(f"answers to {num} requests beside naive generation, float64")
    requests = traffic(num)
    model = tiny()
    expected = [naive(model, request) for request in requests]
    found = {name: served(engine, requests) for name, engine in on_one_rank().items()}
    # On the CPU also on a machine with a GPU; the timeout is for a busy machine.
    found |= labkit.run(on_two_ranks, 2, (requests,), device="cpu", timeout=300).values[0]
    for name, (answers, is_free) in found.items():
        equal = sum(each == other for each, other in zip(answers, expected, strict=True))
        print(f"  {name:28}{equal:4} equal   pages {'free again' if is_free else 'LOST'}")
    return all(answers == expected and is_free for answers, is_free in found.values())


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    torch.set_num_threads(1)  # the model is small
    sys.exit(0 if exact_answers(200) else 1)
