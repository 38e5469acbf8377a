"""The lab's engine beside Hugging Face transformers: tokens of answers per second on a CPU.

    labkit            Engine with PagedCache and the scheduler `continuous`, and the head's weight
                      stored by inputs (`store_head_by_inputs`), as transformers stores all of the
                      blocks' weights (Conv1D)
    labkit, trained   the same, with the weight as training leaves it
    generate          model.generate: one static batch, padded on the left where prompts differ
    generate_batch    transformers' own continuous batching, on pages

All have the same random weights, a GPT-2 of 12 layers with 768 features in float32, and answer the
same prompts greedily: 1, 8 and 32 requests of equal lengths, which suits a static batch best, and
32 of mixed lengths. There a static batch computes padding, and goes on until its longest answer.

One thread for all, so that a busy machine disturbs little what is counted: besides the seconds, the
processor time, of which a call takes as much whatever else runs. A call has its weights, and
generate_batch its running manager; caches are made in the call. One run, alternating, medians.

`python benchmarks/serving.py` takes about ten minutes; `--small` a model of 4 layers with 256
features, in half a minute.
"""

from __future__ import annotations

import contextlib
import logging
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from measure import command_line, machine

from labkit import arguments
from labkit.model import GPT, GPTConfig
from labkit.serving import Decoder, Engine, PagedCache, Request, continuous
from labkit.serving.decoder import store_head_by_inputs

try:
    import transformers
except ImportError:
    transformers = None

CONFIG = GPTConfig(vocab=50257, context=1024, num_layers=12, hidden=768, num_heads=12)
SMALL = GPTConfig(vocab=8192, context=256, num_layers=4, hidden=256, num_heads=4)
NUM_TOKENS, PAGE = 32, 16
Answers = list[list[int]]
Serve = Callable[[list[Request]], Answers]


def workloads(config: GPTConfig) -> dict[str, list[Request]]:
    """By name: 1, 8 and 32 requests of equal lengths, and 32 of mixed ones."""
    draw = random.Random(0)

    def request(prompt: int, answer: int) -> Request:
        return Request([draw.randrange(config.vocab) for _ in range(prompt)], answer)

    found = {f"{num}": [request(NUM_TOKENS, NUM_TOKENS) for _ in range(num)] for num in (1, 8, 32)}
    lengths = range(NUM_TOKENS // 4, 2 * NUM_TOKENS - NUM_TOKENS // 4 + 1)
    found["32 mixed"] = [request(draw.choice(lengths), draw.choice(lengths)) for _ in range(32)]
    return found


def labkit_engine(model: GPT, requests: list[Request]) -> Answers:
    """Return a new engine with as many pages as all requests need."""
    num_pages = sum(-(-(len(r.prompt) + r.max_new_tokens) // PAGE) for r in requests)
    cache = PagedCache(model.config, num_pages, PAGE)
    scheduler = partial(continuous, max_running=len(requests))
    return Engine(Decoder(model), cache, scheduler).generate(requests)


def same_model(model: GPT) -> transformers.GPT2LMHeadModel:
    """transformers' GPT-2 with the weights of a GPT, and biases of zero."""
    config = model.config
    peer = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocab,
            n_positions=config.context,
            n_embd=config.hidden,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            activation_function="gelu",
            attn_implementation="sdpa",
            bos_token_id=None,
            eos_token_id=None,
        )
    ).eval()
    weights = {
        "transformer.wte.weight": model.embedding.token.weight,
        "transformer.wpe.weight": model.embedding.position.weight,
        "transformer.ln_f.weight": model.norm.weight,
    }
    for layer, block in enumerate(model.blocks):
        of = block.attention
        qkv = torch.cat([of.query.weight, of.key.weight, of.value.weight])
        weights |= {
            f"transformer.h.{layer}.{name}.weight": weight
            for name, weight in {
                "ln_1": block.attention_norm.weight,
                "attn.c_attn": qkv.T,  # Conv1D has its weights as (in, out)
                "attn.c_proj": of.out.weight.T,
                "ln_2": block.mlp_norm.weight,
                "mlp.c_fc": block.mlp.up.weight.T,
                "mlp.c_proj": block.mlp.down.weight.T,
            }.items()
        }
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            parameter.copy_(weights[name]) if name in weights else parameter.zero_()
    return peer


def generate(peer: transformers.GPT2LMHeadModel, requests: list[Request]) -> Answers:
    """One static batch."""
    longest = max(len(request.prompt) for request in requests)
    padding = [longest - len(request.prompt) for request in requests]
    tokens = [[0] * pad + list(r.prompt) for pad, r in zip(padding, requests, strict=True)]
    mask = [[0] * pad + [1] * (longest - pad) for pad in padding]
    found = peer.generate(
        torch.tensor(tokens),
        attention_mask=torch.tensor(mask),
        max_new_tokens=max(request.max_new_tokens for request in requests),
        do_sample=False,
        pad_token_id=0,
    )
    return [
        row[longest : longest + request.max_new_tokens]
        for row, request in zip(found.tolist(), requests, strict=True)
    ]


@contextlib.contextmanager
def continuous_batching(
    peer: transformers.GPT2LMHeadModel, requests: list[Request]
) -> Iterator[Serve]:
    """Yield a function that serves these requests on a running manager with enough pages and
    tokens."""
    num_tokens = sum(len(request.prompt) + request.max_new_tokens for request in requests)
    manager = peer.init_continuous_batching(
        generation_config=transformers.GenerationConfig(
            do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1
        ),
        continuous_batching_config=transformers.ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=num_tokens // PAGE + 2 * len(requests),
            max_batch_tokens=max(64, sum(len(request.prompt) for request in requests)),
        ),
    )
    manager.start()

    def serve(requests: list[Request]) -> Answers:
        ids = [
            manager.add_request(list(r.prompt), max_new_tokens=r.max_new_tokens) for r in requests
        ]
        answers = {}
        while len(answers) < len(ids):
            if (result := manager.get_result(timeout=60)) is not None and result.is_finished():
                answers[result.request_id] = list(result.generated_tokens)
        return [answers[id] for id in ids]

    try:
        yield serve
    finally:
        manager.stop(block=True)


