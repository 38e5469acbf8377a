"""Grade checkpoint_block: output and gradients of a block, two passes, x kept in between."""

import torch
from torch import Tensor, nn

from labkit.grade.grader import (
    Case,
    Draw,
    Mistake,
    Observed,
    Outcome,
    Questions,
    close,
    patch,
    within,
)

LEAVES = ("up.weight", "up.bias", "down.weight", "down.bias")
TOLERANCE = 2.0**16
GENERATOR_BYTES = 5056  # of torch's state on the CPU
SMALL_BYTES = 512


class Block(nn.Module):
    """x + down(dropout(tanh(up(x)))), which tells of each pass."""

    def __init__(self, parameters, frozen, dropout: float, on_pass=lambda kept: None) -> None:
        """parameters: tensors by name. on_pass: gets what dropout keeps."""
        super().__init__()
        self.up, self.down = nn.Linear(1, 1), nn.Linear(1, 1)
        for name in LEAVES:
            parameter = nn.Parameter(parameters[name], requires_grad=name not in frozen)
            setattr(self.get_submodule(name.split(".")[0]), name.split(".")[1], parameter)
        self._dropout, self._on_pass = dropout, on_pass

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width) to the same."""
        hidden, kept = torch.tanh(self.up(x)), None
        if self._dropout:
            kept = torch.rand(hidden.shape) >= self._dropout
            hidden = hidden * kept / (1 - self._dropout)
        self._on_pass(kept)
        return x + self.down(hidden)


def cases(draw: Draw) -> list[Case]:
    """One block, dropout, three blocks whose input needs no gradient, a frozen parameter."""
    # x has more bytes than the state of the generator.
    rows, width = draw.rng.randrange(48, 64), draw.rng.randrange(24, 32)
    wide, frozen = 4 * width, draw.rng.choice(LEAVES)
    shapes = dict(zip(LEAVES, ((wide, width), (wide,), (width, wide), (width,)), strict=True))

    def normal(*shape: int) -> Tensor:
        return draw.same(*shape, dtype=torch.float64) / width**0.5

    def block() -> dict[str, Tensor]:
        return {name: normal(*shape) for name, shape in shapes.items()}

    def case(label: str, num_blocks: int, dropout: float, **others: object) -> Case:
        setup = {
            "blocks": [block() for _ in range(num_blocks)],
            "dropout": dropout,
            "frozen": [],
            "x": normal(rows, width),
            "x needs a gradient": True,
            "output gradient": normal(rows, width),
            "seed": draw.rng.getrandbits(31),
        }
        return Case(label, setup | others)

    return [
        case("one block without dropout", 1, 0.0),
        case("one block with dropout", 1, 0.25),
        case("three blocks, x needs no gradient", 3, 0.25, **{"x needs a gradient": False}),
        case(f"one block, {frozen} frozen", 1, 0.25, frozen=[frozen]),
    ]


def call(watch, args) -> dict[str, object] | None:
    """The learner's checkpoints around each block, then backward."""
    (setup,) = args

    def on_pass(index: int):
        return lambda kept: watch.note(f"pass {index}", None if kept is None else kept.tolist())

    blocks = [
        Block(each, setup["frozen"], setup["dropout"], on_pass(i))
        for i, each in enumerate(setup["blocks"])
    ]

    def forward(x: Tensor) -> Tensor:
        for block in blocks:
            before, x = watch.live_bytes, watch.function(block, x)
            if not isinstance(x, Tensor):
                break
            watch.note("kept", watch.live_bytes - before - x.untyped_storage().nbytes())
        return x

    return passes(setup, blocks, forward, lambda: watch.note("after", watch.live_bytes))


def right(setup) -> dict[str, object]:
    """The blocks without checkpoints."""
    blocks = [Block(each, setup["frozen"], setup["dropout"]) for each in setup["blocks"]]
    with torch.random.fork_rng(devices=[]):
        return passes(setup, blocks, nn.Sequential(*blocks))


def passes(setup, blocks, forward, at_end=lambda: None) -> dict[str, object] | None:
    """Run forward and backward: output, gradients, and what must not change."""
    x = setup["x"].detach().requires_grad_(setup["x needs a gradient"])
    named = {f"{i}.{k}": p for i, block in enumerate(blocks) for k, p in block.named_parameters()}
    named["x"] = x
    torch.manual_seed(setup["seed"])
    y = forward(x)
    if y is None:
        return None
    state = torch.get_rng_state()
    if isinstance(y, Tensor) and y.requires_grad and y.shape == x.shape:
        y.backward(setup["output gradient"])
    at_end()
    return {
        "output": y,
        "gradients": {name: each.grad for name, each in named.items()},
        "requires_grad": {name: each.requires_grad for name, each in named.items()},
        "generator restored": torch.equal(state, torch.get_rng_state()),
    }


