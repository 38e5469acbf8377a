"""Grade checkpoint_block: output and gradients of a block, two passes, x kept in between."""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade import grader as g

LEAVES = ("up.weight", "up.bias", "down.weight", "down.bias")
KEPT_BYTES = 5056 + 512  # torch's generator on the CPU, and small things


class Block(nn.Module):
    """x + down(dropout(tanh(up(x)))), which notes what dropout keeps in each pass."""

    def __init__(self, width: int, dropout: float, note: Any) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self._dropout, self._note = dropout, note

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width) to the same."""
        hidden, kept = torch.tanh(self.up(x)), None
        if self._dropout:
            kept = torch.rand(hidden.shape) >= self._dropout
            hidden = hidden * kept / (1 - self._dropout)
        self._note(None if kept is None else kept.tolist())
        return x + self.down(hidden)


def cases(draw: g.Draw) -> list[g.Case]:
    """One block, dropout, three blocks whose input needs no gradient, a frozen parameter."""
    # x has more bytes than the state of the generator.
    rows, width = draw.rng.randrange(48, 64), draw.rng.randrange(24, 32)
    frozen = draw.rng.choice(LEAVES)
    asked = [("one block without dropout", 1, 0.0, ""), ("one block with dropout", 1, 0.25, "")]
    asked += [("three blocks, x needs no gradient", 3, 0.25, "x")]
    asked += [(f"one block, {frozen} frozen", 1, 0.25, frozen)]
    x, output_gradient = (draw.same(rows, width, dtype=torch.float64) for _ in range(2))
    seed = draw.rng.getrandbits(31)
    return [g.Case(label, x, output_gradient, *others, seed) for label, *others in asked]


def right(*args: Any) -> dict[str, Any] | None:
    """The blocks without checkpoints."""
    with torch.random.fork_rng(devices=[]):
        return step(lambda block, x: block(x), lambda *note: None, args)


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any] | None:
    """The learner's checkpoints around each block, then backward."""

    def run(block: nn.Module, x: Tensor) -> Tensor:
        before, y = watch.live_bytes, watch.function(block, x)
        if isinstance(y, Tensor):
            watch.note("kept", watch.live_bytes - before - y.untyped_storage().nbytes())
        return y

    return step(run, watch.note, args)


def step(run: Any, note: Any, args: tuple[Any, ...]) -> dict[str, Any] | None:
    """Run forward and backward: output, gradients, and what must not change."""
    x, output_gradient, num_blocks, dropout, frozen, seed = args
    torch.manual_seed(seed)
    notes = [functools.partial(note, f"pass {i}") for i in range(num_blocks)]
    blocks = nn.ModuleList(Block(x.shape[1], dropout, each) for each in notes).double()
    named = {"x": x.detach(), **dict(blocks.named_parameters())}
    for name, each in named.items():
        each.requires_grad_(name.removeprefix("0.") != frozen)
    note("start")
    y = functools.reduce(lambda y, block: run(block, y), blocks, named["x"])
    if y is None:
        return None
    state = torch.get_rng_state()
    if isinstance(y, Tensor) and y.requires_grad and y.shape == x.shape:
        y.backward(output_gradient)
    note("end")
    return {
        "output": y,
        "gradients": {name: each.grad for name, each in named.items()},
        "requires_grad": {name: each.requires_grad for name, each in named.items()},
        "generator restored": torch.equal(state, torch.get_rng_state()),
    }


def draws_other_numbers(s: g.Observed) -> bool:
    """Whether two passes of a block dropped other numbers."""
    drawn = {(e.what, str(e.value)) for e in s.ranks[0].notes if e.what.startswith("pass")}
    return len(drawn) > len({what for what, _ in drawn})


def excess(s: g.Observed) -> str:
    """Which part of the budget is used up; empty where none is."""
    start, *notes, end = s.ranks[0].notes
    num_passes = [sum(e.what == f"pass {i}" for e in notes) for i in range(s.args[2])]
    kept = max(e.value for e in notes if e.what == "kept")
    with_copy = s.xs.nbytes + KEPT_BYTES
    if max(num_passes) > 2:
        return "passes"
    if min(num_passes) < 2 or kept > with_copy:
        return "first pass"
    there = [s.y["output"], *filter(torch.is_tensor, s.y["gradients"].values())]
    after = end.live_bytes - start.live_bytes - sum(x.nbytes for x in there)
    return "own tensors" if kept > KEPT_BYTES or after > s.args[2] * with_copy else ""


