"""The trainers of GRPO: a sharded policy, a reference model, and one step on a batch of answers.

    all trainers   policy (ZeRO-3 shards), its optimizer; reference (ZeRO-3 shards, frozen)
    a step         share of the answers -> log-probabilities -> grpo.py's loss -> mean gradients

The policy is an InvariantGPT, as the generators' is. So its log-probability of a token has the bits
that the generator recorded, if both have the same version: the ratio of an unchanged policy is
exactly 1. Each step measures it on a probe, fixed answers to fixed prompts that engines compute
after each update.

Wire of a step: ZeRO-3's gathers and reductions, for the reference too, and an all-reduce of sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.comm import Group
from labkit.data import Batch, counted
from labkit.optimizer import AdamW
from labkit.rl.completion import Completion
from labkit.rl.copying import on_targets, padded
from labkit.rl.figures import Figures
from labkit.rl.grpo import group_advantages, grpo_terms
from labkit.rl.invariant_gpt import InvariantGPT, token_log_probs
from labkit.rl.settings import Settings
from labkit.zero import FullyShardedModule


class Trainer:
    """One rank's share of the policy. A fault is a subclass that replaces one method."""

    def __init__(self, settings: Settings, group: Group) -> None:
        """group: the trainers."""
        self.settings, self.group = settings, group
        self.model = FullyShardedModule(self.make_module(), group)
        self.optimizer = AdamW(self.model.parameters(), settings.learning_rate, weight_decay=0.0)
        self.reference = self.model

    def make_module(self) -> nn.Module:
        """Return the whole model, with the weights of the settings' seed."""
        settings = self.settings
        return InvariantGPT(settings.config, settings.seed, num_experts=settings.num_experts)

    def warm_start(self) -> float:
        """Train on right answers, `warm_start` steps; return the last loss, in nats by token."""
        last = 0.0
        optimizer = AdamW(self.model.parameters(), 3e-3, weight_decay=0.0)
        for step in range(self.settings.warm_start):
            batch = self.settings.task.examples(step, 64)
            share = batch.share(self.group.rank, self.group.size)
            optimizer.zero_grad()
            log_probs_BT = self.log_probs(self.model, share)[0]
            mask_BT = counted(share.targets_BT)
            loss = -log_probs_BT.where(mask_BT, 0.0).sum() / batch.num_targets
            (loss * self.group.size).backward()
            optimizer.step()
            last = loss.item()
        return last

    def freeze_reference(self) -> None:
        """Keep the policy as it is now as the reference model."""
        module = self.make_module()
        module.requires_grad_(False)
        self.reference = FullyShardedModule(module, self.group)
        self.reference.load_full_parameters(self.model.full_parameters())

    def log_probs(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of the targets and entropies, (B, T) each."""
        logits_BTV = model(batch.inputs_BT)
        entropy_BT = -(F.softmax(logits_BTV, -1) * F.log_softmax(logits_BTV, -1)).sum(-1).detach()
        return token_log_probs(logits_BTV, batch.targets_BT.clamp(min=0)), entropy_BT

    def generated_log_probs(self, batch: Batch, answers: Sequence[Completion]) -> Tensor:
        """Return what the clip is anchored to: the policy that sampled each token, (B, T)."""
        return on_targets([each.log_probs for each in answers], batch.targets_BT)

    def step(self, answers: Sequence[Completion], figures: Figures) -> None:
        """Update the policy by a batch of whole groups, the same on every rank; fill figures."""
        settings, group = self.settings, self.group
        rewards_B = torch.tensor([each.reward for each in answers])
        advantages_B = group_advantages(rewards_B.view(-1, settings.group_size)).flatten()
        whole = padded([(each.prompt, each.tokens) for each in answers])
        share = whole.share(group.rank, group.size)
        mine = list(answers)[_rows(len(answers), group)]
        mask_BT = counted(share.targets_BT)
        with torch.no_grad():
            reference_BT, _ = self.log_probs(self.reference, share)
        self.optimizer.zero_grad()
        log_probs_BT, entropy_BT = self.log_probs(self.model, share)
        generated_BT = self.generated_log_probs(share, mine)
        terms = grpo_terms(
            log_probs_BT,
            generated_BT,
            reference_BT,
            advantages_B[_rows(len(answers), group)],
            mask_BT,
            settings.clip,
            settings.kl_weight,
        )
        (terms.loss.sum() * (group.size / whole.num_targets)).backward()
        self.optimizer.step()
        self._measure(figures, terms.ratio[mask_BT], terms.kl[mask_BT], entropy_BT[mask_BT])
        versions = torch.tensor([float(v) for each in answers for v in each.versions])
        figures.reward, figures.tokens = float(rewards_B.mean()), whole.num_targets
        figures.lag = figures.version - float(versions.mean())
        figures.lag_most = figures.version - int(versions.min())
        figures.mixed = sum(len(set(each.versions)) > 1 for each in answers)
        figures.answers = len(answers)
        figures.longest = max(len(each.tokens) for each in answers)
        figures.groups = [each.group for each in answers[:: settings.group_size]]

    def probed(self) -> list[float]:
        """Return log-probabilities of the probe's tokens, with the weights as they are now."""
        batch = padded(self.settings.probe)
        with torch.no_grad():
            log_probs_BT, _ = self.log_probs(self.model, batch)
        found: list[float] = log_probs_BT[counted(batch.targets_BT)].tolist()
        return found

    def _measure(self, figures: Figures, ratio_n: Tensor, kl_n: Tensor, entropy_n: Tensor) -> None:
        """Fill in means over the tokens of all ranks. Wire: an all-reduce of 7 numbers, and one."""
        # The log of the ratio is log p - log p_g; exp(x) - 1 - x of it estimates KL(p_g || p).
        of_generated_n = ratio_n - 1 - ratio_n.log()
        clip = self.settings.clip
        is_clipped_n = ((ratio_n - 1).abs() > clip).double()
        rows = (ratio_n, ratio_n.square(), kl_n, of_generated_n, entropy_n, is_clipped_n)
        sums = torch.stack([each.double().sum() for each in rows])
        count = self.group.all_reduce(torch.tensor([float(len(ratio_n))], dtype=torch.float64))
        sums = self.group.all_reduce(sums)
        off = torch.cat([(ratio_n - 1).abs(), torch.zeros(1)]).max()
        n = max(1.0, float(count))
        figures.ratio_off = float(self.group.all_reduce(off, "max"))
        total, squares, kl, of_generated, entropy, clipped = sums.tolist()
        figures.ratio, figures.kl, figures.kl_generated = total / n, kl / n, of_generated / n
        figures.entropy, figures.clipped = entropy / n, clipped / n
        figures.effective_sample_size = total**2 / (n * squares) if squares else 0.0


def _rows(count: int, group: Group) -> slice:
    """Return this rank's rows of a batch, as Batch.share cuts them."""
    least, more = divmod(count, group.size)
    start = group.rank * least + min(group.rank, more)
    return slice(start, start + least + (group.rank < more))
