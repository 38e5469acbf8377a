"""How a rank's time divides, bin by bin: for pictures of more spans than there are dots."""

from collections.abc import Sequence

import numpy as np

from labkit.profile.activity import Span


def shares(spans: Sequence[Span], edges_s: np.ndarray) -> dict[str, np.ndarray]:
    """For spans that do not overlap: the share of each bin that each label takes, 0 to 1.

    edges_s: (bins + 1,) ascending. Returns arrays of (bins,), exact, not sampled.
    """
    by_label: dict[str, list[Span]] = {}
    for span in spans:
        by_label.setdefault(span.label, []).append(span)
    result = {}
    for label, own in by_label.items():
        times = np.array([time for span in own for time in (span.start_s, span.end_s)])
        # Time spent up to each boundary: it rises by the span's length from start to end only.
        spent = np.repeat(np.cumsum([0.0, *(span.end_s - span.start_s for span in own)]), 2)[1:-1]
        result[label] = np.diff(np.interp(edges_s, times, spent)) / np.diff(edges_s)
    return result
