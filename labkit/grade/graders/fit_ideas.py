"""How a level is found, in parts that can each be wrong."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from labkit import calc
from labkit.grade.graders.fit_questions import LEVELS, TERMS, Setup

Terms = dict[str, float]
_FROM = {"optimizer": 1, "gradients": 2, "parameters": 3}


def terms_of(
    setup: Setup,
    level: int,
    levels: Mapping[str, int] | None = None,
    shard: Callable[[int, int], float] = lambda num, dp: -(-num // dp),
) -> Terms:
    """With other levels from which on a kind is sharded, or other shards."""
    sizes = {
        "optimizer": setup.optimizer_bytes,
        "gradients": setup.gradient_bytes,
        "parameters": setup.parameter_bytes,
    }
    states = {
        kind: size
        * (
            shard(setup.num_params, setup.dp)
            if level >= {**_FROM, **(levels or {})}[kind]
            else setup.num_params
        )
        for kind, size in sizes.items()
    }
    activations, reserve = float(setup.activation_bytes), setup.reserve_gb * calc.GB
    return {**states, "activations": activations, "reserve": reserve}


def largest_of(terms: Terms, setup: Setup, level: int) -> str:
    """Its name; of equal ones the first in the order of TERMS."""
    return max(TERMS, key=lambda name: terms.get(name, 0.0))


@dataclass(frozen=True)
class Idea:
    """How the level is found. As it stands: right."""

    terms: Callable[[Setup, int], Terms] = terms_of
    memory: Callable[[Setup], float] = lambda setup: setup.memory_bytes
    is_strict: bool = False
    order: Sequence[int] = LEVELS
    named: Callable[[Terms, Setup, int], str] = largest_of
    otherwise: int | None = None
    names_the_last: bool = False

    def answer(self, setup: Setup) -> tuple[int | None, list[str]]:
        """The level and the names by it."""
        names: list[str] = []
        for level in self.order:
            terms = self.terms(setup, level)
            total, memory = sum(terms.values()), self.memory(setup)
            fits = total < memory or (total == memory and not self.is_strict)
            if fits and not self.names_the_last:
                return level, names
            names.append(self.named(terms, setup, level))
            if fits:
                return level, names
        return self.otherwise, names
