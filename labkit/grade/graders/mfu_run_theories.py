"""Wrong ideas of what a log says, and the utilisation that they lead to."""

from collections.abc import Callable

from labkit.grade.by_theory import Theory
from labkit.grade.graders.mfu_questions import (
    Asked,
    hardware_flops,
    right_flops,
    right_hfu,
    right_mfu,
)
from labkit.grade.graders.mfu_theories import FLOPS, attention, forward, head, matrices, scores

_BY_DEVICE = "device"

# (name, explanation, factor between what it says and what is right, hint)
_OF_THE_LOG: tuple[tuple[str, str, Callable[[Asked], float], int], ...] = (
    (
        "divides by the peak with sparsity",
        "twice the dense peak is reached with matrices of which half are zeros in a pattern: "
        "training multiplies dense ones, so the share is half of what it should be",
        lambda asked: 0.5 if asked.sparsity else 1.0,
        1,
    ),
    (
        "halves every peak",
        "only a number that says `with sparsity` is twice the dense one",
        lambda asked: 1.0 if asked.sparsity else 2.0,
        2,
    ),
    (
        "doubles the peak with sparsity",
        "that number is the doubled one already: the dense peak is half of it",
        lambda asked: 0.25 if asked.sparsity else 1.0,
        3,
    ),
    (
        "takes one device's tokens for the job's",
        "a log says one or the other: tokens of one device are divided by the peak of one, tokens "
        "of the job by that of all. The share is too small by the number of devices",
        lambda asked: 1 / asked.num_devices if asked.logged_by == _BY_DEVICE else 1.0,
        2,
    ),
    (
        "takes the job's tokens for one device's",
        "a log says one or the other: tokens of the job belong to the peak of all devices. A share "
        "above 1 is always a mistake",
        lambda asked: 1.0 if asked.logged_by == _BY_DEVICE else float(asked.num_devices),
        2,
    ),
    (
        "mixes up whose tokens are logged",
        'logged_by "device": one device makes tokens_per_s; "job": all of them together do',
        lambda asked: (
            1 / asked.num_devices if asked.logged_by == _BY_DEVICE else float(asked.num_devices)
        ),
        3,
    ),
    ("gives percents", "the contract is a share: 0.4, not 40", lambda asked: 100.0, 3),
)


def _of_the_log(right: Callable[[Asked], float]) -> list[Theory[Asked]]:
    return [
        Theory(name, why, lambda asked, factor=factor: right(asked) * factor(asked), hint)  # type: ignore[misc]
        for name, why, factor, hint in _OF_THE_LOG
    ]


def _of_model(theory: Theory[Asked]) -> Theory[Asked]:
    """What is wrong about the model, in a utilisation."""
    return Theory(
        theory.name,
        theory.explanation,
        lambda asked: theory.answer(asked) / right_flops(asked) * right_mfu(asked),
        theory.hint,
    )


MFU: tuple[Theory[Asked], ...] = (
    Theory(
        "counts recomputation in MFU",
        "model FLOPs are those of the model: who recomputes is slower, and its MFU says so. With "
        "what is repeated it is HFU, which is high for a program that does the same work twice",
        right_hfu,
        1,
    ),
    Theory(
        "takes recomputation off",
        "the model's operations are the same with and without recomputation, and they were all "
        "made: nothing is subtracted. The tokens per second are lower already",
        lambda asked: right_mfu(asked) * right_flops(asked) / float(hardware_flops(asked)),
        1,
    ),
    *_of_the_log(right_mfu),
    *map(_of_model, FLOPS),
)


def _again(
    full: Callable[[Asked], float], selective: Callable[[Asked], float]
) -> Callable[..., float]:
    """HFU, from what is computed again."""

    def answer(asked: Asked) -> float:
        again = {"none": lambda _: 0.0, "full": full, "selective": selective}[asked.recompute]
        return right_mfu(asked) * (1 + again(asked) / (3 * forward(asked)))

    return answer


_FULL_WITHOUT = (
    "repeats only a part in full recomputation",
    "full recomputation makes the whole forward pass again, the layers' matrices, the scores and "
    "the head: 4/3 of the model's operations",
)

HFU: tuple[Theory[Asked], ...] = (
    Theory(
        "counts nothing again",
        "hardware FLOPs are all that were made: those that recomputation repeats are among them",
        right_mfu,
        1,
    ),
    Theory(
        "takes selective recomputation for full",
        "selective recomputation repeats the scores and their product with the values, which take "
        "much memory and little time: 4 L H K s on top, and not a forward pass",
        _again(forward, forward),
    ),
    Theory(
        "takes selective recomputation for none",
        "it repeats the scores and their product with the values: 4 L H K s for a token",
        _again(forward, lambda asked: 0.0),
    ),
    Theory(
        "repeats attention's matrices in selective recomputation",
        "keys, queries and values are kept; only the scores and their product with the values are "
        "made again",
        _again(forward, lambda a: scores(a) + 2 * a.config.layers * attention(a)),
    ),
    Theory(
        "repeats scores backward as well",
        "what is repeated is the forward pass of the scores, 4 L H K s; backward goes once",
        _again(forward, lambda asked: 3 * scores(asked)),
    ),
    Theory(*_FULL_WITHOUT, _again(matrices, scores)),
    Theory(*_FULL_WITHOUT, _again(lambda asked: forward(asked) - 2 * head(asked), scores)),
    Theory(
        "repeats too much in full recomputation",
        "what is repeated is one forward pass, a third of forward and backward: 4/3 in all",
        _again(lambda asked: 3 * forward(asked), scores),
    ),
    Theory(
        "repeats too much in full recomputation",
        "what is repeated is one forward pass, a third of forward and backward: 4/3 in all",
        _again(lambda asked: 2 * forward(asked), scores),
    ),
    Theory(
        "counts a repetition where there is none",
        'with recompute "none" HFU and MFU are the same',
        lambda asked: right_mfu(asked) * 4 / 3,
    ),
    *_of_the_log(right_hfu),
)
