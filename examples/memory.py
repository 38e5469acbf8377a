"""Memory and traffic of every strategy: predicted, measured, residual.

    python examples/memory.py                 all of them, on 1, 2 and 4 ranks
    python examples/memory.py zero3 -n 2

Predictions are labkit.calc's, which knows nothing of the strategies. Measured are real steps of a
small GPT on real ranks: model states by labkit.memory.Meter, bytes sent from the journal.
"""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

import labkit
from labkit import calc
from labkit.comm import Timeline
from labkit.data_parallel import DDP
from labkit.memory import Meter
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW
from labkit.recompute import recompute
from labkit.zero import FullyShardedModule, Zero1Optimizer, Zero2Optimizer, on_disk

# Sizes that 4 divides: padding is in no formula.
CONFIG = GPTConfig(vocab=256, context=64, num_layers=4, hidden=96, num_heads=4)
NUM_SEQUENCES = 4  # on each rank
RATE = 1e-3
NUM_RANKS = (1, 2, 4)
Row = tuple[str, int, str, float, float]
"""(strategy, ranks, quantity, predicted, measured)"""


def ddp(world, module, folder):
    """Everything on every rank."""
    return DDP(module, world), AdamW(module.parameters(), RATE)


def zero1(world, module, folder):
    """Optimizer states sharded."""
    return module, Zero1Optimizer(module.parameters(), AdamW, world, learning_rate=RATE)


def zero1_bf16(world, module, folder):
    """Train as zero1 in bfloat16 with float32 masters and moments, the paper's recipe."""
    module = module.bfloat16()
    optimizer = Zero1Optimizer(
        module.parameters(), AdamW, world, master_dtype=torch.float32, learning_rate=RATE
    )
    return module, optimizer


def zero1_on_disk(world, module, folder):
    """Train as zero1 with the states in files."""
    optimizer_class = on_disk(AdamW, f"{folder}/{world.rank}")
    return module, Zero1Optimizer(module.parameters(), optimizer_class, world, learning_rate=RATE)


def zero2(world, module, folder):
    """Gradients sharded, too."""
    return module, Zero2Optimizer(
        module.parameters(), AdamW, world, bucket_bytes=2**18, learning_rate=RATE
    )


def zero3(world, module, folder):
    """Parameters sharded, too."""
    model = FullyShardedModule(module, world)
    return model, AdamW(model.parameters(), RATE)


