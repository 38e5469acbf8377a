"""Grade overlap_backward: means over the ranks, with all-reduces that start during backward.

    x -> left  -+
                +-> head -> loss
    x -> right -+

Autograd goes first through the branch that ran last in forward. So ranks that compute the branches
in different orders finish their gradients in different orders.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade import grader as g

COMPLETE = "a gradient is complete"


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Ranks that finish gradients in one order or in two; frozen parameters."""
    frozen = draw.rng.sample(["left.weight", "left.bias", "right.weight", "right.bias"], 2)
    same, different = g.ByRank([True] * n), g.ByRank(rank % 2 == 0 for rank in range(n))
    xs = draw.normal(2, 3)
    return [
        g.Case("all ranks finish gradients in one order", model(draw), same, xs),
        g.Case(f"{' and '.join(frozen)} frozen", model(draw, *frozen), same, xs),
        g.Case("odd ranks finish gradients in another order", model(draw), different, xs),
    ]


def model(draw: g.Draw, *frozen: str) -> nn.ModuleDict:
    """Return the layers of the picture."""
    layers = {"left": nn.Linear(3, 4), "right": nn.Linear(3, 4), "head": nn.Linear(4, 1)}
    module = nn.ModuleDict(layers)
    for name, x in module.named_parameters():
        x.data = draw.same(*x.shape, dtype=x.dtype)
        x.requires_grad = name not in frozen
    return module


def loss_of(module: nn.ModuleDict, left_first: bool, x: Tensor) -> Tensor:
    """Return the loss of a batch."""
    branches = ("left", "right") if left_first else ("right", "left")
    outputs = [torch.tanh(module[name](x)) for name in branches]
    return (module["head"](outputs[0] * outputs[1]) ** 2).mean()


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Note when each gradient is complete; return the gradients, and whether hooks are left."""
    module = copy.deepcopy(args[0])

    def on_gradient(parameter: Tensor) -> None:
        watch.note(COMPLETE)

    # Registered first, these hooks run before the learner's.
    trained = [x for x in module.parameters() if x.requires_grad]
    handles = [x.register_post_accumulate_grad_hook(on_gradient) for x in trained]
    watch.function(module, loss_of(module, *args[1:]), watch.group)
    for handle in handles:
        handle.remove()
    kinds = ("_post_accumulate_grad_hooks", "_backward_hooks", "_forward_hooks")
    owners = [*module.modules(), *trained]
    has_hooks = any(getattr(each, kind, None) for each in owners for kind in kinds)
    return {name: x.grad for name, x in module.named_parameters()} | {"hooks left": has_hooks}


def right(module: nn.ModuleDict, left_first: g.ByRank, xs: g.ByRank) -> dict[str, Any]:
    """One process with the whole batch."""
    module = copy.deepcopy(module)
    loss_of(module, True, torch.cat(xs)).backward()
    return {name: x.grad for name, x in module.named_parameters()} | {"hooks left": False}


def budget(s: g.Observed) -> g.Budget:
    """Each gradient once."""
    sizes = [x.nbytes for x in s.right[0].values() if isinstance(x, Tensor)]
    return g.Budget(collectives=len(sizes), payload_bytes=sum(sizes))


def during_backward(s: g.Observed) -> Iterator[list[Any]]:
    """The events of each rank until its last gradient is complete; of one rank alone none."""
    for rank in s.ranks if s.n > 1 else []:
        last = max(i for i, e in enumerate(rank.events) if e.what == COMPLETE)
        yield rank.events[:last]


def starts_late(s: g.Observed) -> bool:
    """Return whether a rank starts no all-reduce during backward."""
    return any(all(e.what != "all_reduce" for e in events) for events in during_backward(s))


def waits_early(s: g.Observed) -> bool:
    """Return whether a rank waits during backward, or starts an all-reduce that blocks."""
    return any(
        e.what == "wait" or (e.what == "all_reduce" and not e.is_pending)
        for events in during_backward(s)
        for e in events
    )


TURN = "while len(in_flight) < len(order) and order[len(in_flight)] in ready:"
TRAINED, HOOKS = " if each.requires_grad]", "(on_gradient) for each in order]"
MISTAKES = [
    g.Mistake(
        "sums instead of averaging",
        "The gradient of the whole batch is the mean of the ranks' gradients. A division while an "
        "all-reduce is under way is lost: divide before it starts, or after wait().",
        g.patch('op="mean", ', ""),
    ),
    g.Mistake(
        "gradients stay as they were",
        "Without out=, the result is what wait() returns: store it in parameter.grad. If only some "
        "gradients are wrong, their all-reduces never started: a frozen parameter must not hold up "
        "the gradients behind it.",
        [
            g.patch("out=gradient, ", ""),
            g.patch(TRAINED, "]", HOOKS, f"{HOOKS[:-1]}{TRAINED}"),
        ],
        hint=3,
    ),
    g.Mistake(
        "mixes gradients of different parameters",
        "All-reduces are matched by their order alone. These ranks finish gradients in different "
        "orders, so gradients of left and right were added to each other. Fix one order for all "
        "ranks: a gradient that is complete before its turn waits for it.",
        g.patch(
            TURN, "if True:", "gradient = order[len(in_flight)].grad", "gradient = parameter.grad"
        ),
        hint=2,
    ),
    g.Mistake(
        "leaves its hooks on the module",
        "The hooks run again in the next backward, together with new ones. Keep the handles, and "
        "call remove() on each.",
        g.patch("hook.remove()", "pass"),
        hint=3,
    ),
    g.Mistake(
        "starts fewer all-reduces than another rank",
        "One complete gradient may let several all-reduces start, since others waited for their "
        "turn: start as many as possible in a row (`while`, not `if`). In the end every rank has "
        "started the same ones.",
        g.patch("while len(in_flight) < len(order) and", "if"),
        hung=lambda s: len(set(s.args[1])) > 1 and any(rank.returned for rank in s.ranks),
        hint=3,
    ),
    g.Mistake(
        "starts no all-reduce before the last gradient",
        "The values are right, but nothing overlaps: the step takes as long as backward and the "
        "all-reduces together. Start each all-reduce in a hook, when its gradient is complete, in "
        "the order of backward: it begins with the last layer.",
        g.patch("reversed(list(module.parameters()))", "module.parameters()"),
        over_budget=starts_late,
        hint=2,
    ),
    g.Mistake(
        "waits inside backward",
        "A wait in a hook holds up backward, so nothing overlaps. Start each all-reduce with "
        "wait=False, keep its Pending, and wait when backward has ended.",
        g.patch("wait=False))", "wait=False))\n            in_flight[-1].wait()"),
        over_budget=waits_early,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    same=g.within(2**6),
    call=call,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    closed=("labkit.data_parallel",),
    shown="the gradients are means over the ranks, in whichever order they are complete; "
    "all-reduces start before the last gradient is complete, and each is waited for",
)
