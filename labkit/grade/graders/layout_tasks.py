"""Tasks for fit_175b: models and clusters, the fastest layout of each told by the planner."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from labkit import calc
from labkit.calc.models.parameters import end_parameters, layer_parameters
from labkit.calc.planner.gpu_memory import fullest
from labkit.calc.planner.parameters import held_by_ranks
from labkit.calc.planner.step import step_parts

_RECIPES = ("zero_paper", "megatron_bf16")


@dataclass(frozen=True)
class Task:
    """A model that is to be trained on a cluster."""

    job: calc.Job

    @property
    def as_dict(self) -> dict[str, Any]:
        """As the learner's functions get it."""
        job, config, kept = self.job, self.job.config, self.job.kept
        machines, assumed = job.machines, job.assumptions
        return {
            "num_params": int(calc.num_parameters(config)),
            "layer_params": layer_parameters(config),
            "table_params": end_parameters(config, is_first=True, is_last=False),
            "layers": config.layers,
            "hidden": config.hidden,
            "heads": config.heads,
            "kv_heads": config.num_kv_heads,
            "ffn": config.mlp_features,
            "gated": config.gated,
            "vocab": config.vocab,
            "sequence": job.length,
            "parameter_bytes": kept.parameter_bytes,
            "gradient_bytes": kept.gradient_bytes,
            "optimizer_bytes": kept.optimizer_bytes,
            "num_gpus": job.num_gpus,
            "gpus_per_node": machines.gpus_per_node,
            "memory_bytes": int(job.room_bytes),
            "global_batch": job.global_batch,
            "flops_per_s": assumed.efficiency * job.device.flops_per_s,
            "fast_bytes_per_s": assumed.link_share * machines.fast.bandwidth_bytes_per_s,
            "slow_bytes_per_s": assumed.link_share * machines.slow.bandwidth_bytes_per_s,
        }

    @cached_property
    def best(self) -> calc.Layout:
        """The fastest that fits, of all whose tp stays in a node, without context parallelism."""
        most = self.job.machines.gpus_per_node
        possible = [
            each
            for each in calc.layouts(self.job)
            if each.cp == 1 and each.tp <= most and calc.refusal(self.job, each) is None
        ]
        # The memory is worked out for few: in the order of time, up to the first that fits.
        possible.sort(key=self.seconds)
        return next(each for each in possible if self.held_bytes(each) <= self.job.room_bytes)

    @cached_property
    def best_seconds(self) -> float:
        """Of a step, with the fastest."""
        return self.seconds(self.best)

    def seconds(self, layout: calc.Layout) -> float:
        """Of a step, by the planner. For layouts that no rule refuses."""
        return sum(step_parts(self.job, layout).values())

    def held_bytes(self, layout: calc.Layout) -> float:
        """Of the fullest GPU, by the planner. For layouts that no rule refuses."""
        return float(sum(part.value for part in fullest(self.job, layout)[1].values()))

    def own_params(self, layout: calc.Layout) -> int:
        """On one GPU of the first rank of the pipeline, by the planner."""
        return held_by_ranks(self.job.config, layout)[0].total

    def __str__(self) -> str:
        job = self.job
        return (
            f"{float(calc.num_parameters(job.config)) / 1e9:.0f}B parameters on {job.num_gpus:,} "
            f"{job.device.name} in nodes of {job.machines.gpus_per_node}, {job.global_batch:,} "
            f"sequences of {job.length:,} tokens"
        )


def draw(rng: random.Random) -> list[Task]:
    """The interviewer's first, and others for which it is the wrong answer."""
    return list(map(Task, _jobs(rng)))


