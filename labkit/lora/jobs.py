"""Fine-tuning jobs: several adapters in one pass, and what each way of fine-tuning holds and sends.

    job p: 3 rows    p p p c c - one batch --> W x for all rows, B A x by job
    job c: 2 rows                              loss = mean of p's rows + mean of c's rows
                                               a step of p's optimizer, a step of c's

Each job has a mean over its own rows, an optimizer of its own, and no step without rows. So it
trains as if it were alone: no other job's rows or learning rate are in its gradient. A mean over
the whole batch would scale a job's gradient by its share of the rows. One optimizer for all would
move a job that has no rows, by momentum and weight decay.

Layout: the base whole on every rank, or sharded by the module's wrapper; each job's rows over the
ranks. Wire: the wrapper's, of all adapters; and one number for each job, its loss.
Paper: Ye et al., "mLoRA", arXiv:2312.02515, for training several adapters on one base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.comm import Group
from labkit.data import IGNORED, Batch
from labkit.data_parallel import NaiveDDP
from labkit.lora.adapters import adapter_names, adapter_parameters, add_adapter, use_adapters
from labkit.memory import Meter, Usage
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW, Optimizer
from labkit.serving.quantized import quantize
from labkit.train import loss

METHODS = {"full": None, "LoRA": None, "LoRA, int8 base": 8, "LoRA, int4 base": 4}
"""Ways of fine-tuning, and the bits of a weight of the blocks where it is quantised."""


class AdapterJobs:
    """Train the adapters of one base together, each as if it were alone.

    model = NaiveDDP(gpt_with_adapters, world)
    jobs = AdapterJobs(model, lambda parameters: AdamW(parameters, 1e-3))
    jobs.step({"poems": batch, "code": other})
    """

    def __init__(
        self, model: nn.Module, make_optimizer: Callable[[Iterable[Tensor]], Optimizer]
    ) -> None:
        """model: with adapters; in one process a GPT, on ranks a NaiveDDP of it."""
        self.model = model
        self.optimizers = {
            name: make_optimizer(adapter_parameters(model, name).values())
            for name in adapter_names(model)
        }
        self._ranks = model.group if isinstance(model, NaiveDDP) else None

    def step(self, batches: Mapping[str, Batch]) -> dict[str, float]:
        """Make a step of these jobs; return the loss of each before it, over its whole batch.

        batches: by job, the same on every rank, with sequences of one length. Each rank computes
        its share of each batch. A job without a batch keeps its parameters and its moments.
        ValueError for an unknown job, and without any batch.
        """
        if not batches:
            raise ValueError("no job has a batch; give at least one, as {name: batch}")
        if unknown := batches.keys() - self.optimizers.keys():
            raise ValueError(
                f"{', '.join(sorted(unknown))}: not a job; there are {', '.join(self.optimizers)}"
            )
        rank, size = (0, 1) if self._ranks is None else (self._ranks.rank, self._ranks.size)
        shares = {name: batch.share(rank, size) for name, batch in batches.items()}
        use_adapters(
            self.model, [name for name, share in shares.items() for _ in range(len(share))]
        )
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        logits_BTV = self.model(torch.cat([share.inputs_BT for share in shares.values()]))
        targets_BT = torch.cat([share.targets_BT for share in shares.values()])
        losses_BT = F.cross_entropy(
            logits_BTV.transpose(1, 2), targets_BT, reduction="none", ignore_index=IGNORED
        )
        parts = losses_BT.sum(1).split([len(share) for share in shares.values()])
        losses_J = torch.stack(
            [
                part.sum() / max(1, batch.num_targets)  # the job's own mean, over all ranks
                for part, batch in zip(parts, batches.values(), strict=True)
            ]
        )
        (losses_J.sum() * size).backward()
        if isinstance(self.model, NaiveDDP):
            self.model.reduce_gradients()
        for name in batches:
            self.optimizers[name].step()
        found = losses_J.detach()
        if self._ranks is not None:
            found = self._ranks.all_reduce(found)
        return dict(zip(batches, found.tolist(), strict=True))


def prepare(
    model: GPT, method: str, rank: int = 4, targets: Iterable[str] = ("query", "value")
) -> GPT:
    """Return the model as it is fine-tuned by one of METHODS: itself, or with one adapter.

    ValueError for another method.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r}: give one of {', '.join(METHODS)}")
    bits = METHODS[method]
    if bits is not None:
        model = quantize(model, bits, group=32)
    if method != "full":
        add_adapter(model, "job", rank, targets=targets)
    return model


def measure_methods(
    world: Group,
    config: GPTConfig,
    batch: Batch,
    rank: int = 4,
    targets: Iterable[str] = ("query", "value"),
) -> dict[str, Usage]:
    """Make two steps of AdamW under DDP by each method; return the second step's memory by method.

    batch: the global one. The timeline has a region for each method, with its bytes sent. Buffers
    are not broadcast: the codes of a quantised base are buffers, and DDP would send them with every
    forward pass.
    """
    found = {}
    for method in METHODS:
        module = prepare(GPT(config), method, rank, tuple(targets))
        model = NaiveDDP(module, world, broadcast_buffers=False)
        optimizer = AdamW([p for p in module.parameters() if p.requires_grad], 1e-3)
        share = batch.share(world.rank, world.size)
        for step in range(2):  # the first step makes the optimizer's states
            meter = Meter(module, optimizer)
            optimizer.zero_grad()
            with world.region(f"{method}, step {step}"), meter:
                loss(model, share).backward()
                model.reduce_gradients()
                optimizer.step()
        found[method] = meter.usage
    return found
