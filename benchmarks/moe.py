"""A layer of experts over ranks: seconds of forward and backward, and bytes sent.

    lab        rows sorted by expert, uneven all-to-alls, a product for each segment: none dropped
    pairwise   the same on `pairwise_all_to_all`, messages written out with send and recv
    padded     a buffer of `capacity` rows for each expert: dist.all_to_all_single of equal blocks,
               then expert by expert, each on its whole buffers; what does not fit is dropped.
               Twice: with the capacity factor 1.25, usual in training, and with the least at which
               this batch drops nothing, which is what lab computes.

All have the same router, experts and tokens, and torch's products. Padded is the straightforward
loop, through torch.distributed itself. It sends and computes its padding. The batch is skewed a
little, as batches are; how much is printed.
Bytes are of the rank that sends most, by calc's formulas, which tests compare with the journal.

One run, alternating, medians of the slowest rank. `python benchmarks/moe.py [hidden]`.
"""

import contextlib
from collections.abc import Callable

import torch
import torch.distributed as dist
from measure import alternate, command_line, machine
from torch import Tensor, nn

import labkit
from labkit import arguments, calc
from labkit.collectives import autograd, pairwise_all_to_all
from labkit.model import GPTConfig
from labkit.moe import ExpertParallelMoE, MoEConfig, Routing, expert_load, within_capacity

HIDDEN, NUM_TOKENS, NUM_EXPERTS, TOP_K = 256, 1024, 8, 2
REPETITIONS = 11
USUAL_FACTOR = 1.25
SKEW = 0.6  # how much tokens have in common, which makes some experts busier than others


class _EqualBlocks(torch.autograd.Function):
    """torch.distributed's all-to-all of equal blocks; it is its own adjoint."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return _EqualBlocks.apply(grad)


def padded(layer: ExpertParallelMoE, x_ND: Tensor, capacity: int) -> Tensor:
    """Return the answers, by buffers of `capacity` rows for each expert, whether filled or not."""
    routing: Routing = layer.router(x_ND)
    experts_Nk = routing.expert_A.view(len(x_ND), TOP_K)
    weights_Nk = routing.weight_A.view(len(x_ND), TOP_K)
    kept_Nk = within_capacity(experts_Nk, NUM_EXPERTS, capacity)
    buffers = x_ND.new_zeros(NUM_EXPERTS, capacity, x_ND.shape[1])
    places = []  # (tokens, weights) of each expert's buffer
    for expert in range(NUM_EXPERTS):
        token, choice = ((experts_Nk == expert) & kept_Nk).nonzero(as_tuple=True)
        buffers[expert, : len(token)] = x_ND[token]
        places.append((token, weights_Nk[token, choice]))
    ranks = layer.group.size
    arrived = _EqualBlocks.apply(buffers).view(ranks, -1, capacity, x_ND.shape[1])
    answers = torch.stack(
        [mlp(arrived[:, number]) for number, mlp in enumerate(layer.experts.values())], dim=1
    )
    back = _EqualBlocks.apply(answers.flatten(0, 1))
    y_ND = torch.zeros_like(x_ND)
    for expert, (token, weight) in enumerate(places):
        y_ND = y_ND.index_add(0, token, back[expert, : len(token)] * weight[:, None])
    return y_ND


class _Pairwise(torch.autograd.Function):
    """`autograd.all_to_all` on the messages of labkit.collectives."""

    @staticmethod
    def forward(ctx, x: Tensor, group, send_splits, recv_splits) -> Tensor:
        ctx.args = group, recv_splits, send_splits
        return pairwise_all_to_all(x, group, send_splits=send_splits, recv_splits=recv_splits)

    @staticmethod
    def backward(ctx, grad: Tensor):
        group, send_splits, recv_splits = ctx.args
        back = pairwise_all_to_all(grad, group, send_splits=send_splits, recv_splits=recv_splits)
        return back, None, None, None


@contextlib.contextmanager
def on_pairwise_messages():
    """Replace the all-to-all that moe_layer.py calls, for the time of a call."""
    library = autograd.all_to_all
    autograd.all_to_all = lambda x, group, send_splits, recv_splits: _Pairwise.apply(
        x, group, send_splits, recv_splits
    )
    try:
        yield
    finally:
        autograd.all_to_all = library


def layer_and_tokens(world: labkit.Group, hidden: int) -> tuple[ExpertParallelMoE, Tensor]:
    """Return a layer, and this rank's tokens."""
    config = GPTConfig(hidden=hidden, num_heads=1)
    moe = MoEConfig(num_experts=NUM_EXPERTS, top_k=TOP_K)
    torch.manual_seed(world.rank)
    layer = ExpertParallelMoE(config, moe, world)
    x_ND = torch.randn(NUM_TOKENS, hidden) + SKEW * torch.linspace(-1, 1, hidden)
    torch.manual_seed(0)
    nn.init.normal_(layer.router.gate.weight, std=hidden**-0.5)
    return layer, x_ND


