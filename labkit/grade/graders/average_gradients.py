"""Grade average_gradients: the mean in every trained parameter's grad, each gradient sent once."""

from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade.grader import (
    Budget,
    ByRank,
    Case,
    Draw,
    Mistake,
    Observed,
    OnRanks,
    Outcome,
    close,
    patch,
)

FLOAT32 = (torch.float32, torch.float32, torch.float32)
LARGEST = {torch.float32: 2**19, torch.float64: 2**44, torch.bfloat16: 8}


def model(dtypes: tuple[torch.dtype, ...], frozen: list[str], is_tied: bool) -> nn.Module:
    """A module with parameters of 0, 1 and 2 dimensions; all are ones."""
    layers = [nn.Embedding(5, 3), nn.Linear(3, 5), nn.Linear(3, 5, bias=False)]
    names = ["embedding", "layer", "head"]
    module = nn.ModuleDict({n: x.to(t) for n, x, t in zip(names, layers, dtypes)})
    module.register_parameter("scale", nn.Parameter(torch.ones(())))
    if is_tied:
        module["head"].weight = module["embedding"].weight
    for name, parameter in module.named_parameters():
        nn.init.ones_(parameter)
        parameter.requires_grad = name not in frozen
    return module


def cases(n: int, draw: Draw) -> list[Case]:
    """Modules with frozen, tied and unused parameters, and with several dtypes."""
    frozen, unused = ["embedding.weight", "layer.bias"], "head.weight"
    rank, mixed = draw.rng.randrange(n), (torch.float32, torch.float64, torch.bfloat16)
    described = [
        ("float32", (FLOAT32, [], False), {}),
        ("head and embedding tied", (FLOAT32, [], True), {}),
        (f"{' and '.join(frozen)} frozen", (FLOAT32, frozen, False), {}),
        (f"{unused} unused on rank {rank}", (FLOAT32, [], False), {rank: unused}),
        ("three dtypes", (mixed, [], False), {}),
    ]
    return [
        Case(label, *its, gradients(n, draw, model(*its), unused))
        for label, its, unused in described
        if n > 1 or not unused
    ]


def gradients(n: int, draw: Draw, module: nn.Module, unused: dict[int, str]) -> ByRank:
    """Make gradients of trained parameters, by rank and name; multiples of n, for exact means."""
    drawn = {
        name: draw(*x.shape, dtype=x.dtype, low=-LARGEST[x.dtype], high=LARGEST[x.dtype])
        for name, x in module.named_parameters()
        if x.requires_grad
    }
    return ByRank(
        {name: n * xs[rank] for name, xs in drawn.items() if name != unused.get(rank)}
        for rank in range(n)
    )


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Give the module its gradients, call the function, and return what grad is then."""
    *described, gradients = args
    module = model(*described)
    for name, gradient in gradients.items():
        module.get_parameter(name).grad = gradient.clone()
    watch.function(module, watch.group)
    values = dict(module.named_parameters())
    is_changed = any(bool((x != 1).any()) for x in values.values())
    return {name: x.grad for name, x in values.items()} | {"parameters changed": is_changed}


def right(dtypes: Any, frozen: Any, is_tied: bool, given: ByRank) -> dict[str, Any]:
    """The mean over the ranks; a missing gradient counts as zeros."""
    names = [name for name, _ in model(dtypes, frozen, is_tied).named_parameters()]
    return {name: mean(name, given, len(given)) for name in names} | {"parameters changed": False}


def mean(name: str, given: ByRank, n: int) -> Tensor | None:
    """The sum of a parameter's gradients, divided by n; None where there is none."""
    found = [its[name] for its in given if name in its]
    return (sum(x.double() for x in found) / n).to(found[0].dtype) if found else None


def sizes(s: Observed) -> list[Tensor]:
    """The means: one tensor per trained parameter."""
    return [x for x in s.right[0].values() if isinstance(x, Tensor)]


def budget(s: Observed) -> Budget:
    """Each gradient once, in its own dtype."""
    return Budget(collectives=len(sizes(s)), payload_bytes=sum(x.nbytes for x in sizes(s)))


def wrong(s: Observed) -> list[tuple[int, str, Any, Tensor]]:
    """(rank, name, grad, mean) of every trained parameter whose grad is not the mean."""
    return [
        (rank, name, s.ys[rank][name], x)
        for rank in range(s.n)
        for name, x in s.right[rank].items()
        if isinstance(x, Tensor) and not close(s.ys[rank][name], x)
    ]


def all_wrong(s: Observed, is_so: Any) -> bool:
    """Whether a gradient is wrong, and `is_so(rank, name, grad, mean)` for every wrong one."""
    return bool(wrong(s)) and all(is_so(*each) for each in wrong(s))


def is_own(s: Observed) -> bool:
    """Whether wrong gradients are what they were before the call, or that divided by n."""
    return all_wrong(
        s,
        lambda rank, name, got, _: any(
            close(got, s.args[3][rank].get(name, 0 * got) / k) for k in (1, s.n)
        ),
    )


def num_wrong(s: Observed) -> int:
    """How many parameters have a wrong gradient on some rank."""
    return len({name for _, name, _, _ in wrong(s)})


def numel_too_many(s: Observed) -> int:
    """How many numbers rank 0 sends beyond those of the gradients."""
    return sum(e.numel for e in s.operations(0)) - sum(x.numel() for x in sizes(s))


def has_unused(s: Observed) -> bool:
    """Whether some rank lacks a gradient of a trained parameter."""
    return len({len(its) for its in s.args[3]}) > 1


