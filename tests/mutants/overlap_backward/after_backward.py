"""Mutant: hooks that collect, and all-reduces afterwards.

outcome: "over budget"
diagnosis: "communicates only when backward is through"
"""


def overlap_backward(module, loss, group):
    order = [each for each in reversed(list(module.parameters())) if each.requires_grad]
    ready, in_flight = set(), []

    def on_gradient(parameter):
        ready.add(parameter)

    hooks = [each.register_post_accumulate_grad_hook(on_gradient) for each in order]
    loss.backward()
    for hook in hooks:
        hook.remove()
    for each in order:
        in_flight.append(group.all_reduce(each.grad, op="mean", out=each.grad, wait=False))
    for pending in in_flight:
        pending.wait()
