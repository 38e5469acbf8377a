"""Mutant: each rank in the order in which its gradients are there.

outcome: "wrong"
diagnosis: "mixes gradients of different parameters"
"""


def overlap_backward(module, loss, group):
    order = [each for each in reversed(list(module.parameters())) if each.requires_grad]
    in_flight = []

    def on_gradient(parameter):
        gradient = parameter.grad
        in_flight.append(group.all_reduce(gradient, op="mean", out=gradient, wait=False))

    hooks = [each.register_post_accumulate_grad_hook(on_gradient) for each in order]
    loss.backward()
    for hook in hooks:
        hook.remove()
    for pending in in_flight:
        pending.wait()
