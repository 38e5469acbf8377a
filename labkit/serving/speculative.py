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

Then each token has exactly the target's distribution, for any draft model: a draft gives token x
with probability q(x) min(1, p(x) / q(x)) = min(p, q), and the second line adds the missing
p - min(p, q). Greedy: p and q are 1 at one token, so a draft is accepted if it is the target's own
choice.

If each draft is accepted with probability a, independently, a pass gives
1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a) tokens on average.

Papers: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023
(arXiv:2211.17192); Chen et al., arXiv:2302.01318, the same rule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from labkit.serving.caches import KVCache
from labkit.serving.decoder import Decoder
from labkit.serving.requests import Generation, ScheduledTokens, distribution, draw_token
from labkit.serving.scheduler import Scheduler
from labkit.serving.serving_engine import Engine, Output


def accept(
    target_jV: Sequence[Tensor] | Tensor,
    draft_kV: Sequence[Tensor] | Tensor,
    drafts: Sequence[int],
    uniforms: Sequence[float],
) -> list[int]:
    """Return the tokens of one check: the accepted drafts, and one more.

    target_jV: the target's distribution of each next token, j = k + 1 rows. draft_kV: those that
    the k drafts were drawn from. uniforms: k + 1 random numbers in [0, 1), one to check each draft,
    and the last to draw the token after them.
    """
    for i, token in enumerate(drafts):
        p_V, q_V = target_jV[i], draft_kV[i]
        if uniforms[i] * q_V[token] >= p_V[token]:
            return [*drafts[:i], draw_token((p_V - q_V).clamp_min(0), uniforms[-1])]
    return [*drafts, draw_token(target_jV[-1], uniforms[-1])]


@dataclass
class _Draft:
    """Tokens that the draft model proposes for a request, and what each was drawn from."""

    generation: Generation
    num_wanted: int
    tokens: list[int] = field(default_factory=list)
    rows_kV: list[Tensor] = field(default_factory=list)