def hybrid(world, module, folder):
    """zero3 in pairs of ranks, replicas across them."""
    pair, across = world.split(world.rank // 2), world.split(world.rank % 2)
    model = FullyShardedModule(module, pair, replicas=across)
    return model, AdamW(model.parameters(), RATE)


def full_recomputation(world, module, folder):
    """Train as ddp, keeping only the input of each block."""
    for block in module.blocks:
        block.forward = partial(recompute, block.forward)
    return ddp(world, module, folder)


STRATEGIES: dict[str, Callable] = {
    "ddp": ddp,
    "zero1": zero1,
    "zero1, bf16": zero1_bf16,
    "zero1, on disk": zero1_on_disk,
    "zero2": zero2,
    "zero3": zero3,
    "hybrid": hybrid,
    "full recomputation": full_recomputation,
}
LEVEL = {"zero1": 1, "zero1, bf16": 1, "zero1, on disk": 1, "zero2": 2, "zero3": 3, "hybrid": 3}


def measure(world: labkit.Group, strategy: str, folder: str) -> dict[str, float]:
    """Bytes that this rank holds, by kind; its second step is the region "step"."""
    model, optimizer = STRATEGIES[strategy](world, GPT(CONFIG), folder)
    tokens = torch.randint(CONFIG.vocab, (NUM_SEQUENCES, CONFIG.context))
    for name in ("first step", "step"):
        world.barrier()
        with world.region(name), Meter(model, optimizer) as meter:
            loss = loss_of(model, tokens)
            forward = meter.usage.at_end
            loss.backward()
            gradients = meter.usage.at_end["gradients"]
            optimizer.step()
            optimizer.zero_grad()
    usage = meter.usage
    return {
        "parameters": usage.peak_of("parameters"),
        "gradients": gradients,
        "optimizer states": usage.at_end["optimizer states"],
        "activations": forward["activations"],
    }


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy, in float32, of the tokens themselves; any tokens will do."""
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


def predict(strategy: str, num_ranks: int) -> dict[str, float]:
    """Return the same by calc, and the bytes sent in a step."""
    num = GPT(CONFIG).num_parameters
    recipe = "zero_paper" if "bf16" in strategy else "fp32"
    ranks = min(num_ranks, 2) if strategy == "hybrid" else num_ranks
    states = calc.model_state_bytes(num, recipe, zero=LEVEL.get(strategy, 0), dp=ranks)
    kept = sum(float(states.parts.get(each, 0)) for each in ("master", "moments"))
    itemsize = 2 if "bf16" in strategy else 4
    name = strategy.partition(",")[0] if strategy in LEVEL and strategy != "hybrid" else "ddp"
    name = "zero3" if strategy == "hybrid" else name
    sent = float(calc.step_traffic_bytes(name, num, ranks, itemsize=itemsize))
    if strategy == "hybrid":
        replicas = num_ranks // ranks
        sent += 2 * (replicas - 1) / replicas * itemsize * num / ranks
    return {
        "parameters": float(states["parameters"]),
        "gradients": float(states["gradients"]),
        "optimizer states": 0.0 if "disk" in strategy else kept,
        "activations": activations(strategy, itemsize),
        "sent in a step": sent,
    }


def activations(strategy: str, itemsize: int) -> float:
    """Return bytes kept from forward to backward: the blocks', the head's inputs, log-softmax."""
    c = CONFIG
    config = calc.ModelConfig(
        layers=c.num_layers,
        hidden=c.hidden,
        heads=c.num_heads,
        ffn=c.ffn,
        vocab=c.vocab,
        context=c.context,
        biases=False,
    )
    blocks = calc.activation_bytes(
        config,
        NUM_SEQUENCES,
        itemsize=itemsize,
        flash=True,
        dropout=False,
        recompute="full" if "recomputation" in strategy else "none",
    )
    head = calc.head_input_bytes(config, NUM_SEQUENCES, itemsize=itemsize)
    log_softmax = calc.logits_bytes(config, NUM_SEQUENCES, itemsize=itemsize)["log-softmax"]
    return float(blocks + head + log_softmax)


def rows_of(strategy: str, num_ranks: int) -> list[Row]:
    """One run, and a row for each quantity: of the rank for which it is largest."""
    with tempfile.TemporaryDirectory() as folder:
        result = labkit.run(measure, num_ranks, (strategy, folder), timeout=600)
    measured = {
        quantity: max(value[quantity] for value in result.values) for quantity in result.values[0]
    }
    measured["sent in a step"] = max(map(sent_in_step, result.timeline))
    return [
        (strategy, num_ranks, quantity, predicted, measured[quantity])
        for quantity, predicted in predict(strategy, num_ranks).items()
    ]


def sent_in_step(timeline: Timeline) -> int:
    """Bytes that a rank has sent within the region."""
    return sum(each.sent_bytes for each in timeline.within("step"))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = ", ".join(map(repr, STRATEGIES))
    parser.add_argument("strategy", nargs="*", help=f"some of {names}; else all")
    parser.add_argument("-n", type=int, choices=NUM_RANKS, action="append", help="ranks; else all")
    given = parser.parse_args()
    if unknown := set(given.strategy) - set(STRATEGIES):
        parser.error(f"{', '.join(map(repr, unknown))}: choose among {names}")
    print(f"{'strategy':<20}{'ranks':>6}  {'bytes of one rank':<18}", end="")
    print(f"{'predicted':>12}{'measured':>12}{'residual':>10}")
    for strategy in given.strategy or STRATEGIES:
        for num_ranks in given.n or NUM_RANKS:
            for _, _, quantity, predicted, measured in rows_of(strategy, num_ranks):
                residual = (measured - predicted) / predicted if predicted else float(measured)
                print(f"{strategy:<20}{num_ranks:>6}  {quantity:<18}", end="")
                print(f"{predicted:>12,.0f}{measured:>12,.0f}{residual:>10.2%}", flush=True)


if __name__ == "__main__":
    main()