def compare(world: labkit.Group, hidden: int) -> dict:
    """Seconds by name, bytes by name, and what the batch is like."""
    layer, x_ND = layer_and_tokens(world, hidden)
    load = expert_load(layer.router(x_ND), world)
    most = max(map(max, load.kept))
    usual = calc_capacity(USUAL_FACTOR)
    forwards: dict[str, Callable[[Tensor], Tensor]] = {
        "lab": lambda x: layer(x[None])[0][0],
        "pairwise": lambda x: layer(x[None])[0][0],
        f"padded, factor {USUAL_FACTOR}": lambda x: padded(layer, x, usual),
        "padded, none dropped": lambda x: padded(layer, x, most),
    }

    def step(name: str) -> Tensor:
        x = x_ND.clone().requires_grad_()
        layer.zero_grad()
        with on_pairwise_messages() if name == "pairwise" else contextlib.nullcontext():
            y = forwards[name](x)
            y.square().mean().backward()
        return y.detach()

    exact, same, usual_drops = (
        step(name) for name in ("lab", "padded, none dropped", f"padded, factor {USUAL_FACTOR}")
    )
    difference = (exact - same).abs().max().item()
    # Times mean nothing unless layers that drop nothing compute the same, and the other does not.
    assert difference < 1e-4 < (exact - usual_drops).abs().max().item()
    candidates = {name: lambda name=name: step(name) for name in forwards}
    seconds = alternate(world, candidates, REPETITIONS)
    too_many = sum(max(0, n - usual) for row in load.kept for n in row)
    return {
        "seconds": seconds,
        "kept": load.kept,
        "rows": {f"padded, factor {USUAL_FACTOR}": usual, "padded, none dropped": most},
        "dropped": too_many / (world.size * NUM_TOKENS * TOP_K),
        "imbalance": load.imbalance,
        "difference": difference,
    }


def calc_capacity(factor: float) -> int:
    """Rows of a buffer."""
    return -(-int(factor * TOP_K * NUM_TOKENS) // NUM_EXPERTS)


def sent_bytes(found: dict, hidden: int) -> dict[str, float]:
    """Return the bytes of the rank that sends most, forward and backward."""
    kept = found["kept"]
    exact = max(
        calc.expert_parallel_traffic_bytes(kept, rank, hidden=hidden, itemsize=4).value
        for rank in range(len(kept))
    )
    sizes = {"num_experts": NUM_EXPERTS, "top_k": TOP_K, "hidden": hidden, "itemsize": 4}
    balanced = TOP_K * NUM_TOKENS / NUM_EXPERTS
    return {"lab": exact, "pairwise": exact} | {
        name: calc.padded_expert_traffic_bytes(
            NUM_TOKENS, len(kept), **sizes, capacity_factor=rows / balanced
        ).value
        for name, rows in found["rows"].items()
    }


def main() -> None:
    """Print seconds and bytes, each with its ratio to the padded loop that drops nothing."""
    parser = command_line(__doc__)
    parser.add_argument("hidden", nargs="?", type=arguments.count, default=HIDDEN)
    hidden = parser.parse_args().hidden
    print(
        f"{NUM_TOKENS} tokens a rank, {NUM_EXPERTS} experts, top {TOP_K}, hidden {hidden}. "
        f"{machine()}"
    )
    for world_size in (2, 4):
        found = labkit.run(compare, world_size, (hidden,), timeout=600).values[0]
        sent = sent_bytes(found, hidden)
        print(
            f"{world_size} ranks; busiest {found['imbalance']:.2f} x the mean; padded with factor "
            f"{USUAL_FACTOR} drops {found['dropped']:.1%}; outputs differ by "
            f"{found['difference']:.0e}"
        )
        yardstick = "padded, none dropped"
        for name, seconds in found["seconds"].items():
            print(
                f"  {name:<22}{seconds * 1e3:>8.1f} ms {seconds / found['seconds'][yardstick]:.2f}"
                f"{sent[name] / 2**20:>10.2f} MiB {sent[name] / sent[yardstick]:.2f}"
            )


if __name__ == "__main__":
    main()
