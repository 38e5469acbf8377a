"""Grade average_gradients: the mean in every trained parameter's grad, each gradient sent once."""

from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade import grader as g

UNUSED = "layer.weight unused on one rank"


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """One dtype and several; a rank without a gradient."""
    listed = []
    for label in ("float32", "three dtypes", *[UNUSED] * (n > 1)):
        drawn = {}
        for name, x in model(label).named_parameters():
            if x.requires_grad:  # whole numbers that need most of the dtype's digits
                most = int(2**-4 / torch.finfo(x.dtype).eps)
                drawn[name] = draw(*x.shape, dtype=x.dtype, low=-most, high=most)
        gradients = g.ByRank({name: n * xs[r] for name, xs in drawn.items()} for r in range(n))
        if label == UNUSED:
            del draw.rng.choice(gradients)["layer.weight"]
        listed.append(g.Case(label, label, gradients))
    return listed


def model(kind: str) -> nn.Module:
    """Layers, and a number: the head is the embedding, and the layer's bias is frozen."""
    embedding, layer, head = nn.Embedding(5, 3), nn.Linear(3, 5), nn.Linear(3, 5, bias=False)
    head.weight, layer.bias.requires_grad = embedding.weight, False
    if kind != "float32":
        embedding.bfloat16()
        layer.double()
    norm = nn.LayerNorm(3)
    norm.scale = nn.Parameter(torch.ones(()))
    module = nn.ModuleDict({"embedding": embedding, "norm": norm, "layer": layer, "head": head})
    for parameter in module.parameters():
        nn.init.ones_(parameter)  # the same model on every rank
    return module


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Give the module its gradients, call the function, and return what grad is then."""
    kind, gradients = args
    module = model(kind)
    before = [x.clone() for x in module.parameters()]
    for name, gradient in gradients.items():
        module.get_parameter(name).grad = gradient.clone()
    watch.function(module, watch.group)
    is_changed = not all(map(torch.equal, before, module.parameters()))
    return {name: x.grad for name, x in module.named_parameters()} | {"changed": is_changed}


def right(kind: str, by_rank: g.ByRank) -> dict[str, Any]:
    """Return the mean over the ranks; a missing gradient counts as zeros."""
    names = [name for name, _ in model(kind).named_parameters()]
    held = {name: [its[name] for its in by_rank if name in its] for name in names}
    means = {name: sum(each) / len(by_rank) if each else None for name, each in held.items()}
    return means | {"changed": False}


def budget(s: g.Observed) -> g.Budget:
    """Each gradient once, in its own dtype."""
    means = [x for x in s.right[0].values() if isinstance(x, Tensor)]
    return g.Budget(collectives=len(means), payload_bytes=sum(x.nbytes for x in means))


DIVISION = "        parameter.grad /= group.size  # before"
REDUCTION = "group.all_reduce(parameter.grad, out=parameter.grad)"
FROZEN = "if not parameter.requires_grad:"
MISTAKES = [
    g.Mistake(
        "gradients stay as they were",
        "all_reduce returns the sum and leaves its argument alone: pass out=, or assign what it "
        "returns to parameter.grad.",
        [
            g.patch(", out=parameter.grad)", ")"),
            g.patch(", out=parameter.grad)", ")", DIVISION, "        #"),
        ],
        hint=3,
    ),
    g.Mistake(
        "sums instead of averaging",
        "Each rank's loss is a mean over its own examples. The gradient of the whole batch is the "
        "mean of the ranks' gradients; the sum is n times as large. A division while an all-reduce "
        "is under way is lost: divide before it, or after wait().",
        g.patch(DIVISION, "        #"),
    ),
    g.Mistake(
        "gives a frozen parameter a gradient",
        "The grad of a frozen parameter stays None: with a gradient, even of zeros, an optimizer "
        "applies weight decay to it. Skip parameters with requires_grad=False.",
        g.patch(FROZEN, "if False:"),
        hint=3,
    ),
    g.Mistake(
        "a rank without a gradient gets no mean",
        "A rank that did not use a parameter must store the mean too. Otherwise its optimizer does "
        "not update this parameter, and the ranks' models differ.",
        g.patch(
            "parameter.grad = torch.zeros_like(parameter)",
            "group.all_reduce(torch.zeros_like(parameter))\n            continue",
        ),
        hint=2,
    ),
    g.Mistake(
        "divides by another number than that of all ranks",
        'Divide by the number of all ranks, once: before the sum, after it, or with op="mean". A '
        "rank that did not use a parameter counts as zeros.",
        [
            g.patch("out=parameter.grad)", 'out=parameter.grad, op="mean")'),
            g.patch(
                DIVISION,
                "        users = (parameter.grad != 0).any().float()\n"
                "        parameter.grad /= group.all_reduce(users)  #",
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "a rank without a gradient skips the all-reduce",
        "Every rank makes the same all-reduces. requires_grad is the same on all ranks; `grad is "
        "None` is not. A rank without a gradient takes part with zeros.",
        g.patch(FROZEN, "if parameter.grad is None:"),
        hung=lambda s: len({tuple(e.shape for e in s.operations(r)) for r in range(s.n)}) > 1,
        hint=2,
    ),
    g.Mistake(
        "sends more than the gradients",
        "torch.cat of several dtypes promotes all of them to the widest one: make one flat tensor "
        "per dtype. And a tied parameter has two names and one gradient, which travels once: "
        "module.parameters() yields it once, a loop over submodules does not.",
        g.patch(REDUCTION, "parameter.grad.copy_(group.all_reduce(parameter.grad.double()))"),
        over_budget=lambda s: s.payload_bytes(0) > budget(s).payload_bytes,
        hint=2,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    call=call,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    world_sizes=(3, 2, 1),
    closed=("labkit.data_parallel",),
    shown="every trained parameter has the mean of its gradients on every rank, also where it is "
    "tied or a rank did not use it; frozen ones have none, and each gradient travels once",
)
