"""Mutant: waits for the last all-reduce before it begins the next one.

outcome: "over budget"
diagnosis: "waits inside backward"
"""


def overlap_backward(module, loss, group):
    order = [each for each in reversed(list(module.parameters())) if each.requires_grad]
    ready, begun = set(), []

    def on_gradient(parameter):
        ready.add(parameter)
        while len(begun) < len(order) and order[len(begun)] in ready:
            if begun:
                begun[-1].wait()
            gradient = order[len(begun)].grad
            begun.append(group.all_reduce(gradient, op="mean", out=gradient, wait=False))

    hooks = [each.register_post_accumulate_grad_hook(on_gradient) for each in order]
    loss.backward()
    for hook in hooks:
        hook.remove()
    for pending in begun:
        pending.wait()
