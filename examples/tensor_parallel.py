"""Traffic and memory of tensor parallelism: predicted, measured, residual, on real ranks.

    python examples/tensor_parallel.py            1, 2 and 4 ranks, both forms
    python examples/tensor_parallel.py -n 4

Predictions are labkit.calc's, which knows nothing of the layers. Measured is a real step of a small
GPT: collectives and bytes from the journal, what is kept for backward by labkit.memory.Meter. The
last rows are two layers, in the paper's order and with the row layer first.
"""

import argparse
from collections import Counter

import torch
from torch import nn

import labkit
from labkit import calc
from labkit.calc.traffic.tensor import tensor_parallel_collectives
from labkit.data import Batch
from labkit.memory import Meter
from labkit.model import GPT, GPTConfig
from labkit.tensor_parallel import (
    LIBRARY,
    RING,
    ColumnLinear,
    RowLinear,
    gather_features,
    parallelize,
    share_features,
)

# Sizes that 4 divides: what fills up is in no formula of activations.
CONFIG = GPTConfig(vocab=256, context=64, num_layers=4, hidden=96, num_heads=8, num_kv_heads=4)
NUM_SEQUENCES = 2
NUM_RANKS = (1, 2, 4)
Row = tuple[str, int, str, float, float]
"""(form, ranks, quantity, predicted, measured)"""


def sizes() -> calc.ModelConfig:
    """Return the same model, as calc knows it."""
    c = CONFIG
    return calc.ModelConfig(
        layers=c.num_layers,
        hidden=c.hidden,
        heads=c.num_heads,
        kv_heads=c.num_kv_heads,
        ffn=c.ffn,
        vocab=c.vocab,
        context=c.context,
        biases=False,
    )


def measure(world: labkit.Group, sequence_parallel: bool, counts: bool) -> float:
    """Return a step; its regions are "forward" and "backward". Returns the bytes kept between them.

    counts: by the backend's collectives, each of which is one entry of the journal; otherwise by
    those that send what the paper says.
    """
    backend = LIBRARY if counts else RING
    model = parallelize(GPT(CONFIG), world, sequence_parallel=sequence_parallel, backend=backend)
    tokens_BT = torch.randint(CONFIG.vocab, (NUM_SEQUENCES, CONFIG.context + 1))
    tokens_BT = world.broadcast(tokens_BT)
    batch = Batch(tokens_BT[:, :-1], tokens_BT[:, 1:])
    with Meter(model) as meter:
        with world.region("forward"):
            loss = model.loss(batch)
        kept = meter.usage.at_end["activations"]
        with world.region("backward"):
            loss.backward()
    return kept


def predicted_activations(num_ranks: int, sequence_parallel: bool) -> float:
    """Return bytes of the layers, the last norm, the head, and this rank's part of the softmax."""
    options = {"tp": num_ranks, "sequence_parallel": sequence_parallel, "itemsize": 4}
    config = sizes()
    layers = calc.activation_bytes(config, NUM_SEQUENCES, flash=True, dropout=False, **options)
    head = calc.head_input_bytes(config, NUM_SEQUENCES, **options)
    softmax = calc.logits_bytes(config, NUM_SEQUENCES, num_ranks)["log-softmax"]
    return float(layers + head + softmax)


def rows_of(num_ranks: int, sequence_parallel: bool) -> list[Row]:
    """Two runs of the same step, and a row for each quantity, of the rank that has most."""
    form = "sequence parallel" if sequence_parallel else "replicated"
    rows: list[Row] = []
    counted = labkit.run(measure, num_ranks, (sequence_parallel, True))
    expected = tensor_parallel_collectives(CONFIG.num_layers, sequence_parallel)
    for phase, numbers in expected.items():
        found = Counter(op.kind for op in counted.timeline[0].within(phase))
        for kind in sorted({*numbers, *found}):
            rows.append((form, num_ranks, f"{kind} {phase}", numbers.get(kind, 0), found[kind]))
    sent = labkit.run(measure, num_ranks, (sequence_parallel, False))
    measured = max(
        sum(op.sent_bytes for phase in expected for op in timeline.within(phase))
        for timeline in sent.timeline
    )
    predicted = calc.tensor_parallel_traffic_bytes(
        sizes(), NUM_SEQUENCES, num_ranks, itemsize=4, sequence_parallel=sequence_parallel
    )
    rows.append((form, num_ranks, "bytes sent", float(predicted), measured))
    activations = predicted_activations(num_ranks, sequence_parallel)
    rows.append((form, num_ranks, "activations", activations, max(counted.values)))
    return rows


def two_layers(world: labkit.Group, row_first: bool) -> None:
    """Two layers without biases, forward and backward, in the one order or the other."""
    torch.manual_seed(0)  # the same x and the same layers on every rank
    D, F_ = CONFIG.hidden, CONFIG.ffn_hidden
    x = torch.randn(NUM_SEQUENCES, CONFIG.context, D, requires_grad=True)
    up, down = nn.Linear(D, F_, bias=False), nn.Linear(F_, D, bias=False)
    if not row_first:
        y = ColumnLinear(up, world)(x)
        RowLinear(down, world)(nn.functional.gelu(y)).sum().backward()
        return
    y = RowLinear(up, world)(share_features(x, world))
    z = ColumnLinear(down, world)(nn.functional.gelu(y))
    gather_features(z, D, world).sum().backward()


def rows_of_two_layers(num_ranks: int) -> list[Row]:
    """Bytes of a column and a row layer, in either order."""
    tokens, rows = NUM_SEQUENCES * CONFIG.context, []
    for row_first in (False, True):
        name = "row, then column" if row_first else "column, then row"
        predicted = calc.two_layers_traffic_bytes(
            tokens, CONFIG.hidden, CONFIG.ffn_hidden, num_ranks, itemsize=4, row_first=row_first
        )
        measured = labkit.run(two_layers, num_ranks, (row_first,)).traffic[0].sent_bytes
        rows.append((name, num_ranks, "bytes sent", float(predicted), float(measured)))
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", type=int, choices=NUM_RANKS, action="append", help="ranks; else all")
    chosen = parser.parse_args().n or NUM_RANKS
    print(f"{'form':<19}{'ranks':>6}  {'quantity':<26}", end="")
    print(f"{'predicted':>12}{'measured':>12}{'residual':>10}")
    for num_ranks in chosen:
        rows = rows_of(num_ranks, False) + rows_of(num_ranks, True) + rows_of_two_layers(num_ranks)
        for form, _, quantity, predicted, measured in rows:
            residual = (measured - predicted) / predicted if predicted else float(measured)
            print(f"{form:<19}{num_ranks:>6}  {quantity:<26}", end="")
            print(f"{predicted:>12,.0f}{measured:>12,.0f}{residual:>10.2%}", flush=True)


if __name__ == "__main__":
    main()
