"""Name the fault of a job of reinforcement learning from its figures by update.

    named = name_fault(trained.figures, trained.stalled)      None: nothing is wrong
    named.name, named.update, named.evidence
    CAUSES[named.name].check                                  would have found it in a minute

The rules, in the order in which an engineer asks. A later one assumes that all before it hold.

    question                                 no, and so                                 name
    do updates come?                         the queue says that answers are lost       overload
    is the norm served that was sent?        no weights at all after a sleep            sleep
                                             the norm of an older version               no sync
                                             neither one nor the other                  half update
    do trainer and engine agree on fixed     most tokens do in every bit, others not    router
    answers, with equal weights?             the mean ratio, or the median, is far off  sampling
                                             no token does, by little                   precision
    do ratios differ from 1 where the        each is 1, in every bit                    recomputed
    version of a token is an older one?
    are all answers of about one length?     one is several times the mean              long tail

Rewards, KL and entropy are in no rule: they change in all of these faults, and in none alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from labkit.rl.figures import Figures

EQUAL = 5e-6
"""Norms of equal weights differ by less than this share: they are summed in other orders."""
FAR_MEAN, FAR_MEDIAN = 0.03, 0.02
"""Shares by which rounding does not change the mean ratio of an unchanged policy, or the median."""
LONG = 5.0
"""An answer is long from this multiple of the mean of the others on."""
_LEAST = 2
"""Updates that must show a fault which one update could show by chance."""


@dataclass(frozen=True)
class Cause:
    """A fault: how it shows, how to find it, and who met it."""

    what: str
    sign: str
    """How it shows in the figures."""
    check: str
    """The check that would have found it within a minute."""
    report: str
    url: str
    """A public report of such a fault."""


CAUSES = {
    "no sync": Cause(
        "weights never reach the engines, which count versions all the same",
        "Served norms would stay what they were, while sent norms and versions move on.",
        "After each update compare a norm, or a hash, of the served weights with that of the sent "
        "ones. A version number that the engine counts itself proves nothing",
        "TRL: with an adapter and vLLM, rewards stay flat; merged weights are taken back before "
        "vLLM loads them",
        "https://github.com/huggingface/trl/issues/2856",
    ),
    "sleep": Cause(
        "weights are lost in a sleep, and not sent again",
        "After a sleep a served norm would be 0, until the next update.",
        "Wake an engine in a test, and compare its norm and a greedy answer with those before the "
        "sleep. An engine without weights must have no version",
        "TRL: weights are not synchronised with vllm_enable_sleep_mode=True",
        "https://github.com/huggingface/trl/issues/5312",
    ),
    "half update": Cause(
        "an error ends updates half way, and the engines go on",
        "Served norms would be those of no version: partly new, partly old.",
        "Receive all tensors before the first is replaced, and count the version last. Compare the "
        "norm by tensor: the ones that differ are those after the error",
        "SGLang-Omni: a failed update may leave weights partly updated, and the worker resumes",
        "https://github.com/sgl-project/sglang-omni/pull/784",
    ),
    "recomputed": Cause(
        "the clip is anchored to log-probabilities that the trainer computes",
        "Ratios would be 1 in every bit, also for tokens of older versions.",
        "Look at the ratios of a batch with old tokens: if all are 1, the denominator is not the "
        "policy that sampled. Use the log-probability that was recorded with each token",
        "AReaL: recompute_logprob=True makes every ratio 1, and nothing is clipped",
        "https://github.com/areal-project/AReaL/issues/201",
    ),
    "precision": Cause(
        "the engines compute in a lower precision than the trainers",
        "With equal weights nearly all tokens would differ, by little.",
        "Before the first update compare both log-probabilities of one answer, token by token. "
        "Record the ratio of an unchanged policy at each update",
        "verl: truncated importance sampling, because vLLM and FSDP differ with equal weights",
        "https://github.com/verl-project/verl/pull/2953",
    ),
    "sampling": Cause(
        "log-probabilities are recorded after temperature or top-p, and trained without",
        "With equal weights ratios would be far off 1, and their mean, too. After top-p the ratio "
        "of a sampled token is below 1, and that of a token which top-p removes is huge.",
        "Sample one batch at temperature 1 and top-p 1: if the ratios of an unchanged policy are 1 "
        "then, only the processing differs. Ask which of the two the engine returns",
        "TRL: wrong log-probabilities of vLLM at a temperature other than 1 (issue 6789: at top-p)",
        "https://github.com/huggingface/trl/issues/4159",
    ),
    "router": Cause(
        "the routers of engines and trainers choose other experts",
        "With equal weights some tokens would differ, and the others be equal in every bit.",
        "Record the experts of one answer in both, and count tokens that differ. Replay the "
        "engine's choice in the trainer, or compute routers in float32 in both",
        "Megatron-LM: with equal weights about 10% of routers differ; a replay of their choice",
        "https://github.com/NVIDIA/Megatron-LM/issues/4168",
    ),
    "long tail": Cause(
        "one long answer holds up its batch, and all ranks wait",
        "An answer would be several times as long as the mean, and ranks idle meanwhile.",
        "Record the longest answer beside the mean, and idle time by rank. Bound the length, or "
        "let updates interrupt answers",
        "verl: a few long answers take most of the time of a rollout; partial rollouts",
        "https://github.com/verl-project/verl/issues/4348",
    ),
    "overload": Cause(
        "there are more requests than the engines serve, and some never get an answer",
        "Updates would end, with answers missing and engines that have nothing to do.",
        "Compare the number of concurrent requests with the limit of each engine before the start. "
        "Count requests that were sent and answers that came: a queue must know what it waits for",
        "verl: requests take all slots of the engine, and the weight update waits for ever",
        "https://github.com/verl-project/verl/issues/7990",
    ),
}
"""The nine faults by the name that an answer has."""


@dataclass(frozen=True)
class Named:
    """A fault, the first update that shows it, and how."""

    name: str
    update: int
    evidence: str


def name_fault(figures: Sequence[Figures], stalled: str = "") -> Named | None:
    """Return the fault that these figures show; None if they show none.

    stalled: why the job made no more updates, from Trained. Figures may begin at any update.
    """
    if stalled:
        last = figures[-1].version + 1 if figures else 0
        return Named("overload", last, f"There is no update {last}. The queue says: {stalled}.")
    for rule in (_weights, _unchanged, _recomputed, _long_tail):
        if named := rule(figures):
            return named
    return None


def _weights(figures: Sequence[Figures]) -> Named | None:
    """Compare the norm that engines serve with that of the version that they say they have."""
    sent = {each.sent_version: each.sent_norm for each in figures if each.sent_norm}
    wrong = [
        (each.version, engine, version, norm)
        for each in figures
        for engine, (version, norm) in enumerate(zip(each.served_version, each.served_norm))
        if version in sent and not _equal(norm, sent[version])
    ]
    if not wrong:
        return None
    update, engine, version, norm = wrong[0]
    says = (
        f"At update {update} engine {engine} says that it has version {version}, whose norm is "
        f"{sent[version]:.4f}, and serves a norm of {norm:.4f}"
    )
    updates = sorted({each[0] for each in wrong})
    lost = [each for each in wrong if each[3] < 0.01 * sent[each[2]]]
    if lost:
        return Named("sleep", lost[0][0], f"{says}. Updates with wrong norms: {_listed(updates)}.")
    older = [number for number, of in sent.items() if number < version and _equal(norm, of)]
    if older and all(_equal(each[3], norm) for each in wrong):
        rest = f"that of version {older[-1]}. It does not change in updates {_listed(updates)}."
        return Named("no sync", update, f"{says}: {rest}")
    rest = f"no version has it. Updates with wrong norms: {_listed(updates)}."
    return Named("half update", update, f"{says}: {rest}")


def _unchanged(figures: Sequence[Figures]) -> Named | None:
    """Look at ratios of trainers and engines of one version, which are 1 in a healthy job."""
    wrong = [each for each in figures if each.unchanged_off > 0]
    if not wrong:
        return None
    most = median(each.unchanged_off for each in wrong)
    middle = median(each.unchanged_median for each in wrong)
    mean = max(abs(each.unchanged_ratio - 1) for each in wrong)
    evidence = (
        f"From update {wrong[0].version} on ratios of fixed answers differ from 1, with equal "
        f"weights: by {middle:.1g} for the median token, {most:.1g} for the largest, and the mean "
        f"by up to {mean:.1g}. Served norms are right."
    )
    if middle == 0:  # other numbers would change all tokens; another choice changes its own
        return Named("router", wrong[0].version, evidence)
    is_far = mean > FAR_MEAN or middle > FAR_MEDIAN
    return Named("sampling" if is_far else "precision", wrong[0].version, evidence)


def _recomputed(figures: Sequence[Figures]) -> Named | None:
    """Find batches of old tokens whose ratios are all 1."""
    exact = [each for each in figures if each.lag > 0 and each.ratio_off == 0]
    if len(exact) < _LEAST:
        return None
    first = exact[0]
    evidence = (
        f"From update {first.version} on every ratio is 1 in every bit, and the effective sample "
        f"size {first.effective_sample_size:g}, though tokens are {first.lag:.1f} versions behind."
    )
    return Named("recomputed", first.version, evidence)


def _long_tail(figures: Sequence[Figures]) -> Named | None:
    """Find batches with an answer of several times the mean length."""
    long = [
        each
        for each in figures
        if each.longest * (each.answers - 1) > LONG * (each.tokens - each.longest)
    ]
    if len(long) < max(_LEAST, len(figures) // 3):
        return None
    idle = ", ".join(
        f"{median(min(1.0, each.idle_s[rank] / each.seconds) for each in long):.0%}"
        for rank in range(len(long[0].idle_s))
    )
    first = long[0]
    evidence = (
        f"From update {first.version} on the longest answer has {first.longest} tokens, and the "
        f"mean is {first.tokens / first.answers:.1f}. In these updates ranks are idle for {idle}."
    )
    return Named("long tail", first.version, evidence)


def _equal(one: float, other: float) -> bool:
    return abs(one - other) <= EQUAL * max(one, other)


def _listed(updates: Sequence[int]) -> str:
    return ", ".join(map(str, updates))
