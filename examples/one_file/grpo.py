"""GRPO in one file: sample groups of answers, reward them, and train on all tokens of all ranks.

    prompt 3, right answer 3 4 END      G answers          reward     advantage
                                        3 4 END            1           1.07
                                        3 4 1 0            2/3         0.27
                                        0 END              0          -1.34

    rank 0   prompts 0 1 -> answers -> rewards -> loss of its tokens -+
    rank 1   prompt 2    -> answers -> rewards -> loss of its tokens -+-> sum of gradients -> step

A group is the G answers to one prompt, and its mean is the baseline, instead of a critic. The loss
is a mean over the N tokens of all ranks, so N is counted before the loss. A ratio compares a
token's probability with that of the policy which generated it, as noted when it was generated.

Layout: the policy is whole on every rank; prompts and their groups are sharded.
Wire: per batch an all-reduce of one number, N. Per update an all-reduce of each gradient.
Papers: DeepSeekMath, arXiv:2402.03300; for the mean over tokens DAPO, arXiv:2503.14476.

    torchrun --nproc-per-node 2 grpo.py        or: python grpo.py, which starts two ranks
"""

import os
import sys
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

NUM_SYMBOLS, LENGTH = 5, 4  # symbols of prompts and answers; the longest answer
END = NUM_SYMBOLS


class Policy(nn.Module):
    """A recurrent model of the next token: prompts (B,), tokens (B, T) -> logits (B, T + 1, V)."""

    def __init__(self, hidden: int = 13) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_SYMBOLS + 1, hidden)
        self.cell = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, NUM_SYMBOLS + 1)

    def forward(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """Return the logits after the prompt, and after each token."""
        x = self.embedding(torch.cat([prompts[:, None], tokens], 1))
        return self.head(self.cell(x)[0])


class Answers(NamedTuple):
    """Answers to a rank's prompts, of B = P G rows and T columns."""

    prompts: Tensor  # (B,)
    tokens: Tensor  # (B, T)
    log_probs: Tensor  # (B, T), of the policy that generated them
    mask: Tensor  # (B, T), False after the first END
    advantages: Tensor  # (B,)


@torch.no_grad()
def generate(policy: Policy, prompts: Tensor, group: int, seed: int) -> Answers:
    """Sample `group` answers to each prompt. A prompt's answers depend on its seed and on itself.

    So they are the same on any number of ranks.
    """
    generators = [torch.Generator().manual_seed(1000 * seed + int(p)) for p in prompts]
    repeated = prompts.repeat_interleave(group)
    tokens = repeated.new_empty(len(repeated), 0)
    log_probs = torch.empty(len(repeated), 0, dtype=torch.float64)
    for _ in range(LENGTH):
        logits = policy(repeated, tokens)[:, -1].log_softmax(1)
        draws = [torch.rand(group, 1, generator=g, dtype=torch.float64) for g in generators]
        drawn = torch.cat(draws) if draws else logits[:, :1]
        token = (logits.exp().cumsum(1) < drawn).sum(1, keepdim=True).clamp(max=END)
        tokens = torch.cat([tokens, token], 1)
        log_probs = torch.cat([log_probs, logits.gather(1, token)], 1)
    ended = (tokens == END).cumsum(1)
    mask = (ended == 0) | ((ended == 1) & (tokens == END))
    advantages = group_advantages(rewards_of(repeated, tokens).view(-1, group)).flatten()
    return Answers(repeated, tokens, log_probs, mask, advantages)


def rewards_of(prompts: Tensor, tokens: Tensor) -> Tensor:
    """Return the share of the three tokens that are right, (B,)."""
    right = torch.stack([prompts, (prompts + 1) % NUM_SYMBOLS, torch.full_like(prompts, END)], 1)
    return (tokens[:, :3] == right).double().mean(1)


def group_advantages(rewards: Tensor) -> Tensor:
    """Return (reward - the group's mean) / the group's standard deviation, (P, G)."""
    centred = rewards - rewards.mean(1, keepdim=True)
    return centred / (rewards.std(1, correction=0, keepdim=True) + 1e-4)


def loss_of(policy: Policy, answers: Answers, num_tokens: Tensor, clip: float = 0.2) -> Tensor:
    """Return this rank's part of GRPO's loss. num_tokens: of the answers of all ranks."""
    logits = policy(answers.prompts, answers.tokens[:, :-1]).log_softmax(2)
    log_probs = logits.gather(2, answers.tokens[..., None])[..., 0]
    ratio = (log_probs - answers.log_probs).exp()
    advantages = answers.advantages[:, None]
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return -(gain * answers.mask).sum() / num_tokens


def train(rank: int, size: int, num_batches: int = 60) -> tuple[Policy, list[float]]:
    """Train on a share of the prompts. size 1: in this process alone.

    Return the policy, and the mean reward of all answers of each batch.
    """
    torch.manual_seed(0)
    policy = Policy().double()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.02)
    rewards = []
    for batch in range(num_batches):
        answers = generate(policy, torch.arange(NUM_SYMBOLS).tensor_split(size)[rank], 16, batch)
        total = torch.stack([answers.mask.sum().double(), rewards_of(*answers[:2]).sum()])
        if size > 1:
            dist.all_reduce(total)
        rewards.append(total[1].item() / (16 * NUM_SYMBOLS))
        for _ in range(2):  # the second update is off-policy: ratios differ from 1
            optimizer.zero_grad()
            loss_of(policy, answers, total[0]).backward()
            for p in policy.parameters() if size > 1 else ():
                dist.all_reduce(p.grad)  # a sum: each part is already divided by all tokens
            optimizer.step()
    return policy, rewards


def main() -> None:
    """Train on all ranks and in one process, and compare."""
    dist.init_process_group("gloo")  # on GPUs: "nccl", and .to(device)
    policy, rewards = train(dist.get_rank(), dist.get_world_size())
    serial, _ = train(0, 1)
    pairs = zip(policy.parameters(), serial.parameters())
    difference = max((a - b).abs().max().item() for a, b in pairs)
    first, last = rewards[0], rewards[-1]
    print(f"rank {dist.get_rank()}: reward {first:.2f} -> {last:.2f}, {difference=:.1e}")
    dist.destroy_process_group()
    if difference > 1e-9:
        raise SystemExit("GRPO on ranks is not the serial training")


if __name__ == "__main__":
    if "RANK" not in os.environ:  # not under torchrun: become it
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        os.execv(sys.executable, [sys.executable, *torchrun, *sys.argv])
    main()
