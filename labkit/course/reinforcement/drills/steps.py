"""Drills on the time of a step of RL: in turns, overlapped, with long answers; mismatch; a kill."""

import math

from labkit import calc
from labkit.interview.drills.drill import Shown, amounts, drill, num_text
from labkit.interview.drills.question import Solution, Trap

_SECONDS = amounts("30 s", "40 s", "60 s", "80 s", "100 s", "120 s", "150 s", "200 s", "240 s")
_TRAINING = amounts("20 s", "25 s", "35 s", "45 s", "50 s", "70 s", "90 s", "110 s", "140 s")


@drill(
    "rl-1",
    "A step in turns or overlapped",
    difficulty=1,
    notebook="26_rl_of_a_language_model",
    prompt="Generating a batch takes {generate}, scoring it and training on it {train}, sending "
    "the weights {update}, during which both sides wait. Trainer and generator have their own "
    "GPUs, and batches may be one version old. How much faster is that than the same two groups in "
    "turns?",
    draws={
        "generate": _SECONDS,
        "train": _TRAINING,
        "update": amounts("1 s", "2 s", "5 s", "10 s"),
    },
    unit="x",
    digits=3,
    between=("1.1", "2"),
)
def overlap_speedup(generate: float, train: float, update: float) -> Solution:
    """Return (g + t + u) / (max(g, t) + u)."""
    in_turns = calc.rl_step_seconds(generate, train, 0, update_s=update)
    overlapped = calc.rl_step_seconds(generate, train, 1, update_s=update)
    longer, shorter = max(generate, train), min(generate, train)
    return Solution(
        in_turns / overlapped,
        [
            f"In turns: {generate:g} + {train:g} + {update:g} = {float(in_turns):g} s.",
            f"Overlapped: max({generate:g}, {train:g}) + {update:g} = {float(overlapped):g} s.",
            f"{float(in_turns):g} / {float(overlapped):g} = {in_turns / overlapped:.4g}.",
        ],
        [
            Trap(
                "always twice as fast",
                2.0,
                "Two only where both take equally long and the weights take nothing.",
            ),
            Trap(
                "the update left out",
                (generate + train) / longer,
                "Both sides wait for the weights, in either case.",
            ),
            Trap(
                "the update counted in turns only",
                float(in_turns) / longer,
                "The overlapped step also ends with an update.",
            ),
            Trap(
                "the longer over the shorter",
                longer / shorter,
                "Compare whole steps, not the two sides.",
            ),
        ],
    )


@drill(
    "rl-2",
    "The least staleness that keeps both sides busy",
    difficulty=3,
    notebook="26_rl_of_a_language_model",
    prompt="A generator makes a batch in {generate} with all slots busy, and the longest answer "
    "of a batch takes {longest}. Scoring and training take {train}. Slots that become free start "
    "prompts of later batches. By how many versions must a batch be allowed to be old, so that "
    "neither side waits for the other's version? Take updates as free.",
    draws={
        "generate": _SECONDS,
        "longest": amounts("250 s", "300 s", "400 s", "500 s", "600 s", "700 s", "900 s"),
        "train": _TRAINING,
    },
    unit="",
    digits=None,
    between=("1", "30"),
    where=lambda generate, longest, train: (
        longest >= generate and (longest + train) % max(generate, train)
    ),
)
def least_staleness(generate: float, longest: float, train: float) -> Solution:
    """Return the least eta with (L + t) / (eta + 1) <= max(g, t)."""
    pace = max(generate, train)
    steps = (longest + train) / pace
    bound = math.ceil(steps) - 1
    step = calc.rl_step_seconds(generate, train, bound, longest_s=longest)
    assert float(step) == pace
    return Solution(
        bound,
        [
            f"The slower side makes a step in max({generate:g}, {train:g}) = {pace:g} s.",
            f"From a version to the update with its batch: {longest:g} + {train:g} = "
            f"{longest + train:g} s, which is {steps:.3g} steps.",
            f"The update itself is the last of {bound + 1}, so the policy is "
            f"{num_text(bound, 'version')} old.",
        ],
        [
            Trap(
                "the update's own version counted",
                bound + 1,
                "A batch that is trained on before any other update is 0 versions old.",
            ),
            Trap(
                "rounded down",
                bound - 1,
                "With fewer versions the slower side waits.",
            ),
            Trap(
                "one is always enough",
                1,
                "One is enough where a batch ends before the next one is due.",
            ),
        ],
    )


