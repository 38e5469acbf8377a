"""The figures of each update: what one looks at when a run of rung 6 goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

NO_WEIGHTS = -1
"""The version of an engine that has no weights."""


@dataclass
class Figures:
    """Measures of one update. Of tokens: over all answers' tokens of the batch."""

    version: int
    """The trainers' version before the update: 0 for the first."""
    reward: float = 0.0
    """Mean over the answers."""
    answers: int = 0
    tokens: int = 0
    kl: float = 0.0
    """Mean estimate of KL(policy || reference), in nats by token."""
    kl_generated: float = 0.0
    """Mean estimate of KL(policy that generated || policy), in nats by token."""
    entropy: float = 0.0
    """Mean entropy of the policy at the tokens, in nats."""
    ratio: float = 0.0
    """Mean of the loss's ratios before the update."""
    ratio_off: float = 0.0
    """The largest |ratio - 1|."""
    effective_sample_size: float = 0.0
    """(sum of ratios)^2 / (tokens times sum of squares): 1 where all are equal."""
    clipped: float = 0.0
    """Share of tokens whose ratio is outside the clip."""
    unchanged_ratio: float = 1.0
    """Mean over the probe of exp(trainer's - generator's log-probability) of one version."""
    unchanged_off: float = 0.0
    """The largest |ratio - 1| over the probe and the engines."""
    unchanged_median: float = 0.0
    """The median of the same |ratio - 1|: near the largest if all tokens differ."""
    lag: float = 0.0
    """Mean version lag: trainers' version minus that of the token."""
    lag_most: int = 0
    mixed: int = 0
    """Answers whose tokens have several versions."""
    longest: int = 0
    """Tokens of the longest answer."""
    sent_norm: float = 0.0
    """L2 norm of the weights that were last sent; 0 if none were sent since the update before."""
    sent_version: int = NO_WEIGHTS
    """The version of these weights."""
    served_norm: list[float] = field(default_factory=list)
    """L2 norm of the weights that each engine serves with."""
    served_version: list[int] = field(default_factory=list)
    """The version that each engine says it has; NO_WEIGHTS while it sleeps."""
    sent_bytes: int = 0
    """Bytes of weights that trainers sent since the update before."""
    idle_s: list[float] = field(default_factory=list)
    """Seconds that each rank was idle since the update before."""
    seconds: float = 0.0
    """Since the update before."""
    groups: list[int] = field(default_factory=list)
    """The groups of the batch: each number is used once in a job."""
