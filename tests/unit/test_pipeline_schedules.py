"""Every schedule, over p to 8 and m to 32: a training step with the bubble of its closed form."""

import pytest

from labkit import calc
from labkit.pipeline import (
    Costs,
    Kind,
    Op,
    gpipe,
    in_flight,
    interleaved,
    naive,
    one_f_one_b,
    peak_memory,
    plan,
    simulate,
    text,
    validate,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)

CASES = [
    (naive, "naive", {}),
    (gpipe, "gpipe", {}),
    (one_f_one_b, "1f1b", {}),
    (interleaved, "interleaved", {"virtual": 1}),
    (interleaved, "interleaved", {"virtual": 2}),
    (interleaved, "interleaved", {"virtual": 3}),
    (zero_bubble_h1, "zb_h1", {}),
    (zero_bubble_h2, "zb_h2", {}),
    (zero_bubble_v, "zb_v", {}),
]
BY_NAME = pytest.mark.parametrize(
    ("row", "name", "choices"), CASES, ids=[f"{name}{choices or ''}" for _, name, choices in CASES]
)


def sizes(name: str) -> list[tuple[int, int]]:
    """Return the p up to 8 and m up to 32 for which this schedule, and its formula, exist."""
    every = [(p, m) for p in (1, 2, 3, 4, 7, 8) for m in (*range(1, 9), 12, 15, 16, 21, 31, 32)]
    if name == "interleaved":
        return [(p, m) for p, m in every if m % p == 0]
    fewest = {"zb_h1": (1, 0), "zb_h2": (2, -1), "zb_v": (2, -1)}
    slope, offset = fewest.get(name, (0, 1))
    return [(p, m) for p, m in every if m >= slope * p + offset]


@BY_NAME
def test_the_simulated_bubble_is_the_closed_form_by_both_conventions(row, name, choices):
    for p, m in sizes(name):
        timing = simulate(plan(row, p, m, **choices))
        for convention in ("total", "ideal"):
            closed = calc.bubble_fraction(p, m, name, relative_to=convention, **choices)
            assert timing.bubble(convention) == pytest.approx(closed.value, abs=1e-12), (p, m)


@BY_NAME
def test_the_microbatches_in_flight_are_those_of_the_closed_form(row, name, choices):
    for p, m in sizes(name):
        held = in_flight(plan(row, p, m, **choices))
        assert held == calc.in_flight_microbatches(p, m, name, **choices), (p, m)


@pytest.mark.parametrize("row", [zero_bubble_h1, zero_bubble_h2, zero_bubble_v])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 6])
def test_zero_bubble_schedules_are_valid_with_few_microbatches(row, m):
    validate(plan(row, 4, m))
    if row is zero_bubble_v:
        assert in_flight(plan(row, 4, m)) == calc.in_flight_microbatches(4, m, "zb_v")


def test_zero_bubble_v_goes_down_the_ranks_and_up_again():
    schedule = plan(zero_bubble_v, 2, 3)
    assert text(schedule) == (
        "F0@0 F1@0 F2@0 F0@3 I0@3 W0@3 F1@3 I1@3 W1@3 I0@0 W0@0 F2@3 I2@3 W2@3 I1@0 W1@0 I2@0 W2@0"
        "\nF0@1 F0@2 F1@1 F1@2 I0@2 W0@2 F2@1 I0@1 W0@1 F2@2 I1@2 W1@2 I1@1 I2@2 I2@1 W1@1 W2@2 "
        "W2@1"
    )
    assert [schedule.stages_of(rank) for rank in range(2)] == [[0, 3], [1, 2]]


