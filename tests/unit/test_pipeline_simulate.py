"""Times follow from order, costs and messages."""

import random

import numpy as np
import pytest
import torch

from labkit.pipeline import (
    Costs,
    Op,
    Span,
    gpipe,
    interleaved,
    measured,
    one_f_one_b,
    peak_memory,
    plan,
    simulate,
    zero_bubble_h1,
)


def test_a_pipeline_goes_at_the_pace_of_its_slowest_stage():
    costs = Costs(forward=[1, 3, 1], input_gradient=[1, 3, 1], weight_gradient=1)
    timing = simulate(plan(one_f_one_b, 3, 20), costs)
    # The middle one never waits, but for the first one's forward, and its backward at the end.
    assert timing.makespan == 1 + 20 * (3 + 3 + 1) + (1 + 1)


def test_a_message_delays_the_next_stage_but_not_the_senders_w():
    plain = simulate(plan(zero_bubble_h1, 2, 4))
    delayed = simulate(plan(zero_bubble_h1, 2, 4), Costs(send=0.5))
    assert delayed.rows[1][0].start == plain.rows[1][0].start + 0.5
    for before, after in zip(delayed.rows[1], delayed.rows[1][1:]):
        if after.op.kind == "W":
            assert after.start == before.end


def test_stages_on_one_rank_hand_over_without_a_message():
    costs = Costs(send=100)
    one_rank = simulate(plan(interleaved, 1, 2, virtual=3), costs)
    assert one_rank.makespan == 2 * 3 * 3
    assert one_rank.sends == ()


def test_every_message_leaves_when_its_operation_ends_and_arrives_by_its_boundary():
    timing = simulate(plan(gpipe, 3, 2), Costs(send=[0.25, 0.5]))
    ends = {(span.op.product, rank): span.end for rank, span in timing.spans()}
    assert len(timing.sends) == 2 * 2 * 2  # two boundaries, there and back, two microbatches
    for op, start, end in timing.sends:
        boundary = op.stage if op.kind == "F" else op.stage - 1
        assert start == ends[tuple(op), op.stage]
        assert end - start == [0.25, 0.5][boundary]


def test_random_costs_equal_the_longest_path_through_the_operations():
    draw = random.Random(1)
    for _ in range(30):
        p, m = draw.randint(1, 5), draw.randint(1, 6)
        row = draw.choice([gpipe, one_f_one_b])
        f, b = ([draw.random() for _ in range(p)] for _ in range(2))
        send = draw.random()
        costs = Costs(forward=f, input_gradient=b, weight_gradient=0.5, send=send)
        schedule = plan(row, p, m)
        assert simulate(schedule, costs).makespan == pytest.approx(longest(schedule, f, b, send))


def longest(schedule, f, b, send) -> float:
    """By relaxation until nothing changes: slow, and without an order of its own."""
    ends = {(op.kind, op.stage, op.microbatch): 0.0 for row in schedule.rows for op in row}
    while True:
        before = dict(ends)
        for row in schedule.rows:
            free = 0.0
            for kind, stage, i in row:
                if kind == "F":
                    came = ends["F", stage - 1, i] + send if stage else 0.0
                    free = max(free, came) + f[stage]
                else:
                    last = stage == schedule.num_stages - 1
                    came = 0.0 if last else ends["B", stage + 1, i] + send
                    free = max(free, came) + b[stage] + 0.5
                ends[kind, stage, i] = free
        if ends == before:
            return max(ends.values())


@pytest.mark.parametrize(
    ("costs", "reason"),
    [
        (Costs(forward=[1, 2]), "forward has 2 numbers, and 3 are needed"),
        (Costs(send=[1]), "send has 1 numbers, and 2 are needed"),
        (Costs(input_gradient=-1), "input_gradient=-1: 0 or more"),
        (Costs(forward=np.ones((3, 3))), "forward=.*: give a number"),
    ],
)
def test_impossible_costs_are_named(costs, reason):
    with pytest.raises((ValueError, TypeError), match=reason):
        simulate(plan(gpipe, 3, 2), costs)


LISTS = [tuple, np.array, torch.tensor, lambda costs: torch.nn.Parameter(torch.tensor(costs))]


@pytest.mark.parametrize("kind", LISTS)
def test_costs_and_sizes_come_in_any_list_of_numbers(kind):
    schedule = plan(zero_bubble_h1, 3, 4)
    lists = Costs(forward=[1.0, 3.0, 1.0], send=[0.5, 0.25])
    given = Costs(forward=kind([1.0, 3.0, 1.0]), send=kind([0.5, 0.25]))
    assert simulate(schedule, given) == simulate(schedule, lists)
    assert given == Costs(forward=(1.0, 3.0, 1.0), send=(0.5, 0.25))
    sizes = [1.0, 2.0, 0.5]
    assert peak_memory(schedule, kind(sizes), 0.5) == peak_memory(schedule, sizes, 0.5)


def test_a_scalar_of_an_array_library_is_a_number():
    schedule = plan(gpipe, 2, 2)
    for two in (np.float32(2), np.array(2.0), torch.tensor(2.0)):
        assert simulate(schedule, Costs(forward=two)) == simulate(schedule, Costs(forward=2))


def test_an_unknown_convention_of_the_bubble_is_refused():
    with pytest.raises(ValueError, match="relative_to='busy'"):
        simulate(plan(gpipe, 3, 2)).bubble("busy")


def spans_of(schedule) -> list:
    return [list(row) for row in simulate(schedule).rows]


def test_measured_times_start_at_zero():
    schedule = plan(one_f_one_b, 3, 4)
    later = [[Span(op, a + 5, b + 5) for op, a, b in row] for row in spans_of(schedule)]
    assert measured(schedule, later).rows == simulate(schedule).rows


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: rows[:2], "spans of 2 ranks for a schedule of 3"),
        (lambda rows: [row * 2 for row in rows], "rank 0 measured 16 operations"),
        (lambda rows: rows[::-1], "rank 0 measured 8 operations that are not, in order, the 8"),
    ],
)
def test_spans_of_another_schedule_are_refused(change, reason):
    schedule = plan(one_f_one_b, 3, 4)
    with pytest.raises(ValueError, match=reason):
        measured(schedule, change(spans_of(schedule)))


def test_64_stages_of_512_microbatches_ask_few_times_what_an_operation_needs(monkeypatch):
    """The work is linear in the operations. benchmarks/pipeline.py prints the seconds."""
    needs, num_asked = Op.needs, 0

    def counted(op, num_stages):
        nonlocal num_asked
        num_asked += 1
        return needs(op, num_stages)

    monkeypatch.setattr(Op, "needs", counted)
    schedule = plan(one_f_one_b, 64, 512)
    timing = simulate(schedule)
    num_ops = 2 * 64 * 512
    assert num_ops <= num_asked <= 3 * num_ops  # in order, in time, and once more after a wait
    assert timing.bubble("ideal") == pytest.approx(63 / 512)
