"""Check the claims about serving: one table for each.

    python examples/serving.py            all of it: about twenty minutes
    python examples/serving.py --quick    without trainings, long sweeps and killed processes: 40 s

- answers of every cache, scheduler and layout of ranks are those of naive generation, in float64
  (serving_answers.py)
- slots of a cache that hold tokens, before and after paging, beside calc's formula
- static batches beside continuous batching: passes, tokens per second
- prompts in chunks: time to the first token, and between tokens, beside their prediction
- fewer bits: bytes, errors; speculative decoding: tokens of a pass beside the formula
- a server that the openai client asks
- without --quick: quantization-aware training; latency against throughput; ten minutes of traffic
  with cancellations and killed ranks (serving_traffic.py); transformers on the same weights
  (benchmarks/serving.py)

Exits with 1 where an exact fact is not so. Times and ratios are medians of alternating rounds with
the least and the most; they decide nothing. What needs an extra that is missing says "not run".
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from serving_answers import exact_answers, naive, paged, tiny, traffic

from labkit import calc, measure, serving
from labkit.calc.units import bytes_text, seconds_text
from labkit.measure.arrival_sweep import Latencies
from labkit.model import GPT, GPTConfig
from labkit.serving import (
    Arrival,
    ContiguousCache,
    Decoder,
    Engine,
    Int8PagedCache,
    PagedCache,
    Request,
    Sampling,
    SpeculativeEngine,
    chunked_prefill,
    continuous,
    logits_error,
    poisson_trace,
    preempting,
    quantize,
    replay,
    static_batches,
    weight_bytes,
)
from labkit.serving.quantized import rounded
from labkit.train import TrainConfig

ROOT = Path(__file__).parents[1]
MODEL = GPTConfig(context=512, num_layers=4, hidden=128, num_heads=4)
MAX_RUNNING = 8


class WatchedDecoder(Decoder):
    """Notes what the slots are used for after each pass, before a request ends."""

    def __init__(self, model, lengths, wanted):
        super().__init__(model)
        self.lengths, self.wanted, self.uses = lengths, wanted, []

    def __call__(self, batch, cache):
        """Call the decoder, and note the use of the cache."""
        logits_SV = super().__call__(batch, cache)
        final = {each.sequence: self.lengths[each.sequence] for each in batch}
        self.uses.append(cache.slot_use(final, self.wanted))
        return logits_SV


def waste(trace, answers):
    """Print what slots are used for; whether calc says the same of those that are held."""
    requests = [request for _, request in trace]
    prompts, num_answers = [len(each.prompt) for each in requests], list(map(len, answers))
    lengths = [p + a - 1 for p, a in zip(prompts, num_answers, strict=True)]
    most, num_slots, model = requests[0].max_new_tokens, 512, GPT(MODEL)
    cases = {
        "contiguous": (
            ContiguousCache(MODEL, num_slots),
            continuous,
            calc.contiguous_cache_use(prompts, num_answers, most),
        ),
        "pages of 16": (
            PagedCache(MODEL, num_slots // 16),
            preempting,
            calc.paged_cache_use(prompts, num_answers, 16),
        ),
    }
    print(f"\nslots of a cache of {num_slots:,}, one trace of {len(requests)}: mean over passes")
    kinds = ("cached", "reserved", "internal", "external", "free")
    print(f"  {'':13}{'passes':>7}{''.join(f'{kind:>10}' for kind in kinds)}   of held: calc")
    is_right = True
    for name, (cache, scheduler, predicted) in cases.items():
        decoder = WatchedDecoder(model, lengths, max(prompts) + most)
        engine = Engine(decoder, cache, partial(scheduler, max_running=64))
        is_right &= engine.generate(requests) == answers
        slots = {kind: sum(getattr(use, kind) for use in decoder.uses) for kind in kinds}
        held = {kind: slots[kind] for kind in predicted.parts}
        is_right &= held == {kind: part.value for kind, part in predicted.parts.items()}
        num = len(decoder.uses)
        shares = "".join(f"{slots[kind] / num / num_slots:10.1%}" for kind in kinds)
        share = held["cached"] / sum(held.values())
        print(f"  {name:13}{num:7}{shares}   {share:.1%}: {predicted}")
    return is_right


def recorded(scheduler, requests, model):
    """An engine with room for all, which has served these requests, and their answers."""
    cache = PagedCache(model.config, 512)
    engine = measure.RecordedEngine(Decoder(model), cache, scheduler)
    return engine, engine.generate(requests)


def batching(trace, rounds):
    """Print passes and tokens per second; whether there are as many passes as the lengths say."""
    requests, model = [request for _, request in trace], GPT(MODEL)
    schedulers = {
        "static": partial(static_batches, max_running=MAX_RUNNING),
        "continuous": partial(continuous, max_running=MAX_RUNNING),
    }
    recorded(continuous, requests, model)  # warms up
    engines = {name: [] for name in schedulers}
    for _ in range(rounds):
        for name, scheduler in schedulers.items():
            engine, answers = recorded(scheduler, requests, model)
            engines[name].append(engine)
    lengths = list(map(len, answers))
    fitted = fit(*engines.values())
    seconds = {name: [sum(each.seconds) for each in some] for name, some in engines.items()}
    predicted = {name: sum(fitted_seconds(some[0], fitted)) for name, some in engines.items()}
    passes = {name: len(some[0].passes) for name, some in engines.items()}
    print(f"\n{len(requests)} requests that are all there, at most {MAX_RUNNING} at once")
    for name in schedulers:
        rates = [sum(lengths) / each for each in seconds[name]]
        words = f"{spread(rates, '.0f')} tokens/s, fit {sum(lengths) / predicted[name]:.0f}"
        print(f"  {name:12}{passes[name]:5} passes, {words}")
    ratios = [a / b for a, b in zip(seconds["static"], seconds["continuous"], strict=True)]
    by_fit = predicted["static"] / predicted["continuous"]
    print(f"  continuous is {spread(ratios, '.2f')} times as fast; by the fit {by_fit:.2f}")
    return passes == {"static": static_passes(lengths), "continuous": continuous_passes(lengths)}


def fit(*alike):
    """The time of a pass, from lists of engines that made the same passes: the median of each."""
    passes, seconds = [], []
    for engines in alike:
        passes += engines[0].passes
        of_rounds = zip(*(engine.seconds for engine in engines), strict=True)
        seconds += map(statistics.median, of_rounds)
    return measure.fit_pass_time(passes, seconds)


def fitted_seconds(engine, fitted):
    """Yield the fitted seconds of each pass."""
    for batch in engine.passes:
        yield fitted(num_tokens(batch), sum(entry.start for entry in batch))


def static_passes(lengths):
    """A batch lasts as long as its longest answer."""
    starts = range(0, len(lengths), MAX_RUNNING)
    return sum(max(lengths[start : start + MAX_RUNNING]) for start in starts)


def continuous_passes(lengths):
    """Each answer takes the place that is free first."""
    ends = [0] * MAX_RUNNING
    for length in lengths:
        heapq.heappush(ends, heapq.heappop(ends) + length)
    return max(ends)


def long_prompts(num):
    """Every eighth request has a prompt of 384 tokens; the others are short."""
    draw, requests = random.Random(1), []
    for number in range(num):
        length = 384 if number % 8 == 4 else draw.randint(4, 24)
        prompt = [draw.randrange(MODEL.vocab) for _ in range(length)]
        requests.append(Request(prompt, 32, Sampling(temperature=1.0, seed=number)))
    return requests


def chunks(num, rounds):
    """Print latencies with whole prompts and with chunks; whether the budget bounds each pass."""
    budget, requests, model = 64, long_prompts(num), GPT(MODEL)
    schedulers = {
        "whole prompts": partial(preempting, max_running=MAX_RUNNING),
        f"chunks, {budget}": partial(chunked_prefill, max_running=MAX_RUNNING, token_budget=budget),
    }
    engines = {name: [] for name in schedulers}
    for _ in range(rounds):
        for name, scheduler in schedulers.items():
            engine, answers = recorded(scheduler, requests, model)
            engines[name].append(engine)
    whole, in_chunks = engines.values()
    fitted = fit(whole, in_chunks)
    gap_s = 1.2 * min(sum(engine.seconds) for engine in whole) / num
    draw, at_s, trace = random.Random(2), 0.0, []
    for request in requests:
        at_s += draw.expovariate(1 / gap_s)
        trace.append(Arrival(at_s, request))
    measured = {name: [] for name in schedulers}
    for _ in range(rounds):
        for name, scheduler in schedulers.items():
            engine = Engine(Decoder(model), PagedCache(MODEL, 512), scheduler)
            measured[name].append(Latencies.of(replay(engine, trace)))
    print(f"\n{num} requests, of which {num // 8} have prompts of 384 tokens; measured, fit")
    for name, scheduler in schedulers.items():
        cache = PagedCache(MODEL, 512)
        timings = measure.predict(Decoder(model), cache, scheduler, trace, answers, fitted)
        expected = Latencies.of(timings)
        for field, title in {
            "ttft_p50_s": "TTFT p50",
            "ttft_p90_s": "TTFT p90",
            "itl_p50_s": "ITL p50",
            "itl_p99_s": "ITL p99",
        }.items():
            values = sorted(getattr(each, field) for each in measured[name])
            low, middle, high = values[0], statistics.median(values), values[-1]
            words = f"{seconds_text(middle)} ({seconds_text(low)} to {seconds_text(high)})"
            print(f"  {name:15}{title:10}{words:34}{seconds_text(getattr(expected, field)):>10}")
    most_whole, most = (max(map(num_tokens, each[0].passes)) for each in (whole, in_chunks))
    print(f"  most tokens of a pass: {most_whole} and {most}")
    return most <= budget


def num_tokens(batch):
    """Return the tokens of a pass."""
    return sum(len(entry.tokens) for entry in batch)


def bits():
    """Print bytes and errors of weights and caches; whether the bytes are as they should be."""
    model, tokens_BT = GPT(MODEL), torch.randint(256, (4, 64))
    print("\nfewer bits: bytes, and the error of the logits beside float32")
    for name, arguments in {"float32": None, "int8": (8,), "int4, groups of 32": (4, 32)}.items():
        small = model if arguments is None else quantize(model, *arguments)
        error = logits_error(model, small, tokens_BT)
        print(f"  weights {name:20}{bytes_text(weight_bytes(small)):>9}   error {error:.2%}")
    exact, rounded = (kind(MODEL, 64) for kind in (PagedCache, Int8PagedCache))
    token = float(calc.kv_cache_bytes_per_token(model_config(MODEL), 4))
    for name, cache in {"float32": exact, "int8": rounded}.items():
        print(f"  cache   {name:20}{bytes_text(cache.bytes_per_token):>9} a token")
    num_scales = 2 * MODEL.num_layers * MODEL.kv_heads
    return exact.bytes_per_token == token and (
        rounded.bytes_per_token == token / 4 + 2 * num_scales
    )


def model_config(config):
    """The same sizes as calc has them."""
    return calc.ModelConfig(
        layers=config.num_layers,
        hidden=config.hidden,
        heads=config.num_heads,
        kv_heads=config.kv_heads,
        vocab=config.vocab,
        context=config.context,
    )


def speculation():
    """Print tokens of a pass; whether greedy answers are those without speculation."""
    target, sampled = tiny(), traffic(24)
    greedy = [replace(each, sampling=Sampling(temperature=0)) for each in sampled]
    expected = [naive(target, request) for request in greedy]
    print(
        "\nspeculation with k drafts: tokens of a pass of the target, measured and by the formula"
    )
    is_right = True
    for bits, num_drafts in ((8, 4), (3, 4), (2, 4), (2, 2)):
        draft = tiny()
        for block in draft.blocks:
            for weight in block.parameters():
                weight.data = rounded(weight.data, bits) if weight.dim() == 2 else weight.data
        small = Decoder(draft)
        speculate = partial(
            SpeculativeEngine, Decoder(target), scheduler=preempting, num_drafts=num_drafts
        )
        engines = [
            speculate(cache=paged(small, 99), draft=small, draft_cache=paged(small, 99))
            for _ in range(2)
        ]
        is_right &= engines[0].generate(greedy) == expected
        engines[1].generate(sampled)
        rate = engines[1].acceptance_rate
        formula = calc.speculative_tokens(rate, num_drafts)
        print(
            f"  draft: the target in {bits} bits, k = {num_drafts}   accepted {rate:4.0%}   "
            f"{engines[1].mean_acceptance_length:.2f}, {float(formula):.2f}"
        )
    return is_right


def server():
    """Print what the openai client gets; whether it is what the engine answers."""
    print("\na server and the openai client")
    missing = [name for name in ("fastapi", "uvicorn", "openai") if find_spec(name) is None]
    if missing:
        print(f"  not run: {', '.join(missing)} not installed")
        return True
    import openai

    model, prompt = tiny(GPT(MODEL)), "def "
    request = Request(list(prompt.encode()), 24)
    (expected,) = Engine(Decoder(model), PagedCache(MODEL, 8), continuous).generate([request])
    with serving.serve(model, name="tiny") as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none")
        ask = partial(
            client.completions.create, model="tiny", prompt=prompt, max_tokens=24, temperature=0
        )
        whole = ask()
        streamed = "".join(event.choices[0].text for event in ask(stream=True))
    text = bytes(expected).decode(errors="replace")
    print(
        f"  {whole.usage.completion_tokens} tokens, whole and streamed: {whole.choices[0].text!r}"
    )
    return whole.choices[0].text == streamed == text


def aware_training():
    """Print the losses of a model whose rounding was trained, or not."""
    config = GPTConfig(context=64, num_layers=2, hidden=64)
    settings = TrainConfig(num_steps=400, num_sequences=16, learning_rate=2e-3)
    print(
        "\nloss on unseen text after as many steps of training (quantization-aware: the last half)"
    )
    for bits in (4, 3, 2):
        losses = serving.compare_quantized_training(config, settings, bits)
        words = ", ".join(
            f"{name.replace('_', ' ')} {loss:.3f}" for name, loss in losses._asdict().items()
        )
        print(f"  {bits} bits: {words}")


def sweep():
    """Print latency against throughput, measured and predicted."""
    trace = poisson_trace(200, 1.0)
    for name, scheduler in {"static batches": static_batches, "continuous": continuous}.items():
        print(f"\n{name}, one trace at several loads")
        measured = measure.serving(GPT(MODEL), scheduler, trace=trace, num_pages=256)
        print(measured.table())


def program(*command):
    """Run another program, which prints its own table; whether it ends well."""
    print(f"\n{' '.join(command)}", flush=True)
    return subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode == 0


def spread(values, digits):
    """Median, and the range."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:{digits}} ({low:{digits}} to {high:{digits}})"


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a sample of each")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)  # the models are small
    trace = poisson_trace(40 if quick else 200, 1.0)
    _, answers = recorded(continuous, [request for _, request in trace], GPT(MODEL))
    rounds = 3 if quick else 9
    is_right = [
        exact_answers(16 if quick else 200),
        waste(trace, answers),
        batching(trace, rounds),
        chunks(24 if quick else 120, rounds),
        bits(),
        speculation(),
        server(),
    ]
    if not quick:
        aware_training()
        sweep()
        is_right.append(program("examples/serving_traffic.py"))
        program("benchmarks/serving.py")
    return 0 if all(is_right) else 1


if __name__ == "__main__":
    sys.exit(main())
