"""Measure reinforcement learning on real ranks: actors and learners, and a language model.

Trainers and engines of the language model are on ranks of their own. Few updates are made, of small
models: what is counted here, versions, bits and bytes, does not depend on how well they learn.
"""

from typing import Any

from labkit.interview.real_run import real_run, run
from labkit.model import GPT, GPTConfig
from labkit.rl import Generator, Parts, Settings, a3c, impala
from labkit.rl.actor_critic import RLConfig
from labkit.rl.figures import Figures
from labkit.rl.generator import RolloutEngine
from labkit.rl.impala import ImpalaConfig
from labkit.rl.language import train
from labkit.serving import Decoder

_UPDATES = 4
_MODEL = GPTConfig(vocab=16, context=16, num_layers=2, hidden=32, num_heads=4)


class _PlainEngine(Generator):
    """An engine that computes with the same weights in plain products, whose sums have other
    orders."""

    def __init__(self, settings: Settings, *more: Any) -> None:
        super().__init__(settings, *more)
        plain = GPT(settings.config)
        for path, parameter in self.model.named_parameters():
            owner, _, name = path.rpartition(".")
            setattr(plain.get_submodule(owner), name, parameter)
        plain.head.weight = plain.embedding.token.weight
        self.decoder = Decoder(plain)
        self.engine = RolloutEngine(self, settings)


@real_run
def _figures(staleness: int, engine_ranks: int, is_plain: bool) -> list[Figures]:
    settings = Settings(
        config=_MODEL,
        staleness=staleness,
        engine_ranks=engine_ranks,
        num_updates=_UPDATES,
        num_prompts=4,
        group_size=4,
        warm_start=20,
    )
    parts = Parts(generator=_PlainEngine if is_plain else Generator)
    figures: list[Figures] = run(train, 4, (settings, None, parts)).values[0].figures
    return figures


@real_run
def largest_ratio_error(engine: str) -> float:
    """Return the largest |ratio - 1| of an unchanged policy, over 4 synchronous updates.

    engine: "invariant", whose sums have the same order whatever the batch, or "plain". 2 trainers
    and 2 engines compute log-probabilities of the same tokens with the same weights in float32.
    """
    return max(each.unchanged_off for each in _figures(0, 1, engine == "plain"))


@real_run
def updates_over_the_bound(staleness: int) -> int:
    """Return how many of 4 updates used a token that was more versions behind than this bound."""
    return sum(each.lag_most > staleness for each in _figures(staleness, 1, False))


@real_run
def update_bytes(engine_ranks: int) -> int:
    """Return the bytes that 2 trainers send in one weight update: each rank the part it serves.

    The other 2 ranks are 2 engines of 1 rank, or 1 engine of 2.
    """
    return _figures(0, engine_ranks, False)[-1].sent_bytes


@real_run
def whole_weights_bytes() -> int:
    """Return the bytes of all parameters of that model in float32."""
    return sum(parameter.nbytes for parameter in GPT(_MODEL).parameters())


@real_run
def sent_by_an_actor(rung: str) -> int:
    """Return the bytes that an actor sends for 32 steps of its 4 CartPoles.

    rung: "a3c", a gradient of the policy; "impala", the samples. Without the headers of messages.
    """
    config: RLConfig = RLConfig(num_environments=4, num_steps=32, num_samples=640)
    if rung == "impala":
        config = _one_by_one(32, 640)
    trained = run({"a3c": a3c.train, "impala": impala.train}[rung], 2, (config,))
    return max(each.sent_bytes for each in trained.timeline[1].operations)


@real_run
def rollouts_over(versions: int) -> int:
    """Return how many rollouts of an actor were more than so many versions old in their update.

    One actor, a queue of one rollout, an update with each.
    """
    staleness = run(impala.train, 2, (_one_by_one(16, 2560),)).values[0].staleness
    return sum(each > versions for each in staleness)


def _one_by_one(num_steps: int, num_samples: int) -> ImpalaConfig:
    """Return settings with an update for each rollout, and room for one in the queue."""
    return ImpalaConfig(
        num_environments=4,
        num_steps=num_steps,
        num_samples=num_samples,
        rollouts_per_update=1,
        queue_size=1,
    )