@drill(
    "rl-2",
    "A step under bounded staleness",
    difficulty=2,
    notebook="26_rl_of_a_language_model",
    prompt="A generator makes a batch in {generate} with all slots busy; the longest answer takes "
    "{longest}. Scoring and training take {train}. A batch may be at most {bound} old. "
    "How long is a step in the mean, if updates are free?",
    draws={
        "generate": _SECONDS,
        "longest": amounts("250 s", "300 s", "400 s", "500 s", "600 s", "900 s"),
        "train": _TRAINING,
        "bound": [Shown(bound, num_text(bound, "version")) for bound in (1, 2, 3, 4)],
    },
    unit="s",
    between=("30 s", "600 s"),
    where=lambda generate, longest, train, bound: (
        (longest + train) / (bound + 1) > max(generate, train)
    ),
)
def bounded_step(generate: float, longest: float, train: float, bound: int) -> Solution:
    """Return max(g, t, (L + t) / (eta + 1))."""
    step = calc.rl_step_seconds(generate, train, bound, longest_s=longest)
    return Solution(
        step,
        [
            f"Neither side is the limit: max({generate:g}, {train:g}) = {max(generate, train):g} s "
            "would do.",
            f"A version, its batch and the update with it: {longest:g} + {train:g} = "
            f"{longest + train:g} s.",
            f"In that time at most {bound + 1} updates are allowed: {longest + train:g} / "
            f"{bound + 1} = {float(step):.4g} s.",
        ],
        [
            Trap(
                "the slower side",
                max(generate, train),
                "That is right once the bound is large enough. Here the long answer decides.",
            ),
            Trap(
                "divided by the bound",
                (longest + train) / bound,
                "With bound 0 there is one update in that time: the divisor is the bound and 1.",
            ),
            Trap("in turns", longest + train, "Batches of other versions overlap with it."),
            Trap(
                "training left out",
                longest / (bound + 1),
                "The batch must be trained on before the next version is there.",
            ),
        ],
    )


@drill(
    "rl-5",
    "Idle slots behind the longest answer",
    difficulty=1,
    notebook="26_rl_of_a_language_model",
    prompt="A synchronous step starts all {answers} answers at once, one in each slot. They have "
    "{mean} tokens in the mean, the longest has {longest}. Every slot makes tokens at the same "
    "pace. Which share of the slots' time is idle until training can start?",
    draws={
        "answers": (64, 128, 256, 512),
        "mean": (800, 1200, 2000, 3000, 4500, 6000),
        "longest": (8_192, 12_288, 16_384, 20_480, 28_672, 32_768),
    },
    unit="%",
    digits=3,
    between=("30%", "98%"),
)
def idle_slots(answers: int, mean: int, longest: int) -> Solution:
    """Return 1 - mean / longest."""
    idle = 1 - mean / longest
    return Solution(
        idle,
        [
            f"All slots are held for {longest:,} tokens: {answers} x {longest:,} places.",
            f"Used: {answers} x {mean:,}.",
            f"1 - {mean:,} / {longest:,} = {idle:.2%}.",
        ],
        [
            Trap("the share that is used", 1 - idle, "The question is about the rest."),
            Trap(
                "one slot's share",
                1 / answers,
                "One answer makes all the other slots wait.",
            ),
            Trap(
                "idle over used",
                idle / (1 - idle),
                "Compare idle places with all places.",
            ),
        ],
    )


