"""One update of PPO over ranks: the same gradient as one process with all samples.

An interviewer asks: "Four ranks collect samples with the same policy, and train it with PPO. What
has to be the same on all of them, and what different? Advantages are normalised: over which
samples? The ranks have 128, 96, 96 and 0 samples. What do you send, and how often?"

Write `flat_gradient_ppo(policy, observations, actions, log_probs, advantages, clip, group)`: it
leaves the gradient of the whole batch in the parameters' `grad`. The batch is the samples of all
ranks. The optimizer's step comes after it, and is not yours.

Contract
    policy        an nn.Module; policy(observations) returns log-probabilities of all actions,
                  (N, A), which have a gradient. Equal parameters on all ranks, in float64. Each
                  gets a gradient. `grad` is None before
    observations  (N, O) this rank's samples. N differs by rank, and may be 0 on some of them: then
                  policy(observations) is (0, A), and backward from a sum of it gives zeros.
                  `gather` works on it, torch.distributions.Categorical does not
    actions       (N,) whole numbers: the actions taken
    log_probs     (N,) their log-probabilities by the policy that acted
    advantages    (N,) not normalised
    clip          a float, such as 0.2
    group         `group.rank`, `group.size`, and `group.all_reduce(tensor)`, which returns the sum
                  over the ranks. With `out=tensor` the sum is left in `tensor`

    advantage_i   normalised over all samples of all ranks:
                  (advantages_i - mean) / (deviation + 1e-8), deviation = sqrt(mean of the squared
                  differences from the mean)
    ratio_i       = policy's probability of the action / its probability when it was taken
    loss          = the mean over all samples of all ranks of
                  - min(ratio_i advantage_i, clamp(ratio_i, 1 - clip, 1 + clip) advantage_i)
    afterwards    the grad of each parameter is the gradient of this loss, on every rank
    returns       nothing. Parameters and arguments do not change

Budget, on every rank
    collectives   two all-reduces: one of at most 24 bytes, one for all gradients together
    payload       the bytes of the gradients, and those 24

Not allowed: labkit.rl, labkit.data_parallel
Paper: Schulman et al., "Proximal policy optimization algorithms", arXiv:1707.06347.
"""

import torch
from torch import Tensor, nn

from labkit.comm import Group


def flat_gradient_ppo(
    policy: nn.Module,
    observations: Tensor,
    actions: Tensor,
    log_probs: Tensor,
    advantages: Tensor,
    clip: float,
    group: Group,
) -> None:
    """Set the gradients of PPO's loss over the samples of all ranks, with one flat all-reduce."""
    ### BEGIN SOLUTION
    sums = [torch.ones_like(advantages).sum(), advantages.sum(), advantages.square().sum()]
    count, total, squares = group.all_reduce(torch.stack(sums))
    mean = total / count
    deviation = (squares / count - mean**2).clamp(min=0).sqrt()
    advantages = (advantages - mean) / (deviation + 1e-8)
    now = policy(observations).gather(1, actions[:, None])[:, 0]
    ratio = (now - log_probs).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    gain = torch.minimum(ratio * advantages, clipped * advantages)
    (-gain.sum() / count).backward()  # sums of shares add up to the mean, whatever their sizes
    parameters = list(policy.parameters())
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    group.all_reduce(flat, out=flat)
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        parameter.grad = part.view_as(parameter)
    ### END SOLUTION
