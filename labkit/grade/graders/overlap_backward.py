"""Grade overlap_backward: means over the ranks, with all-reduces that start during backward.

    x -> left  -+
                +-> head -> loss
    x -> right -+

Autograd goes first through the branch that ran last in forward. So ranks that compute the branches
in different orders finish their gradients in different orders.
"""

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
    patch,
    program,
    within,
)

LAYERS = {"left": (3, 4), "right": (3, 4), "head": (4, 1)}
COMPLETE, ENDED = "a gradient is complete", "backward has ended"


def cases(n: int, draw: Draw) -> list[Case]:
    """Ranks that finish gradients in one order or in two; frozen parameters."""
    frozen = draw.rng.sample(["left.weight", "left.bias", "right.weight", "right.bias"], 2)
    same, different = ByRank([True] * n), ByRank(rank % 2 == 0 for rank in range(n))
    parameters = {}
    for name, (width, height) in LAYERS.items():
        parameters[f"{name}.weight"] = draw.same(height, width, dtype=torch.float64)
        parameters[f"{name}.bias"] = draw.same(height, dtype=torch.float64)
    xs = draw.normal(2, 3, dtype=torch.float64)
    return [
        Case("all ranks finish gradients in one order", [], same, parameters, xs),
        Case(f"{' and '.join(frozen)} frozen", frozen, same, parameters, xs),
        Case("odd ranks finish gradients in another order", [], different, parameters, xs),
    ]


def model_and_loss(
    frozen: list[str], left_first: bool, parameters: dict[str, Tensor], x: Tensor
) -> tuple[nn.Module, Tensor]:
    """The module after forward, and its loss."""
    module = nn.ModuleDict({name: nn.Linear(*LAYERS[name]).double() for name in LAYERS})
    module.load_state_dict(parameters)
    for name in frozen:
        module.get_parameter(name).requires_grad = False
    branches = ("left", "right") if left_first else ("right", "left")
    outputs = [torch.tanh(module[name](x)) for name in branches]
    return module, (module["head"](outputs[0] * outputs[1]) ** 2).mean()


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Note when each gradient is complete; return the gradients and the number of hooks left."""
    module, loss = model_and_loss(*args)
    parameters = dict(module.named_parameters())
    seen: list[Tensor] = []

    def on_gradient(parameter: Tensor) -> None:
        if not seen:
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: watch.note(ENDED))
        seen.append(parameter)
        watch.note(COMPLETE)

    # Registered first, these hooks run before the learner's.
    trained = [x for x in parameters.values() if x.requires_grad]
    handles = [x.register_post_accumulate_grad_hook(on_gradient) for x in trained]
    watch.function(module, loss, watch.group)
    for handle in handles:
        handle.remove()
    kinds = ("_post_accumulate_grad_hooks", "_backward_hooks", "_forward_hooks")
    owners = [*module.modules(), *trained]
    hooks = sum(len(getattr(each, kind, None) or ()) for each in owners for kind in kinds)
    return {name: x.grad for name, x in parameters.items()} | {"hooks left": hooks}


def own_results(*args: Any) -> list[dict[str, Any]]:
    """By rank, the gradients of a plain backward."""
    results = []
    for rank in range(len(args[-1])):
        its = [each[rank] if isinstance(each, ByRank) else each for each in args]
        module, loss = model_and_loss(*its)
        loss.backward()
        results.append({name: x.grad for name, x in module.named_parameters()} | {"hooks left": 0})
    return results


def right(*args: Any) -> dict[str, Any]:
    """The mean of the ranks' own gradients."""
    own = own_results(*args)
    sums = {name: x if x is None else sum(g[name] for g in own) for name, x in own[0].items()}
    return scaled(sums, 1 / len(own))


def scaled(result: dict[str, Any], factor: float) -> dict[str, Any]:
    """The gradients times a number."""
    return {name: x * factor if isinstance(x, Tensor) else x for name, x in result.items()}


def budget(s: Observed) -> Budget:
    """Each gradient once."""
    sizes = [x.nbytes for name, x in s.args[2].items() if name not in s.args[0]]
    return Budget(collectives=len(sizes), payload_bytes=sum(sizes))


def wrong(s: Observed) -> set[tuple[int, str]]:
    """(rank, parameter) of every wrong gradient."""
    return {
        (rank, name)
        for rank in range(s.n)
        for name in s.args[2]
        if not s.same(s.ys[rank][name], s.right[rank][name], s.case)
    }


def only_some_are_own(s: Observed) -> bool:
    """Whether all wrong gradients are the ranks' own, and some gradients are right."""
    own, names = own_results(*s.args), {name for _, name in wrong(s)}
    return 0 < len(names) < len(s.args[2]) - len(s.args[0]) and all(
        s.same(s.ys[rank][name], own[rank][name], s.case) for rank, name in wrong(s)
    )


def differs(s: Observed) -> bool:
    """Whether the ranks finish their gradients in different orders."""
    return len(set(s.args[1])) > 1


def is_mixed(s: Observed) -> bool:
    """Whether orders differ, and only gradients of the two branches are wrong."""
    names = {name for _, name in wrong(s)}
    return differs(s) and bool(names) and not any("head" in name for name in names)


def in_order(s: Observed) -> str:
    """Which rule about the order some rank breaks; empty where none does."""
    return next((rule for rank in range(s.n) if s.n > 1 and (rule := broken(s, rank))), "")