@pytest.mark.parametrize("costs", [(1, 1, 1), (1, 1.2, 0.8), (1, 1, 0.5), (1.5, 1, 1), (1, 2, 1)])
def test_zero_bubble_v_is_idle_for_less_than_two_thirds_of_h1s_time(costs):
    halves = dict(zip(("forward", "input_gradient", "weight_gradient"), costs, strict=True))
    wholes = {name: 2 * cost for name, cost in halves.items()}
    for p, m in ((2, 8), (4, 16), (8, 32)):
        ideal = m * sum(wholes.values())
        idle_v = simulate(plan(zero_bubble_v, p, m), Costs(**halves)).makespan - ideal
        idle_h1 = simulate(plan(zero_bubble_h1, p, m), Costs(**wholes)).makespan - ideal
        assert idle_v < 2 / 3 * idle_h1


def test_deferred_weight_gradients_hold_their_share_of_the_activations():
    schedule = plan(zero_bubble_h1, 4, 8)
    assert peak_memory(schedule) == [4, 4, 4, 4]
    # The first rank's W come at once; the last holds three of its own, of which a half is left.
    assert peak_memory(schedule, kept_for_weights=0.5) == [4, 3.5, 3, 2.5]


def test_memory_is_that_of_all_stages_of_a_rank():
    schedule = plan(interleaved, 2, 4, virtual=2)
    assert peak_memory(schedule, [1, 10, 100, 1000]) == [
        max_held(schedule.rows[rank], [1, 10, 100, 1000]) for rank in range(2)
    ]


def max_held(row: tuple[Op, ...], sizes: list[int]) -> float:
    held = [
        sum(sizes[op.stage] * (1 if op.kind is Kind.F else -1) for op in row[: end + 1])
        for end in range(len(row))
    ]
    return max(held)


def test_an_interleaved_schedule_refuses_numbers_of_microbatches_that_ranks_do_not_divide():
    with pytest.raises(ValueError, match=r"num_microbatches=6 .* num_ranks=4.* try 4 or 8"):
        plan(interleaved, 4, 6)
    with pytest.raises(ValueError, match=r"try 4$"):
        plan(interleaved, 4, 3)


def test_interleaved_stages_are_dealt_round_the_ranks():
    schedule = plan(interleaved, 2, 2, virtual=2)
    assert text(schedule) == (
        "F0@0 F1@0 F0@2 F1@2 B0@2 B1@2 B0@0 B1@0\nF0@1 F1@1 F0@3 B0@3 F1@3 B1@3 B0@1 B1@1"
    )
    assert [schedule.stages_of(rank) for rank in range(2)] == [[0, 2], [1, 3]]


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, None, "4"])
def test_counts_must_be_whole_numbers(wrong):
    with pytest.raises((TypeError, ValueError), match="num_ranks="):
        plan(gpipe, wrong, 4)
    with pytest.raises((TypeError, ValueError), match="num_microbatches="):
        plan(gpipe, 4, wrong)


@pytest.mark.parametrize("costs", [(2, 1, 1), (1, 1, 0.5), (3, 2, 1), (2, 2, 2), (1, 2, 1)])
def test_the_bubble_of_zb_h1_for_other_costs(costs):
    f, i, w = costs
    timing = simulate(
        plan(zero_bubble_h1, 4, 12), Costs(forward=f, input_gradient=i, weight_gradient=w)
    )
    assert timing.makespan - 12 * (f + i + w) == pytest.approx(3 * (f + i - w))


@pytest.mark.parametrize("costs", [(1, 1, 1), (2, 2, 2), (2, 1, 1), (1, 1, 0.5), (1, 2, 1)])
def test_a_rank_of_zb_h2_waits_by_the_papers_formula_and_starts_late(costs):
    """Table 2 of arXiv:2401.10241: (p - 1)(F + I - 2 W), from a rank's own first operation."""
    f, i, w = costs
    timing = simulate(
        plan(zero_bubble_h2, 4, 12), Costs(forward=f, input_gradient=i, weight_gradient=w)
    )
    own = [row[-1].end - row[0].start for row in timing.rows]
    assert max(own) - 12 * (f + i + w) == pytest.approx(3 * (f + i - 2 * w))
    assert [row[0].start for row in timing.rows] == [rank * f for rank in range(4)]