def num_passes(s: Observed) -> list[int]:
    """By block."""
    return [
        sum(note.what == f"pass {i}" for note in s.ranks[0].notes)
        for i in range(len(s.xs["blocks"]))
    ]


def have_other_numbers(s: Observed) -> bool:
    """Whether two passes of a block dropped other numbers."""
    drawn = {(e.what, str(e.value)) for e in s.ranks[0].notes if e.what.startswith("pass")}
    return len(drawn) > len({what for what, _ in drawn})


def lost(s: Observed) -> set[str]:
    """The names of those that should have a gradient, and have none or zeros."""
    got, expected = s.y["gradients"], s.right[0]["gradients"]
    needed = {name for name, gradient in expected.items() if gradient is not None}
    return {name for name in needed if got[name] is None or not got[name].any()}


def last_block(s: Observed) -> set[str]:
    """The names of the last block's parameters that need a gradient."""
    last = f"{len(s.xs['blocks']) - 1}."
    return {n for n, g in s.right[0]["gradients"].items() if g is not None and n.startswith(last)}


def are(s: Observed, gradients, x_factor: float = 1, factor: float = 1) -> bool:
    """Whether the gradients are these, times a factor."""
    return all(
        close(s.y["gradients"][name], g * (x_factor if name == "x" else factor), steps=TOLERANCE)
        for name, g in gradients.items()
        if g is not None
    )


def excess(s: Observed) -> str:
    """Which part of the budget is used up; empty where none is."""
    if min(num_passes(s)) < 2:
        return "activations"
    if max(num_passes(s)) > 2:
        return "passes"
    notes = s.ranks[0].notes
    kept = max(note.value for note in notes if note.what == "kept")
    x_bytes, most = s.xs["x"].nbytes, GENERATOR_BYTES + SMALL_BYTES
    if kept > most:
        return "copy" if kept <= x_bytes + most else "graph"
    there = [s.y["output"], *(g for g in s.y["gradients"].values() if g is not None)]
    again = notes[-1].value - sum(x.nbytes for x in there)
    return "again" if again > len(s.xs["blocks"]) * (x_bytes + most) else ""


INPUTS = "inputs = [each for each, is_needed in zip((x, *parameters), needed) if is_needed]"
GRADIENTS = "gradients = iter(torch.autograd.grad(y, inputs, output_gradient))"

