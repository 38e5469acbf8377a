"""Mutant: each rank in the order in which its gradients are there, as copies without a name.

outcome: "wrong"
diagnosis: "mixes gradients of different parameters"
"""


def overlap_backward(module, loss, group):
    order = [each for each in reversed(list(module.parameters())) if each.requires_grad]
    in_flight, copies = [], []

    def on_gradient(parameter):
        copies.append([parameter, parameter.grad.flatten().tolist()])
        flat = parameter.grad.new_tensor(copies[-1][1])
        in_flight.append((parameter, group.all_reduce(flat, op="mean", wait=False)))

    hooks = [each.register_post_accumulate_grad_hook(on_gradient) for each in order]
    loss.backward()
    for hook in hooks:
        hook.remove()
    for parameter, pending in in_flight:
        parameter.grad.copy_(pending.wait().view_as(parameter))
