"""TTFT, ITL, TPOT, throughput and goodput from a server's log.

An interviewer asks: "Here is the log of a server: when requests arrived, when their first pass
began, what was sent and when. What is the time to first token, the time per output token, the
inter-token latency? Which of them shows a stall of one second? How many requests per second meet
your targets?"

The log is a list of events in the order of time. Each is a tuple (time_s, request, what, count):

    what        count              meaning
    "arrives"   tokens of prompt   the request is at the server, and waits
    "starts"    tokens of prompt   its first pass begins
    "sends"     tokens, 0 or more  an event of the stream has left the server. It may hold several
                                   tokens, or none: the stream opens with an empty one, and half a
                                   character is not sent
    "ends"      tokens of answer   the answer is complete
    "cancels"   tokens of answer   the client has given up

Every request arrives, and ends or cancels. One that ends has at least one token. Cancelled requests
count in no measure.

Write three functions.

    timings(log)
        returns  for each request that ended a dict with these keys, by request:
            ttft_s        from the arrival to the first token
            itl_s         a list: the gaps between tokens that follow each other. Tokens sent
                          together have gaps of 0
            tpot_s        the mean of these gaps; None for a single token
            end_to_end_s  from the arrival to the last token
    percentile(values, percent)
        returns  the smallest of the values such that at least `percent` % of them are at most as
                 large. There is at least one value; percent is a whole number, 1 to 100
    report(log, percent, ttft_s, tpot_s)
        returns  a dict. `Per second` is by the time of the whole log, from its first event to its
                 last. At least one answer has two tokens or more
            ttft_s        percentile over requests
            itl_s         percentile over all gaps of all requests
            tpot_s        percentile over requests that have a TPOT
            throughput    tokens per second, of all answers that ended
            goodput       requests per second that met both targets: a TTFT of at most ttft_s, and
                          a TPOT of at most tpot_s if they have one

Contract
    log      stays as it is
    returns  numbers, correct to a relative error of 1e-9
    never    labkit.serving
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

Event = tuple[float, int, str, int]


def timings(log: Sequence[Event]) -> dict[int, dict[str, Any]]:
    """Return how long each request waited that ended, by request."""
    ### BEGIN SOLUTION
    arrival_s: dict[int, float] = {}
    token_s: dict[int, list[float]] = defaultdict(list)
    ended = []
    for time_s, request, what, count in log:
        if what == "arrives":
            arrival_s[request] = time_s
        elif what == "sends":
            token_s[request] += [time_s] * count
        elif what == "ends":
            ended.append(request)
    return {request: timing(arrival_s[request], token_s[request]) for request in ended}


def timing(arrival_s: float, token_s: Sequence[float]) -> dict[str, Any]:
    """Return how long one request waited."""
    itl_s = [after - before for before, after in zip(token_s, token_s[1:], strict=False)]
    return {
        "ttft_s": token_s[0] - arrival_s,
        "itl_s": itl_s,
        "tpot_s": sum(itl_s) / len(itl_s) if itl_s else None,
        "end_to_end_s": token_s[-1] - arrival_s,
    }
    ### END SOLUTION


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value such that `percent` % of them are at most as large."""
    ### BEGIN SOLUTION
    place = -(-percent * len(values) // 100)  # rounded up: the first place is 1
    return sorted(values)[place - 1]
    ### END SOLUTION


def report(log: Sequence[Event], percent: int, ttft_s: float, tpot_s: float) -> Mapping[str, float]:
    """Return percentiles of the three latencies, throughput and goodput."""
    ### BEGIN SOLUTION
    each = timings(log).values()
    tpots = [its["tpot_s"] for its in each if its["itl_s"]]
    good = [its for its in each if its["ttft_s"] <= ttft_s and (its["tpot_s"] or 0) <= tpot_s]
    seconds = log[-1][0] - log[0][0]
    return {
        "ttft_s": percentile([its["ttft_s"] for its in each], percent),
        "itl_s": percentile([gap for its in each for gap in its["itl_s"]], percent),
        "tpot_s": percentile(tpots, percent),
        "throughput": sum(len(its["itl_s"]) + 1 for its in each) / seconds,
        "goodput": len(good) / seconds,
    }
    ### END SOLUTION