MISTAKES = [
    Mistake(
        "other random numbers in the second pass",
        "The two passes drop different numbers, so the gradients belong to another block. Store "
        "the generator's state before the first pass, and set it before the second.",
        hint=2,
        seen=have_other_numbers,
        made_by=patch("torch.set_rng_state(ctx.rng_state)", "pass"),
    ),
    Mistake(
        "leaves the generator rewound",
        "After backward the generator is not where it was before. The next random numbers have "
        "been drawn already, such as the same dropout in every step. Use fork_rng.",
        hint=3,
        seen=lambda s: are(s, s.right[0]["gradients"]) and not s.y["generator restored"],
        made_by=patch("with torch.random.fork_rng(devices=[]), ", "with "),
    ),
    Mistake(
        "the gradient of x is lost",
        "The block's parameters get gradients, and what comes before the block gets none. backward "
        "returns one gradient per argument of apply, and x is one of them.",
        hint=2,
        seen=lambda s: lost(s) and not lost(s) & last_block(s),
        made_by=patch("ctx.needs_input_grad[1:]", "(False, *ctx.needs_input_grad[2:])"),
    ),
    Mistake(
        "the gradients of the parameters are lost",
        "x gets its gradient, and no parameter does. Ask for their gradients too, and return them.",
        hint=2,
        seen=lambda s: (
            s.xs["x needs a gradient"] and last_block(s) <= lost(s) and "x" not in lost(s)
        ),
        made_by=patch(
            "ctx.needs_input_grad[1:]", "(ctx.needs_input_grad[1], *(False for _ in parameters))"
        ),
    ),
    Mistake(
        "the output has no graph",
        "A pass in torch.no_grad() ends the graph, so backward never comes to the block. A "
        "torch.autograd.Function connects the output to x and the parameters.",
        hint=2,
        seen=lambda s: s.xs["x needs a gradient"] and {"x", *last_block(s)} <= lost(s),
        made_by=patch(
            "return _Checkpoint.apply(block, x, *block.parameters())",
            "with torch.no_grad():\n        return block(x)",
        ),
    ),
    Mistake(
        "no gradients where x needs none",
        "The output has no graph, though parameters need gradients. A Function whose only tensor "
        "is x is not recorded where x needs no gradient. Pass the parameters to apply.",
        hint=3,
        seen=lambda s: not s.xs["x needs a gradient"] and last_block(s) <= lost(s),
        made_by=patch(
            "apply(block, x, *block.parameters())",
            "apply(block, x)",
            INPUTS,
            f"y.backward(output_gradient)\n        return None, x.grad\n        {INPUTS}",
        ),
    ),
    Mistake(
        "ignores the gradient that comes in",
        "The gradients are those of the output's sum. backward gets the gradient of the output, "
        "which has everything behind the block in it.",
        hint=2,
        seen=lambda s: are(
            s, right(s.xs | {"output gradient": torch.ones_like(s.xs["x"])})["gradients"]
        ),
        made_by=patch(
            "y = ctx.block(x)",
            "y = ctx.block(x).sum()",
            "(y, inputs, output_gradient)",
            "(y, inputs)",
        ),
    ),
    Mistake(
        "goes back beyond the block",
        "x gets its gradient twice. The second pass was recorded with x itself, so its backward "
        "went on to what comes before. Recompute with x.detach().",
        hint=3,
        seen=lambda s: s.xs["x needs a gradient"] and are(s, s.right[0]["gradients"], x_factor=2),
        made_by=patch(
            "x = x.detach().requires_grad_(needed[0])",
            "pass",
            INPUTS,
            "y.backward(output_gradient)\n        return None, x.grad, *(None for _ in parameters)",
        ),
    ),
    Mistake(
        "parameters get their gradients twice",
        "backward() of the second pass adds gradients to .grad, and the same gradients are "
        "returned. Do one of the two: torch.autograd.grad adds nothing to .grad.",
        hint=3,
        seen=lambda s: are(s, s.right[0]["gradients"], factor=2),
        made_by=patch(
            GRADIENTS, f"y.backward(output_gradient, retain_graph=True)\n        {GRADIENTS}"
        ),
    ),
    Mistake(
        "changes requires_grad of the caller's tensors",
        "requires_grad of x or of a parameter is not what it was. Switch it on for x.detach(), "
        "which is a tensor of your own. ctx.needs_input_grad says which gradients are needed.",
        hint=3,
        seen=lambda s: s.y["requires_grad"] != s.right[0]["requires_grad"],
        made_by=patch("x = x.detach().requires_grad_(needed[0])", "x = x.requires_grad_()"),
    ),
    Mistake(
        "recomputes without recording",
        "backward of a Function runs without a graph, as forward does. Put the second pass into "
        "torch.enable_grad(), with an x that requires a gradient.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: "element 0 of tensors does not require grad" in s.error,
        made_by=patch(", torch.enable_grad():", ":"),
    ),
    Mistake(
        "asks for a gradient that is not needed",
        "A tensor that requires no gradient was passed to torch.autograd.grad: a frozen parameter, "
        "an x that needs none, or a copy. ctx.needs_input_grad says which gradients are needed.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: "One of the differentiated Tensors does not require grad" in s.error,
        made_by=patch(INPUTS, "inputs = [x, *parameters]"),
    ),
    Mistake(
        "keeps the activations",
        "A block runs only once, so everything that backward needs is in memory until then. Run it "
        "without a graph first, and again in backward.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "activations",
        made_by=patch("_Checkpoint.apply(block, x, *block.parameters())", "block(x)"),
    ),
    Mistake(
        "runs the block more than twice",
        "Two passes are enough: one forward without a graph, and one in backward, which gives all "
        "gradients together.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "passes",
        made_by=patch(
            "y = ctx.block(x)",
            "y = ctx.block(x)\n            torch.set_rng_state(ctx.rng_state)\n"
            "            y = ctx.block(x)",
        ),
    ),
    Mistake(
        "keeps a copy of x",
        "The caller's x is in memory already. Keep a reference to it with save_for_backward.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "copy",
        made_by=patch("save_for_backward(x, ", "save_for_backward(x.clone(), "),
    ),
    Mistake(
        "keeps the graph of the first pass",
        "The block is recomputed, and the first pass is still in memory until then. So nothing is "
        "saved, and a pass is added. Compute the first pass without a graph.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "graph",
        made_by=patch(
            "return block(x)\n\n",
            "with torch.enable_grad():\n            ctx.first = block(x.detach())\n"
            "        return ctx.first.detach()\n\n",
        ),
    ),
    Mistake(
        "keeps what it recomputed",
        "After backward the activations of the second pass are still in memory, block after block. "
        "Hold them in local variables only.",
        hint=3,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "again",
        made_by=patch(
            "y = ctx.block(x)",
            "y = ctx.again = ctx.block(x)",
            "(y, inputs, output_gradient)",
            "(y, inputs, output_gradient, retain_graph=True)",
        ),
    ),
]

GRADER = Questions(
    name="checkpoint_block",
    functions=("checkpointed",),
    cases=cases,
    right=right,
    call=call,
    same=within(TOLERANCE),
    mistakes=MISTAKES,
    closed=("labkit.recompute", "torch.utils.checkpoint"),
    num_arguments=2,
    watch_memory=True,
    shown="output and gradients are those of the block, with dropout, with a frozen parameter and "
    "where x needs no gradient; it runs twice, and only x is kept in between",
)