SET_STATE, FORK = "torch.set_rng_state(ctx.rng_state)", "torch.random.fork_rng(devices=[]), "
APPLY = "_Checkpoint.apply(block, x, *block.parameters())"
NEEDED = "ctx.needs_input_grad[1:]"
DETACH = "x = x.detach().requires_grad_(needed[0])"
PASS = "y = ctx.block(x)"
INPUTS = "inputs = [each for each, is_needed in zip((x, *parameters), needed) if is_needed]"
BACKWARD = "y.backward(output_gradient)\n        return None, x.grad"
GRAD = "(y, inputs, output_gradient)"

MISTAKES = [
    g.Mistake(
        "draws other numbers in the second pass, or leaves the generator rewound",
        "If the passes drop different numbers, the gradients belong to another block: store the "
        "generator's state before the first pass, and set it before the second. Then put the "
        "generator back to where it was, or the next numbers are drawn again: use fork_rng.",
        [g.patch(SET_STATE, "pass"), g.patch(FORK, "")],
        seen=lambda s: draws_other_numbers(s) or not s.y["generator restored"],
        hint=2,
    ),
    g.Mistake(
        "loses the gradient of x, or those of the parameters",
        "backward returns one gradient per argument of apply: that of x, without which what comes "
        "before the block gets none, and those of the parameters.",
        [
            g.patch(NEEDED, "(False, *ctx.needs_input_grad[2:])"),
            g.patch(NEEDED, "(ctx.needs_input_grad[1], *(False for _ in parameters))"),
        ],
        hint=2,
    ),
    g.Mistake(
        "the output has no graph, or none where x needs no gradient",
        "A pass in torch.no_grad() ends the graph: a torch.autograd.Function connects the output "
        "to x and the parameters. One whose only tensor is x is not recorded where x needs no "
        "gradient, so pass the parameters to apply.",
        [
            g.patch(APPLY, "torch.no_grad()(block)(x)"),
            g.patch(APPLY, "_Checkpoint.apply(block, x)", INPUTS, f"{BACKWARD}\n        {INPUTS}"),
        ],
        hint=3,
    ),
    g.Mistake(
        "gives gradients twice",
        "x: a second pass with x itself goes back to what comes before the block, so recompute "
        "with x.detach(). Parameters: backward() adds to .grad, and the same gradients are "
        "returned. Do one of the two: torch.autograd.grad adds nothing to .grad.",
        [
            g.patch(DETACH, "pass", INPUTS, f"{BACKWARD}, *(None for _ in parameters)"),
            g.patch(INPUTS, f"y.backward(output_gradient, retain_graph=True)\n        {INPUTS}"),
        ],
        hint=3,
    ),
    g.Mistake(
        "goes back before the block in the second pass",
        "x comes with the graph of the block before, which is used once. Recompute with "
        "x.detach(), so that backward() ends there, and return the gradient of that.",
        g.patch(
            *(DETACH, "pass"),
            *(
                INPUTS,
                "y.backward(output_gradient)\n        return (None,) * (2 + len(parameters))",
            ),
        ),
        crashed=lambda s: "a second time" in s.error,
        hint=3,
    ),
    g.Mistake(
        "asks for a gradient that is not recorded or not needed",
        "backward of a Function runs without a graph: put the second pass into "
        "torch.enable_grad(). And pass no tensor that requires no gradient to torch.autograd.grad: "
        "a frozen parameter, an x that needs none, or a copy. ctx.needs_input_grad tells.",
        [g.patch(", torch.enable_grad():", ":"), g.patch(INPUTS, "inputs = [x, *parameters]")],
        crashed=lambda s: "does not require grad" in s.error,
        hint=3,
    ),
    g.Mistake(
        "keeps the activations of the first pass",
        "Everything that backward needs is in memory until then, so nothing is saved. Run the "
        "block without a graph first, and again in backward.",
        g.patch(APPLY, "block(x)"),
        over_budget=lambda s: excess(s) == "first pass",
    ),
    g.Mistake(
        "runs the block more than twice",
        "Two passes are enough: one forward without a graph, and one in backward, which gives all "
        "gradients together.",
        g.patch(PASS, f"{PASS}\n            {SET_STATE}\n            {PASS}"),
        over_budget=lambda s: excess(s) == "passes",
        hint=2,
    ),
    g.Mistake(
        "keeps a copy of x, or what it recomputed",
        "The caller's x is in memory already: keep a reference to it with save_for_backward. And "
        "hold what the second pass computes in local variables only, or it stays in memory after "
        "backward, block after block.",
        [
            g.patch("save_for_backward(x, ", "save_for_backward(x.clone(), "),
            g.patch(PASS, f"ctx.again = {PASS}", GRAD, f"{GRAD[:-1]}, retain_graph=True)"),
        ],
        over_budget=lambda s: excess(s) == "own tensors",
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
