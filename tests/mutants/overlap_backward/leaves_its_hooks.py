"""Mutant: hooks are never removed.

outcome: "wrong"
diagnosis: "leaves its hooks behind"
"""


def overlap_backward(module, loss, group):
    order = [each for each in reversed(list(module.parameters())) if each.requires_grad]
    ready, in_flight = set(), []

    def on_gradient(parameter):
        ready.add(parameter)
        while len(in_flight) < len(order) and order[len(in_flight)] in ready:
            gradient = order[len(in_flight)].grad
            in_flight.append(group.all_reduce(gradient, op="mean", out=gradient, wait=False))

    for each in order:
        each.register_post_accumulate_grad_hook(on_gradient)
    loss.backward()
    for pending in in_flight:
        pending.wait()
