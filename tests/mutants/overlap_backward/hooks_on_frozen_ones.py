"""Mutant: a hook on every parameter.

outcome: "crashed"
diagnosis: "crashes on a frozen parameter"
"""


def overlap_backward(module, loss, group):
    order = list(module.parameters())[::-1]
    ready, in_flight = set(), []

    def on_gradient(parameter):
        ready.add(parameter)
        while len(in_flight) < len(order) and order[len(in_flight)] in ready:
            gradient = order[len(in_flight)].grad
            in_flight.append(group.all_reduce(gradient, op="mean", out=gradient, wait=False))

    hooks = [each.register_post_accumulate_grad_hook(on_gradient) for each in order]
    loss.backward()
    for hook in hooks:
        hook.remove()
    for pending in in_flight:
        pending.wait()
