"""Grade average_gradients: the mean in every trained parameter's grad, each gradient sent once."""

from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade import grader as g

UNUSED = "head.weight unused on one rank"


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Modules with tied, frozen and unused parameters, and with several dtypes."""

    def case(kind: str) -> g.Case:
        drawn = {}
        for name, x in model(kind).named_parameters():
            if x.requires_grad:  # whole numbers that need most of the dtype's digits
                most = int(2**-4 / torch.finfo(x.dtype).eps)
                drawn[name] = draw(*x.shape, dtype=x.dtype, low=-most, high=most)
        gradients = g.ByRank({name: n * xs[r] for name, xs in drawn.items()} for r in range(n))
        if kind == UNUSED:
            del draw.rng.choice(gradients)["head.weight"]
        return g.Case(kind, kind, gradients)

    kinds = ["float32", "tied head", "frozen parameters", "three dtypes", *[UNUSED] * (n > 1)]
    return [case(kind) for kind in kinds]


def model(kind: str) -> nn.Module:
    """Layers with parameters of one and two dimensions, and a number."""
    layers = {"embedding": nn.Embedding(5, 3), "layer": nn.Linear(3, 5)}
    module = nn.ModuleDict(layers | {"head": nn.Linear(3, 5, bias=False)})
    module.scale = nn.Parameter(torch.ones(()))
    if "tied" in kind:
        module["head"].weight = module["embedding"].weight
    if "frozen" in kind:
        module["embedding"].weight.requires_grad = module["layer"].bias.requires_grad = False
    if kind == "three dtypes":
        module["layer"].double()
        module["head"].bfloat16()
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


def right(kind: str, gradients: g.ByRank) -> dict[str, Any]:
    """The mean over the ranks; a missing gradient counts as zeros."""
    found: dict[str, Any] = {"changed": False}
    for name, x in model(kind).named_parameters():
        held = [its[name] for its in gradients if name in its]
        found[name] = sum(held) / len(gradients) if x.requires_grad else None
    return found


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
        "does not give every rank the mean",
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
        hung=lambda s: s.args[0] == UNUSED,
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
