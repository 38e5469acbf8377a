"""Grade average_gradients: the mean in every trained parameter's grad, each gradient sent once."""

from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade import grader as g


def model(dtypes: Any, frozen: list[str], is_tied: bool) -> nn.Module:
    """Layers with parameters of one and two dimensions, and a number."""
    layers = nn.Embedding(5, 3), nn.Linear(3, 5), nn.Linear(3, 5, bias=False)
    names = "embedding", "layer", "head"
    module = nn.ModuleDict({name: x.to(dtype) for name, x, dtype in zip(names, layers, dtypes)})
    module.scale = nn.Parameter(torch.ones(()))
    if is_tied:
        module["head"].weight = module["embedding"].weight
    for name, parameter in module.named_parameters():
        parameter.requires_grad = name not in frozen
    return module


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Modules with tied, frozen and unused parameters, and with several dtypes."""
    one = draw.rng.randrange(n)

    def case(label: str, dtypes: Any, frozen: Any = (), tied: bool = False, unused: str = ""):
        drawn = {}
        for name, x in model(dtypes, frozen, tied).named_parameters():
            if x.requires_grad:  # whole numbers that need most of the dtype's digits
                most = int(2**-4 / torch.finfo(x.dtype).eps)
                drawn[name] = draw(*x.shape, dtype=x.dtype, low=-most, high=most)
        gradients = g.ByRank(
            {name: n * xs[r] for name, xs in drawn.items() if r != one or name != unused}
            for r in range(n)
        )
        return g.Case(label, dtypes, frozen, tied, gradients)

    plain, frozen = [torch.float32] * 3, ["embedding.weight", "layer.bias"]
    unused = case(f"head.weight unused on rank {one}", plain, unused="head.weight")
    return [
        case("float32", plain),
        case("head and embedding tied", plain, tied=True),
        case("embedding.weight and layer.bias frozen", plain, frozen),
        case("three dtypes", [torch.float32, torch.float64, torch.bfloat16]),
        *([unused] if n > 1 else []),
    ]


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Give the module its gradients, call the function, and return what grad is then."""
    *described, gradients = args
    module = model(*described)
    before = [x.clone() for x in module.parameters()]
    for name, gradient in gradients.items():
        module.get_parameter(name).grad = gradient.clone()
    watch.function(module, watch.group)
    is_changed = not all(map(torch.equal, before, module.parameters()))
    return {name: x.grad for name, x in module.named_parameters()} | {"changed": is_changed}


def right(dtypes: Any, frozen: list[str], tied: bool, gradients: g.ByRank) -> dict[str, Any]:
    """The mean over the ranks; a missing gradient counts as zeros."""
    means = {
        name: sum(its[name] for its in gradients if name in its) / len(gradients)
        for name in set().union(*gradients)
    }
    return means | dict.fromkeys(frozen) | {"changed": False}


def budget(s: g.Observed) -> g.Budget:
    """Each gradient once, in its own dtype."""
    means = [x for x in s.right[0].values() if isinstance(x, Tensor)]
    return g.Budget(collectives=len(means), payload_bytes=sum(x.nbytes for x in means))


def is_nearly(got: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether all is right but for digits: within 1% of the largest number."""
    return all(
        torch.allclose(got[name], x, rtol=0, atol=0.01 * x.abs().max().item())
        if isinstance(x, Tensor)
        else got[name] is x
        for name, x in right.items()
    )


DIVISION = "        parameter.grad /= group.size  # before"
REDUCTION = "group.all_reduce(parameter.grad, out=parameter.grad)"
FROZEN = "if not parameter.requires_grad:"
MISTAKES = [
    g.Mistake(
        "gradients stay as they were",
        "all_reduce returns the sum and leaves its argument alone: pass out=, or assign what it "
        "returns to parameter.grad. If only some gradients are wrong, the loop skips them: average "
        "every parameter of module.parameters() that has requires_grad.",
        [
            g.patch(", out=parameter.grad)", ")"),
            g.patch(", out=parameter.grad)", ")", DIVISION, "        #"),
            g.patch(FROZEN, "if not parameter.requires_grad or parameter.dim() == 0:"),
            g.patch(FROZEN, "if not parameter.requires_grad or parameter.dim() < 2:"),
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
        "divides by the number of ranks twice",
        'Divide before the sum, or after it, or pass op="mean": only one of these.',
        g.patch("out=parameter.grad)", 'out=parameter.grad, op="mean")'),
        hint=3,
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
        "divides by the ranks that have a gradient",
        "A rank that did not use a parameter counts as zeros: divide by the number of all ranks.",
        g.patch(
            DIVISION,
            "        users = (parameter.grad != 0).any().float()\n"
            "        parameter.grad /= group.all_reduce(users)  #",
        ),
        hint=2,
    ),
    g.Mistake(
        "a rank without a gradient skips the all-reduce",
        "Every rank makes the same all-reduces. requires_grad is the same on all ranks; `grad is "
        "None` is not. A rank without a gradient takes part with zeros.",
        g.patch(FROZEN, "if parameter.grad is None:"),
        hung=lambda s: len({len(its) for its in s.args[3]}) > 1,
        hint=2,
    ),
    g.Mistake(
        "sums gradients in another dtype than their own",
        "One flat tensor has one dtype. In float32 a float64 gradient loses digits, and a bfloat16 "
        "one takes twice the bytes. Sum each gradient in its own dtype: by itself, or in one flat "
        "tensor per dtype.",
        g.patch(REDUCTION, "parameter.grad.copy_(group.all_reduce(parameter.grad.float()))"),
        seen=lambda s: all(map(is_nearly, s.ys, s.right)),
        hint=2,
    ),
    g.Mistake(
        "sends more than the gradients",
        "torch.cat of several dtypes promotes all of them to the widest one: make one flat tensor "
        "per dtype. And a tied parameter has two names and one gradient, which travels once: "
        "module.parameters() yields it once, a loop over submodules does not.",
        [
            g.patch(REDUCTION, "parameter.grad.copy_(group.all_reduce(parameter.grad.double()))"),
            g.patch(
                "in module.parameters():",
                "in dict(module.named_parameters(remove_duplicate=False)).values():",
            ),
        ],
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