class SpeculativeEngine(Engine):
    """An Engine whose answers grow by up to num_drafts + 1 tokens in a pass.

    engine = SpeculativeEngine(
        Decoder(model), PagedCache(model.config, 64), preempting,
        draft=Decoder(small), draft_cache=PagedCache(small.config, 64), num_drafts=4,
    )

    `step` gives an Output for each token, several of one request in their order. Greedy answers
    are those of Engine. Sampled ones have the same distribution, but not the same draws. So if a
    sampled answer goes on at another engine (Request.prior_output), its next tokens are not those
    that the first engine would have drawn.

    Drafts come in addition to the scheduler's plan, and take pages that are left in both caches:
    no request is preempted for them. A pass has no drafts for a prompt.

    accepted: the number of checks by (drafts, accepted drafts).
    """

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
        super().__init__(decoder, cache, scheduler, max_waiting=max_waiting)
        small, large = draft.model.config, decoder.model.config
        if small.vocab != large.vocab:
            raise ValueError(
                f"the draft model has {small.vocab} tokens and the target {large.vocab}; "
                "take models with one vocabulary, for drafts are compared token by token"
            )
        if (small.max_positions or math.inf) < (large.max_positions or math.inf):
            raise ValueError(
                f"the draft model has {small.max_positions} positions, and the target "
                f"{large.max_positions or 'no limit'}; take a draft model with as many"
            )
        self.draft, self.draft_cache, self.num_drafts = draft, draft_cache, num_drafts
        self.accepted: Counter[tuple[int, int]] = Counter()
        self._drafts: dict[int, _Draft] = {}

    @property
    def acceptance_rate(self) -> float:
        """a: the share of accepted drafts. Drafts after a rejected one are not checked."""
        num_accepted = sum(num * count for (_, num), count in self.accepted.items())
        num_rejected = sum(count for (of, num), count in self.accepted.items() if num < of)
        return num_accepted / (num_accepted + num_rejected)

    @property
    def mean_acceptance_length(self) -> float:
        """Mean tokens of a pass with all num_drafts drafts: compare (1 - a^(k+1)) / (1 - a)."""
        full = {num: count for (of, num), count in self.accepted.items() if of == self.num_drafts}
        return sum((num + 1) * count for num, count in full.items()) / sum(full.values())

    def cancel(self, id: int) -> None:
        """Like Engine, in both caches."""
        super().cancel(id)
        self.draft_cache.free(id)

    def _fill(self, generation: Generation) -> None:
        super()._fill(generation)
        self.draft_cache.share_prefix(generation.id, generation.tokens)

    def _logits(self, batch: list[ScheduledTokens]) -> list[Tensor]:
        """For each entry, logits_jV of the tokens after its last and after each of its drafts."""
        running = {each.id: each for each in self.running}
        self._drafts = {p.sequence: self._reserved(running[p.sequence], p) for p in batch}
        self._propose()
        longer = [self._with_drafts(entry) for entry in batch]
        logits_nV = self.decoder(longer, self.cache)
        return list(logits_nV.split([entry.num_logits for entry in longer]))

    def _reserved(self, generation: Generation, entry: ScheduledTokens) -> _Draft:
        """Make room for drafts in both caches, if the answer has started; without room, no drafts.

        The last token of an answer is never drafted, since the target always gives one itself.
        """
        num_tokens, longest = len(generation.tokens), generation.longest
        num_wanted = min(self.num_drafts, longest - num_tokens - 1)
        has_room = (
            len(generation.request.prompt) < num_tokens == entry.end
            and self.cache.reserve(generation.id, num_tokens + num_wanted, longest)
            and self.draft_cache.reserve(generation.id, num_tokens + num_wanted, longest)
        )
        return _Draft(generation, num_wanted if has_room else 0)

    def _propose(self) -> None:
        """Run the draft model, a pass for each draft, and forget what it cached of the drafts.

        Accepted drafts are computed again, in the pass for the next first draft. So the draft cache
        has only tokens of the answer, without the last one, even if a pass raises.
        """
        try:
            for index in range(self.num_drafts):
                drafts = [each for each in self._drafts.values() if index < each.num_wanted]
                if drafts:
                    self._propose_one(drafts)
        finally:
            for id, draft in self._drafts.items():
                self.draft_cache.truncate(id, len(draft.generation.tokens) - 1)

    def _propose_one(self, drafts: list[_Draft]) -> None:
        batch = []
        for draft in drafts:
            tokens = [*draft.generation.tokens, *draft.tokens]
            start = self.draft_cache.num_cached(draft.generation.id)
            batch.append(ScheduledTokens(draft.generation.id, tokens[start:], start))
        for draft, logits_V in zip(drafts, self.draft(batch, self.draft_cache), strict=True):
            try:
                q_V = distribution(logits_V, draft.generation.request.sampling)
            except ValueError:  # the draft's logits are not finite; the target's may be
                draft.num_wanted = len(draft.tokens)
                continue
            draft.tokens.append(draw_token(q_V, *_uniforms(draft.generation, 1)))
            draft.rows_kV.append(q_V)

    def _with_drafts(self, entry: ScheduledTokens) -> ScheduledTokens:
        drafts = self._drafts[entry.sequence].tokens
        return replace(entry, tokens=[*entry.tokens, *drafts], num_logits=len(drafts) + 1)

    def _next(self, generation: Generation, logits_jV: Tensor) -> list[Output]:
        """Check the drafts, append the accepted ones and one more token, and uncache the others."""
        draft = self._drafts[generation.id]
        try:
            target_jV = distribution(logits_jV, generation.request.sampling)
        except ValueError as error:
            return [Output(generation.id, None, "error", str(error))]
        uniforms = _uniforms(generation, len(target_jV))
        tokens = accept(target_jV, draft.rows_kV, draft.tokens, uniforms)
        self.accepted[len(draft.tokens), len(tokens) - 1] += 1
        outputs: list[Output] = []
        while tokens and generation.finish_reason is None:  # a draft can be a stop token
            generation.tokens.append(tokens.pop(0))
            outputs.append(Output(generation.id, generation.tokens[-1], generation.finish_reason))
        self.cache.truncate(generation.id, len(generation.tokens) - 1)
        return outputs


def _uniforms(generation: Generation, num: int) -> list[float]:
    """Draw numbers in [0, 1) from the request's generator."""
    draws: list[float] = torch.rand(
        num, generator=generation.generator, dtype=torch.float64, device="cpu"
    ).tolist()
    return draws