def broken(s: Observed, rank: int) -> str:
    """The rule about the order that a rank breaks; empty where it breaks none."""
    events = s.ranks[rank].events
    last = max((i for i, e in enumerate(events) if e.what == COMPLETE), default=-1)
    ended = next((i for i, e in enumerate(events) if e.what == ENDED), -1)
    started = [i for i, e in enumerate(events) if not e.is_note and e.what != "wait"]
    if not started or started[0] > ended:
        return "after"
    if started[0] > last:
        return "late"
    waits = [(i, e) for i, e in enumerate(events) if e.what == "wait" and e.began < last]
    # The end of a blocking operation has no site.
    return "waits" if any(i < last or e.site is None for i, e in waits) else ""


GRADIENT = "gradient = order[len(in_flight)].grad"
LOOP = "while len(in_flight) < len(order) and order[len(in_flight)] in ready:"
BUCKETS_AS_THEY_COME = """
import torch

def overlap_backward(module, loss, group):
    trained, bucket, in_flight = [p for p in module.parameters() if p.requires_grad], [], []

    def on_gradient(parameter):
        bucket.append(parameter)
        if len(bucket) == 2:
            flat = torch.cat([each.grad.flatten() for each in bucket])
            in_flight.append((bucket[:], group.all_reduce(flat, op="mean", wait=False)))
            bucket.clear()

    hooks = [each.register_post_accumulate_grad_hook(on_gradient) for each in trained]
    loss.backward()
    for hook in hooks:
        hook.remove()
    for its, pending in in_flight:
        for each, mean in zip(its, pending.wait().split([each.numel() for each in its])):
            each.grad.copy_(mean.view_as(each))
"""
MISTAKES = [
    Mistake(
        "sums instead of averaging",
        "The gradient of the whole batch is the mean of the ranks' gradients. A division while an "
        "all-reduce is under way is lost: divide before it starts, or after wait().",
        seen=lambda s: s.is_answer([scaled(r, s.n) for r in s.right]),
        made_by=patch('op="mean", ', ""),
    ),
    Mistake(
        "the gradients stay as they were",
        "Without out=, the result is what wait() returns. Store it in parameter.grad.",
        hint=3,
        seen=lambda s: s.is_answer(own_results(*s.args)),
        made_by=patch("out=gradient, ", ""),
    ),
    Mistake(
        "some gradients are never reduced",
        "When backward has ended, every trained parameter's all-reduce must have started. A frozen "
        "parameter, or an incomplete last bucket, must not hold up the gradients behind it.",
        hint=2,
        seen=only_some_are_own,
        made_by=patch("len(in_flight) < len(order)", "len(in_flight) < len(order) - 1"),
    ),
    Mistake(
        "mixes gradients of different parameters",
        "All-reduces are matched by their order alone. These ranks finish gradients in different "
        "orders, so gradients of left and right were added to each other. Fix one order for all "
        "ranks: a gradient that is complete before its turn waits for it.",
        hint=2,
        seen=is_mixed,
        made_by=program(BUCKETS_AS_THEY_COME),
    ),
    Mistake(
        "starts fewer all-reduces than another rank",
        "One complete gradient may let several all-reduces start, since others waited for their "
        "turn: start as many as possible in a row (`while`, not `if`). In the end every rank has "
        "started the same ones.",
        hint=3,
        outcome=Outcome.HUNG,
        seen=lambda s: differs(s) and any(rank.returned for rank in s.ranks),
        made_by=patch("while len(in_flight) < len(order) and", "if"),
    ),
    Mistake(
        "leaves its hooks on the module",
        "The hooks run again in the next backward, together with new ones. Keep the handles, and "
        "call remove() on each.",
        hint=3,
        seen=lambda s: any(y["hooks left"] for y in s.ys) and not wrong(s),
        made_by=patch("hook.remove()", "pass"),
    ),
    Mistake(
        "crashes on a frozen parameter",
        "A frozen parameter gets no gradient and accepts no hook. Leave out parameters with "
        "requires_grad=False.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: bool(s.args[0]),
        made_by=patch(" if each.requires_grad]", "]"),
    ),
    Mistake(
        "communicates only after backward",
        "The values are right, but nothing overlaps: the step takes as long as backward and the "
        "all-reduces together. Start each all-reduce in a hook, when its gradient is complete.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: in_order(s) == "after",
        made_by=patch(
            "    def on_gradient(parameter: torch.Tensor) -> None:\n",
            "    def on_gradient(parameter: torch.Tensor) -> None:\n        pass\n\n"
            "    def start(parameter: torch.Tensor) -> None:\n",
            "    loss.backward()\n",
            "    loss.backward()\n    for each in order:\n        start(each)\n",
        ),
    ),
    Mistake(
        "starts no all-reduce before the last gradient",
        "The first all-reduce waits for a gradient that backward completes last. Backward begins "
        "with the last layer: turn the order around, and do not collect all gradients first.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: in_order(s) == "late",
        made_by=patch("reversed(list(module.parameters()))", "module.parameters()"),
    ),
    Mistake(
        "waits inside backward",
        "A wait in a hook holds up backward, so nothing overlaps. Start each all-reduce with "
        "wait=False, keep its Pending, and wait when backward has ended.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: in_order(s) == "waits",
        made_by=patch("wait=False))", "wait=False))\n            in_flight[-1].wait()"),
    ),
]

GRADER = OnRanks(
    name="overlap_backward",
    cases=cases,
    right=right,
    same=within(64),
    call=call,
    num_arguments=3,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    closed=("labkit.data_parallel",),
    shown="the gradients are means over the ranks, in whichever order they are complete; "
    "all-reduces start before the last gradient is complete, and each is waited for",
)
