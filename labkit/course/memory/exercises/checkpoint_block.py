"""Grade checkpoint_block: output and gradients of a block, two passes, x kept in between."""

from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade import grader as g

LEAVES = ("up.weight", "up.bias", "down.weight", "down.bias")
KEPT_BYTES = 5056 + 512  # torch's generator on the CPU, and small things


class Block(nn.Module):
    """x + down(dropout(tanh(up(x)))), which counts its passes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.num_passes = 0

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width) to the same."""
        self.num_passes += 1
        return x + self.down(nn.functional.dropout(torch.tanh(self.up(x)), 0.25))


def cases(draw: g.Draw) -> list[g.Case]:
    """One block, three blocks whose input needs no gradient, a frozen parameter."""
    # x has more bytes than the state of the generator.
    rows, width = draw.rng.randrange(48, 64), draw.rng.randrange(24, 32)
    x, output_gradient = (draw.same(rows, width, dtype=torch.float64) for _ in range(2))
    seed, leaf = draw.rng.getrandbits(31), draw.rng.choice(LEAVES)
    return [
        g.Case("one block", x, output_gradient, 1, "", seed),
        g.Case("three blocks, x needs no gradient", x, output_gradient, 3, "x", seed),
        g.Case(f"one block, {leaf} frozen", x, output_gradient, 1, f"0.{leaf}", seed),
    ]


def right(*args: Any) -> dict[str, Any]:
    """Return the blocks without checkpoints. Checkpoints run each of them twice."""
    with torch.random.fork_rng(devices=[]):
        found = step(lambda block, x: block(x), lambda _: None, args)
    return {**found, "passes": [2] * args[2]}


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """Return the learner's checkpoints around each block, then backward."""

    def run(block: nn.Module, x: Tensor) -> Tensor:
        before, y = watch.live_bytes, watch.function(block, x)
        if isinstance(y, Tensor):
            watch.note("kept", watch.live_bytes - before - y.untyped_storage().nbytes())
        return y

    return step(run, watch.note, args)


def step(run: Any, note: Any, args: tuple[Any, ...]) -> Any:
    """Run forward and backward: output, gradients, and what must not change."""
    x, output_gradient, num_blocks, frozen, seed = args
    torch.manual_seed(seed)
    blocks = nn.ModuleList(Block(x.shape[1]) for _ in range(num_blocks)).double()
    named = {"x": x.detach(), **dict(blocks.named_parameters())}
    for name, each in named.items():
        each.requires_grad_(name != frozen)
    note("start")
    y = named["x"]
    for block in blocks:
        y = run(block, y)
    if not isinstance(y, Tensor):
        return y
    state = torch.get_rng_state()
    if y.requires_grad:
        y.backward(output_gradient)
    note("end")
    return {
        "requires_grad": {name: each.requires_grad for name, each in named.items()},
        "generator restored": torch.equal(state, torch.get_rng_state()),
        "passes": [block.num_passes for block in blocks],
        "output": y,
        "gradients": {name: each.grad for name, each in named.items()},
    }


def keeps_too_much(s: g.Observed) -> bool:
    """Return whether a call keeps more than x, or more than x stays in memory after backward."""
    start, *kept, end = s.ranks[0].notes
    there = [s.y["output"], *filter(torch.is_tensor, s.y["gradients"].values())]
    after = end.live_bytes - start.live_bytes - sum(x.nbytes for x in there)
    most_after = len(kept) * (s.xs.nbytes + KEPT_BYTES)
    return max(note.value for note in kept) > KEPT_BYTES or after > most_after


SET_STATE, FORK = "torch.set_rng_state(ctx.rng_state)", "torch.random.fork_rng(devices=[]), "
APPLY = "_Checkpoint.apply(block, x, *block.parameters())"
INPUTS = "inputs = [each for each, is_needed in zip((x, *parameters), needed) if is_needed]"
BACKWARD = "y.backward(output_gradient)\n        return None, "
MISTAKES = [
    g.Mistake(
        "draws other numbers in the second pass",
        "Dropout drops other numbers than in the first pass, so the gradients belong to another "
        "block. Store the generator's state before the first pass, and set it before the second.",
        [g.patch(SET_STATE, "pass"), g.patch(SET_STATE, "pass", FORK, "")],
        hint=2,
    ),
    g.Mistake(
        "leaves the generator rewound",
        "After the second pass the generator stands where it stood after the first, and the next "
        "numbers are drawn again. Put it back to where it was: use fork_rng.",
        g.patch(FORK, ""),
        hint=2,
    ),
    g.Mistake(
        "the output has no graph, or none where x needs no gradient",
        "A pass in torch.no_grad() ends the graph: a torch.autograd.Function connects the output "
        "to x and the parameters. One whose only tensor is x is not recorded where x needs no "
        "gradient, so pass the parameters to apply.",
        [
            g.patch(APPLY, "torch.no_grad()(block)(x)"),
            g.patch(APPLY, "_Checkpoint.apply(block, x)", INPUTS, f"{BACKWARD}x.grad"),
        ],
        hint=3,
    ),
    g.Mistake(
        "gives gradients twice",
        "backward() adds to .grad of the parameters, and the same gradients are returned. Do one "
        "of the two: torch.autograd.grad adds nothing to .grad.",
        g.patch(INPUTS, f"y.backward(output_gradient, retain_graph=True)\n        {INPUTS}"),
        hint=3,
    ),
    g.Mistake(
        "goes back before the block in the second pass",
        "x comes with the graph of the block before, which is used once. Recompute with "
        "x.detach(), so that backward() ends there, and return the gradient of that.",
        g.patch(
            "x = x.detach().requires_grad_(needed[0])",
            "pass",
            INPUTS,
            f"{BACKWARD}None, *(None for _ in parameters)",
        ),
        crashed=lambda s: "a second time" in s.error,
        hint=3,
    ),
    g.Mistake(
        "asks for a gradient that is not recorded or not needed",
        "backward of a Function runs without a graph: put the second pass into "
        "torch.enable_grad(). And pass no tensor that requires no gradient to torch.autograd.grad, "
        "such as a frozen parameter. ctx.needs_input_grad tells.",
        g.patch(", torch.enable_grad():", ":"),
        crashed=lambda s: "does not require grad" in s.error,
        hint=3,
    ),
    g.Mistake(
        "keeps the activations of the first pass",
        "Everything that backward needs is in memory until then, so nothing is saved. Run the "
        "block without a graph first, and again in backward.",
        g.patch(APPLY, "block(x)"),
    ),
    g.Mistake(
        "keeps a copy of x, or what it computed",
        "The caller's x is in memory already: keep a reference to it with save_for_backward, and "
        "no tensor from inside the block. Hold what the second pass computes in local variables "
        "only, or it stays in memory after backward, block after block.",
        [
            g.patch("save_for_backward(x, ", "save_for_backward(x.clone(), "),
            g.patch(
                "y = ctx", "y = ctx.again = ctx", "output_gradient))", "output_gradient, True))"
            ),
        ],
        over_budget=keeps_too_much,
        hint=3,
    ),
]

GRADER = g.Questions(
    functions=("checkpointed",),
    cases=cases,
    right=right,
    call=call,
    same=g.within(2.0**16),
    mistakes=MISTAKES,
    closed=("labkit.recompute", "torch.utils.checkpoint"),
    watch_memory=True,
    shown="output and gradients are those of the block, with dropout, with a frozen parameter and "
    "where x needs no gradient; it runs twice, and only x is kept in between",
)