def compare(
    candidates: Mapping[str, Serve], requests: list[Request], rounds: int
) -> dict[str, tuple[list[float], list[float]]]:
    """By name: seconds and seconds of processor time of each round, after one to warm up.

    RuntimeError: two candidates answer differently.
    """
    answers = {name: serve(requests) for name, serve in candidates.items()}
    for name, found in answers.items():
        if found != answers["labkit"]:
            raise RuntimeError(f"{name} answers differently than labkit")
    times = {name: ([], []) for name in candidates}
    for _ in range(rounds):
        for name, serve in candidates.items():
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            serve(requests)
            times[name][0].append(time.perf_counter() - began_s)
            times[name][1].append(time.process_time() - began_cpu_s)
    return times


def report(config: GPTConfig, rounds: int) -> None:
    """Print a row for each workload and candidate."""
    torch.set_num_threads(1)
    model, stored = GPT(config), store_head_by_inputs(GPT(config))
    peer = None if transformers is None else same_model(model)
    print(f"Medians of {rounds} rounds, one thread. {machine()}")
    size = f"{config.num_layers} layers, {config.hidden} features, vocabulary of {config.vocab:,}"
    version = "not run: not installed" if peer is None else transformers.__version__
    print(f"{model.num_parameters / 1e6:.1f} M parameters, {size}; transformers {version}")
    print(f"{'requests':10}{'':16}{'tokens/s':>10}{'tokens/CPU s':>14}   speed beside labkit")
    for name, requests in workloads(config).items():
        with contextlib.ExitStack() as stack:
            candidates: dict[str, Serve] = {
                "labkit": partial(labkit_engine, stored),
                "labkit, trained": partial(labkit_engine, model),
            }
            if peer is not None:
                candidates["generate"] = partial(generate, peer)
                batching = continuous_batching(peer, requests)
                candidates["generate_batch"] = stack.enter_context(batching)
            times = compare(candidates, requests, rounds)
        print_rows(name, times, sum(request.max_new_tokens for request in requests))


def print_rows(
    name: str, times: Mapping[str, tuple[list[float], list[float]]], num_tokens: int
) -> None:
    """Rates, and how many times as fast as labkit; by round: from least to most."""
    for candidate, both in times.items():
        wall, cpu = (num_tokens / statistics.median(seconds) for seconds in both)
        line = f"{name:10}{candidate:16}{wall:10.1f}{cpu:14.1f}"
        if candidate != "labkit":
            for seconds, ours in zip(both, times["labkit"], strict=True):
                ratios = sorted(o / s for s, o in zip(seconds, ours, strict=True))
                middle = statistics.median(ratios)
                line += f"   {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(line, flush=True)


def main() -> None:
    """Print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--small", action="store_true", help="a model of 4 layers")
    parser.add_argument("--rounds", type=arguments.count, default=5, help="5")
    chosen = parser.parse_args()
    logging.disable(logging.WARNING)
    report(SMALL if chosen.small else CONFIG, chosen.rounds)


if __name__ == "__main__":
    main()
