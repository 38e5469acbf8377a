"""Mutant: in the order of module.parameters().

outcome: "over budget"
diagnosis: "waits for the first layer's gradient"
"""


def overlap_backward(module, loss, group):
    order = [each for each in module.parameters() if each.requires_grad]
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
