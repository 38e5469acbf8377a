"""Speculative decoding: a small model drafts tokens, and the large one checks them in one pass.

    draft    3 passes     the -> cat -> sat -> in                each proposes one token
    target   1 pass       the    cat    sat    in                computes all four at once
             its own      cat    sat    on     _
             result       cat    sat    on                       2 drafts accepted, 1 token its own

A pass over five tokens takes about as long as a pass over one while memory is the limit. So each
accepted draft saves a pass of the target.

The rule. The draft d was drawn from the draft model's distribution q, and the target has p:

    accept d with probability min(1, p(d) / q(d))
    else draw from max(0, p - q), scaled to 1, and drop all later drafts
    all k accepted: draw one more token from the target's next distribution

Then each token has the target's distribution exactly, whatever the draft model is: token x comes
with q(x) min(1, p(x) / q(x)) = min(p, q) from a draft, and with the p - min(p, q) that is missing
from the second line. Greedy: p and q are 1 at one token, so a draft is accepted if it is the
target's own choice.

If each draft is accepted with probability a, independently, a pass gives
1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a) tokens on average.

Papers: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023
(arXiv:2211.17192); Chen et al., arXiv:2302.01318, the same rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from labkit.serving.caches import KVCache
from labkit.serving.decoder import Decoder
from labkit.serving.scheduler import Scheduler
from labkit.serving.serving_engine import Engine


def accept(
    target_jV: Tensor, draft_kV: Tensor, drafts: Sequence[int], uniforms: Sequence[float]
) -> list[int]:
    """The tokens of one check: the accepted drafts, and one more.

    target_jV: the target's distribution of each next token, j = k + 1 rows. draft_kV: those that
    the k drafts were drawn from. uniforms: k + 1 random numbers in [0, 1), one to check each draft
    and the last for the token that is drawn.
    """
    raise NotImplementedError


class SpeculativeEngine(Engine):
    """An Engine whose answers grow by up to num_drafts + 1 tokens in a pass.

    engine = SpeculativeEngine(
        Decoder(model), PagedCache(model.config, 64), preempting,
        draft=Decoder(small), draft_cache=PagedCache(small.config, 64), num_drafts=4,
    )

    `step` gives an Output for each token, several of one request in their order. Greedy answers
    are those of Engine; sampled ones have the same distribution, but not the same draws.

    accepted: how many checks there were of (drafts, accepted drafts).
    """

    accepted: Counter[tuple[int, int]]

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        scheduler: Scheduler,
        *,
        draft: Decoder,
        draft_cache: KVCache,
        num_drafts: int = 4,
        max_waiting: int | None = None,
    ) -> None:
        """num_drafts: k, tokens that the draft model proposes before each pass of the target.

        ValueError: the draft model has another vocabulary, or fewer positions, than the target.
        """
        raise NotImplementedError

    @property
    def acceptance_rate(self) -> float:
        """a: accepted drafts, of those that were checked. Drafts after a rejected one are not."""
        raise NotImplementedError

    @property
    def tokens_per_check(self) -> float:
        """Mean tokens of a pass with all num_drafts drafts: compare (1 - a^(k+1)) / (1 - a)."""
        raise NotImplementedError