DIVISION = (
    "        parameter.grad /= group.size  # before the sum, which could overflow in float16\n"
)
REDUCTION = "group.all_reduce(parameter.grad, out=parameter.grad)"
MISTAKES = [
    Mistake(
        "the gradients stay as they were",
        "all_reduce returns the sum and leaves its argument alone. Pass out=, or assign what it "
        "returns to parameter.grad.",
        hint=3,
        seen=lambda s: is_own(s) and num_wrong(s) == len(sizes(s)),
        made_by=patch(
            DIVISION, "", REDUCTION, 'mean = group.all_reduce(parameter.grad, op="mean")'
        ),
    ),
    Mistake(
        "skips parameters",
        "Some gradients are still each rank's own, so the ranks' models drift apart without an "
        "error. Average every parameter of module.parameters() that has requires_grad.",
        hint=3,
        seen=lambda s: is_own(s) and num_wrong(s) < len(sizes(s)),
        made_by=patch("if not parameter.requires_grad:", "if parameter.dim() < 2:"),
    ),
    Mistake(
        "sums instead of averaging",
        "Each rank's loss is a mean over its own examples. The gradient of the whole batch is the "
        "mean of the ranks' gradients; the sum is n times as large. A division while an all-reduce "
        "is under way is lost: divide before it, or after wait().",
        seen=lambda s: all_wrong(s, lambda _rank, _name, got, x: close(got, x * s.n)),
        made_by=patch(DIVISION, ""),
    ),
    Mistake(
        "divides by the number of ranks twice",
        'Divide before the sum, or after it, or pass op="mean": only one of these. If only a tied '
        "parameter is wrong, your loop comes to it twice; module.parameters() yields it once.",
        hint=3,
        seen=lambda s: all_wrong(s, lambda _rank, _name, got, x: close(got, x / s.n)),
        made_by=patch("out=parameter.grad)", 'out=parameter.grad, op="mean")'),
    ),
    Mistake(
        "gives a frozen parameter a gradient",
        "The grad of a frozen parameter stays None: with a gradient, even of zeros, an optimizer "
        "applies weight decay to it. Skip parameters with requires_grad=False.",
        hint=3,
        seen=lambda s: any(y[name] is not None for y in s.ys for name in s.args[1]),
        made_by=patch("if not parameter.requires_grad:", "if False:"),
    ),
    Mistake(
        "crashes where grad is None",
        "grad is None in two cases. A frozen parameter has none on any rank: skip it. A trained "
        "parameter has none where a rank's loss did not use it: that rank takes part with zeros.",
        hint=2,
        outcome=Outcome.CRASHED,
        seen=lambda s: bool(s.args[1]) or has_unused(s),
        made_by=patch("if parameter.grad is None:", "if False:"),
    ),
    Mistake(
        "a rank without a gradient skips the all-reduce",
        "Every rank makes the same all-reduces. requires_grad is the same on all ranks; `grad is "
        "None` is not. A rank without a gradient takes part with zeros.",
        hint=2,
        outcome=Outcome.HUNG,
        seen=has_unused,
        made_by=patch("if not parameter.requires_grad:", "if parameter.grad is None:"),
    ),
    Mistake(
        "does not give every rank the mean",
        "A rank that did not use a parameter must store the mean too. Otherwise its optimizer does "
        "not update this parameter, and the ranks' models differ.",
        hint=2,
        seen=lambda s: all_wrong(s, lambda rank, name, _got, _mean: name not in s.args[3][rank]),
        made_by=patch(
            "parameter.grad = torch.zeros_like(parameter)",
            "group.all_reduce(torch.zeros_like(parameter))\n            continue",
        ),
    ),
    Mistake(
        "divides by the ranks that have a gradient",
        "A rank that did not use a parameter counts as zeros: divide by the number of all ranks.",
        hint=2,
        seen=lambda s: all_wrong(
            s,
            lambda _rank, name, got, _mean: close(
                got, mean(name, s.args[3], sum(name in its for its in s.args[3]))
            ),
        ),
        made_by=patch(
            DIVISION,
            "        users = group.all_reduce((parameter.grad != 0).any().float())\n"
            "        parameter.grad /= users\n",
        ),
    ),
    Mistake(
        "loses digits",
        "The gradients travelled, or were summed, in a dtype with fewer digits than their own. "
        "Keep each gradient in its own dtype: one flat tensor for several dtypes cannot.",
        hint=2,
        seen=lambda s: all_wrong(
            s, lambda _rank, _name, got, x: (got - x).abs().max() <= 2**-5 * LARGEST[x.dtype]
        ),
        made_by=patch(
            REDUCTION,
            "parameter.grad = group.all_reduce(parameter.grad.bfloat16()).to(parameter.dtype)",
        ),
    ),
    Mistake(
        "sends gradients in a wider dtype",
        "torch.cat of several dtypes promotes all of them to the widest one. Make one flat tensor "
        "per dtype, or one all-reduce per parameter.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: numel_too_many(s) == 0 and s.payload_bytes(0) > budget(s).payload_bytes,
        made_by=patch(REDUCTION, "parameter.grad.copy_(group.all_reduce(parameter.grad.double()))"),
    ),
    Mistake(
        "reduces a tied parameter twice",
        "A tied parameter has two names and one gradient, which travels once. module.parameters() "
        "yields it once; a loop over the submodules' own parameters does not.",
        hint=3,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: s.args[2] and numel_too_many(s) > 0,
        made_by=patch(
            "for parameter in module.parameters():",
            "for _, parameter in module.named_parameters(remove_duplicate=False):",
        ),
    ),
]

GRADER = OnRanks(
    name="average_gradients",
    cases=cases,
    right=right,
    call=call,
    num_arguments=2,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    world_sizes=(3, 2, 1),
    closed=("labkit.data_parallel",),
    shown="every trained parameter has the mean of its gradients on every rank, also where it is "
    "tied or a rank did not use it; frozen ones have none, and each gradient travels once",
)