def _jobs(rng: random.Random) -> Iterator[calc.Job]:
    yield _job("gpt3-175b", 512, batch=1536, recipe="zero_paper")
    recipes = [*_RECIPES, *(rng.choice(_RECIPES) for _ in range(9))]
    rng.shuffle(recipes)
    give = recipes.pop
    batch = rng.choice((1024, 1536, 2048))
    yield _job(_large(rng), rng.choice((512, 1024)), batch=batch, recipe=give())
    # Many small GPUs: memory is short, and a batch has few sequences for each of them.
    scarce: dict[str, Any] = {"gpu": "a100-40g", "node": rng.choice((4, 8))}
    yield _job(_large(rng), 1024, batch=2048, recipe=give(), **scarce)
    batch = rng.choice((512, 768, 1024))
    yield _job(_middle(rng), rng.choice((128, 256)), batch=batch, recipe=give())
    scarce = {"gpu": "a100-40g", "node": 4, "sequence": 4096}
    num, batch = rng.choice((256, 512)), rng.choice((1024, 1536))
    yield _job(_middle(rng), num, batch=batch, recipe=give(), **scarce)
    # Few small GPUs: states alone take much of them, however they are sharded.
    yield _job(_middle(rng), 64, batch=256, recipe=give(), gpu="a100-40g")
    # 3 divides the GPUs and not the batch: pp is a multiple of 3, and m is none of pp.
    num, batch = rng.choice((96, 192)), rng.choice((512, 1024))
    yield _job(_middle(rng, (48, 60, 72)), num, batch=batch, recipe=give())
    # Small models, in which what large ones need is a loss; of many words, so that logits are much.
    scarce = {"gpu": "a100-40g", "node": rng.choice((4, 8)), "sequence": 4096}
    yield _job(
        _small(rng, vocab=128_256), 64, batch=rng.choice((192, 256, 512)), recipe=give(), **scarce
    )
    batch = rng.choice((256, 512))
    yield _job(
        _small(rng, vocab=128_256),
        128,
        batch=batch,
        recipe=give(),
        of="h100",
        gpu="h100",
        sequence=4096,
    )
    batch = rng.choice((256, 384))
    # Very many words: logits are much of the memory, on the last rank.
    words = _small(rng, vocab=256_000)
    yield _job(words, 64, batch=256, recipe=give(), gpu="a100-40g", sequence=4096)
    yield _job("llama3-8b", 32, batch=128, recipe=give(), gpu="a100-40g", sequence=8192)
    yield _job("korthikanti-22b", 64, batch=batch, recipe=give(), gpu="a100-40g")


def _job(
    model: calc.ModelConfig | str,
    num_gpus: int,
    *,
    batch: int,
    recipe: str,
    gpu: str = "a100-80g",
    node: int = 8,
    sequence: int = 2048,
    of: str = "a100",
) -> calc.Job:
    machines = replace(calc.CLUSTERS[of], gpu=gpu, num_gpus=num_gpus, gpus_per_node=node)
    return calc.Job(model, recipe, machines, batch, sequence)


def _large(rng: random.Random) -> calc.ModelConfig:
    """65B to 145B, as GPT-3."""
    return _model(rng.choice((64, 72, 80, 96)), rng.choice((72, 80, 96)), vocab=51_200)


def _middle(rng: random.Random, layers: Sequence[int] = (48, 60, 64, 80)) -> calc.ModelConfig:
    """33B to 80B, as Llama's."""
    more = {"gated": True, "tied": False, "ffn": rng.choice((22_016, 28_672))}
    vocab, kv_heads = rng.choice((32_000, 128_256)), rng.choice((8, 16, 64))
    return _model(rng.choice(layers), 64, vocab=vocab, kv_heads=kv_heads, **more)


def _small(rng: random.Random, vocab: int = 32_000) -> calc.ModelConfig:
    """6B to 14B, as Llama's."""
    more = {"gated": True, "tied": False, "ffn": rng.choice((11_008, 14_336))}
    return _model(rng.choice((32, 36, 40)), rng.choice((32, 40)), vocab=vocab, **more)


def _model(layers: int, heads: int, **more: Any) -> calc.ModelConfig:
    return calc.ModelConfig(
        layers=layers, hidden=128 * heads, heads=heads, context=4096,
        biases=False, learned_positions=False, **more,
    )  # fmt: skip
