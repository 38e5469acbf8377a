"""How much a rank of ring attention computes with each block, and between which times."""

import math

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.attention_work import Needed, Work, total
from labkit.grade.graders.context_inputs import Given
from labkit.grade.graders.context_watch import computed_on


class RankWork:
    """What one rank has computed in a case, beside what its share takes."""

    def __init__(self, evidence: CaseEvidence, given: Given, rank: int) -> None:
        self.computed = computed_on(evidence, rank)
        self._given, self._rank = given, rank
        self._by_products = self.needed().has_products(self.between())

    def between(self, begin_s: float = -math.inf, end_s: float = math.inf) -> Work:
        """What it began to compute after the one time and before the other."""
        return total(each.work for each in self.computed if begin_s < each.begin_s < end_s)

    def needed(self, step: int | None = None) -> Needed:
        """For the block that it has in this step: its own, then its left neighbour's; None: all."""
        t, sizes = self._given.sizes[self._rank], self._given.sizes
        steps = range(self._rank + 1) if step is None else (step,)
        # A query of its own block sees itself and what is before it.
        pairs = [t * sizes[self._rank - each] if each else t * (t + 1) // 2 for each in steps]
        return Needed(sum(pairs), self._given.q[0].shape[0], self._given.num_features)

    def is_enough(self, work: Work, step: int) -> bool:
        """For the block of this step, counted in what can be seen of this rank's computation.

        Exponentials count only where products are not seen: an `exp` of anything is soon written.
        """
        needed = self.needed(step)
        return needed.has_products(work) if self._by_products else needed.has_exponentials(work)

    @property
    def is_seen(self) -> bool:
        """Whether torch has computed as much as attention takes, in products or in exponentials."""
        return self._by_products or self.needed().has_exponentials(self.between())