@drill(
    "rl-5",
    "Versions in one answer",
    difficulty=2,
    notebook="26_rl_of_a_language_model",
    prompt="Weights are replaced while answers are generated, without stopping them. A step takes "
    "{step}, and an answer of {tokens} tokens gets a token every {pace}. It starts right after an "
    "update, and an update takes no time. By how many versions of the policy was it generated?",
    draws={
        "step": amounts("20 s", "30 s", "45 s", "60 s", "90 s"),
        "tokens": (5_000, 8_000, 12_000, 16_000, 20_000, 28_000, 32_000),
        "pace": amounts("10 ms", "15 ms", "20 ms", "25 ms", "30 ms"),
    },
    unit="",
    digits=None,
    between=("2", "40"),
    where=lambda step, tokens, pace: (tokens * pace) % step > 0.01 * step,
)
def versions_of_an_answer(step: float, tokens: int, pace: float) -> Solution:
    """Return the number of updates in it, and 1."""
    seconds = tokens * pace
    updates = math.floor(seconds / step)
    return Solution(
        updates + 1,
        [
            f"The answer takes {tokens:,} x {pace * 1e3:g} ms = {seconds:g} s.",
            f"In {seconds:g} s come {seconds / step:.3g} steps: {updates} updates.",
            f"{updates} updates lie between {updates + 1} versions.",
        ],
        [
            Trap(
                "updates counted",
                updates,
                "The version before the first update has generated tokens, too.",
            ),
            Trap(
                "one",
                1,
                "Each update changes the policy of the tokens behind it, in the same answer.",
            ),
            Trap(
                "rounded up twice",
                updates + 2,
                "The last version is the one whose tokens end the answer.",
            ),
        ],
    )


@drill(
    "rl-4",
    "A small difference, over a whole answer",
    difficulty=2,
    notebook="26_rl_of_a_language_model",
    prompt="Trainer and generator have the same weights. The trainer's log-probability of a token "
    "is larger by {nats} in the mean over an answer of {tokens} tokens. By which factor does the "
    "answer's probability differ between the two?",
    draws={
        "nats": (0.0005, 0.001, 0.002, 0.004, 0.005, 0.01),
        "tokens": (200, 300, 400, 500, 800, 1000, 1500, 2000, 2500),
    },
    unit="x",
    between=("1.1", "20000"),
    digits=2,
)
def ratio_of_an_answer(nats: float, tokens: int) -> Solution:
    """Return e to the sum of the differences."""
    factor = math.exp(nats * tokens)
    return Solution(
        factor,
        [
            "The answer's log-probability is the sum over its tokens.",
            f"{tokens:,} x {nats:g} = {nats * tokens:g}.",
            f"e^{nats * tokens:g} = {factor:.4g}; of one token it is {math.exp(nats):.4g}.",
        ],
        [
            Trap(
                "one token's factor",
                math.exp(nats),
                "Probabilities of tokens are multiplied over the answer.",
            ),
            Trap(
                "factors added",
                1 + nats * tokens,
                "That is right for small sums only: factors are multiplied.",
            ),
            Trap("the sum itself", nats * tokens, "That is the logarithm of the factor."),
            Trap("a power of ten", 10 ** (nats * tokens), "These are natural logarithms."),
        ],
    )


@drill(
    "rl-6",
    "Rollouts taken again after a kill",
    difficulty=1,
    notebook="26_rl_of_a_language_model",
    prompt="Each step trains on {prompts} prompts with {group} answers each. A checkpoint is "
    "written after every {interval} steps, with the cursor of the rollouts consumed. The job is "
    "killed right after step {killed}, and its log of rollouts is on disk. How many answers does "
    "it take from the log a second time?",
    draws={
        "prompts": (16, 32, 64, 128),
        "group": (4, 8, 16),
        "interval": (8, 10, 20, 25),
        "killed": (57, 63, 78, 94, 113, 137, 159, 171, 198),
    },
    unit="",
    digits=None,
    between=("50", "60000"),
    where=lambda interval, killed: killed % interval > 0,
)
def rollouts_taken_again(prompts: int, group: int, interval: int, killed: int) -> Solution:
    """Return the steps since the checkpoint, times the answers of a step."""
    saved = killed - killed % interval
    lost, each = killed - saved, prompts * group
    return Solution(
        lost * each,
        [
            f"A step takes {prompts} x {group} = {each:,} answers.",
            f"The latest checkpoint is of step {saved}, so {lost} steps are lost.",
            f"{lost} x {each:,} = {lost * each:,}. The parameters that survive see each once.",
        ],
        [
            Trap("prompts counted", lost * prompts, "Each prompt has a group of answers."),
            Trap(
                "everything since the start",
                killed * each,
                "The checkpoint's cursor is behind what its parameters have learned from.",
            ),
            Trap(
                "the steps since the previous checkpoint",
                (lost + interval) * each,
                "The latest checkpoint counts.",
            ),
            Trap(
                "what the next checkpoint still lacks",
                (interval - lost) * each,
                "Lost is what came after the latest checkpoint.",
            ),
        ],
    )
