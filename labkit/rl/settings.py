"""The settings of a job of reinforcement learning of a language model."""

from __future__ import annotations

from dataclasses import dataclass, field

from labkit import arguments
from labkit.gpt_config import GPTConfig
from labkit.rl.copying import VOCAB, Copying

SMALL = GPTConfig(vocab=VOCAB, context=16, num_layers=2, hidden=32, num_heads=4)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A job. Ranks: `trainers`, then engines of `engine_ranks` ranks each."""

    config: GPTConfig = SMALL
    task: Copying = field(default_factory=Copying)
    seed: int = 0
    trainers: int = 2
    engine_ranks: int = 1
    num_updates: int = 80
    num_prompts: int = 16
    """P: groups of a batch."""
    group_size: int = 8
    """G: answers to a prompt."""
    staleness: int = 0
    """Versions that a rollout may be behind: 0 synchronous, 1 one step off, more asynchronous."""
    is_partial: bool = False
    """True: an update interrupts running answers. False: an engine ends them first."""
    sync_every: int = 1
    """Weights are sent each time that this many updates have been made."""
    sleep_every: int = 0
    """Engines give back their memory after each version that this divides; 0: never."""
    max_new_tokens: int = 6
    max_running: int = 32
    """Answers that an engine computes in one pass. It refuses more than as many that wait."""
    in_flight: int = 32
    """Answers that an engine is given at a time, at most max_running."""
    learning_rate: float = 2e-3
    clip: float = 0.2
    kl_weight: float = 0.01
    warm_start: int = 200
    """Supervised steps before the first version."""
    num_experts: int = 0
    """Experts of each layer, of which a token uses one; 0: an MLP instead."""
    checkpoint_every: int = 0
    """Updates between checkpoints; 0: none."""

    def __post_init__(self) -> None:
        for name in ("trainers", "engine_ranks", "num_updates", "num_prompts", "max_running"):
            arguments.whole(name, getattr(self, name), "1 or more")
        arguments.whole(
            "group_size", self.group_size, "2 or more answers, or nothing is compared", least=2
        )
        arguments.whole("staleness", self.staleness, "0 or more versions", least=0)
        arguments.whole(
            "sync_every",
            self.sync_every,
            f"1 to staleness + 1 = {self.staleness + 1} updates, or engines may start no group "
            "until weights come that are sent after it",
            most=self.staleness + 1,
        )

    @property
    def batch(self) -> int:
        """Answers of an update."""
        return self.num_prompts * self.group_size

    @property
    def probe(self) -> list[tuple[list[int], list[int]]]:
        """Prompts with answers, whose log-probabilities engines and trainers compare."""
        prompts = [self.task.prompt(-1 - number) for number in range(8)]
        return [(prompt, self.task.answer(prompt)) for prompt in prompts]
