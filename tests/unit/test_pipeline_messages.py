"""Schedules as messages: the plain order, what breaks it, and who waits for whom."""

import pytest

from labkit.pipeline import gpipe, interleaved, naive, one_f_one_b, plan, zero_bubble_h1
from labkit.pipeline.messages import (
    MessageError,
    Recv,
    Send,
    Together,
    actions,
    messages_of,
    order_of_completion,
    require_actions,
    require_end,
    shown,
)
from labkit.pipeline.op import Kind, Op

F, B, I = Kind.F, Kind.B, Kind.I  # noqa: E741
TWO = plan(one_f_one_b, 2, 2)


def as_text(rows):
    return [" ".join(map(shown, row)) for row in rows]


def with_row(rows, rank, row):
    return (*rows[:rank], tuple(row), *rows[rank + 1 :])


def test_the_plain_order_receives_computes_and_sends_at_once():
    assert as_text(actions(TWO)) == ["F0 >F0 F1 >F1 <B0 B0 <B1 B1", "<F0 F0 B0 >B0 <F1 F1 B1 >B1"]
    assert as_text(actions(plan(zero_bubble_h1, 2, 2)))[0] == "F0 >F0 F1 >F1 <B0 I0 W0 <B1 I1 W1"
    assert as_text(actions(plan(gpipe, 1, 2))) == ["F0 F1 B0 B1"]


def test_messages_stay_within_a_rank_where_its_stages_are_neighbours():
    rows = actions(plan(interleaved, 1, 2, virtual=2))
    assert not [action for action in rows[0] if messages_of(action)]
    rows = actions(plan(interleaved, 2, 2, virtual=2))
    assert Recv((F, 1, 0), 1) in rows[0] and Send((F, 1, 0), 0) in rows[1]


@pytest.mark.parametrize("num_ranks", range(1, 6))
@pytest.mark.parametrize("num_microbatches", [1, 2, 3, 5, 8])
def test_the_plain_order_deadlocks_only_in_a_steady_state(num_ranks, num_microbatches):
    for row in (naive, gpipe, one_f_one_b):
        schedule = plan(row, num_ranks, num_microbatches)
        rows = actions(schedule)
        require_actions(schedule, rows)
        if row is one_f_one_b and num_ranks > 1 and num_microbatches > 1:
            with pytest.raises(MessageError) as error:
                require_end(rows)
            assert error.value.rule == "deadlock"
        else:
            ended = list(order_of_completion(rows))
            assert [[a for r, a in ended if r == rank] for rank in range(num_ranks)] == [
                list(its) for its in rows
            ]


def test_a_deadlock_names_the_cycle_and_marks_its_actions():
    with pytest.raises(MessageError, match="rank 0 waits at >F1 for rank 1; rank 1") as e:
        require_end(actions(TWO))
    assert e.value.marks == {0: 3, 1: 3}
    assert "F0   >F0  F1 [>F1]" in str(e.value)
    assert "F0   B0 [>B0]" in str(e.value)


def test_receiving_first_or_posting_together_avoids_the_deadlock():
    rows = actions(TWO)
    first, second = rows
    turned = (*second[:3], second[4], second[3], *second[5:])
    require_actions(TWO, with_row(rows, 1, turned))
    require_end(with_row(rows, 1, turned))
    for rank, row in enumerate(rows):
        joined = (*row[:3], Together((row[3], row[4])), *row[5:])
        require_actions(TWO, with_row(rows, rank, joined))
        require_end(with_row(rows, rank, joined))
    both = (*first[:3], first[4], first[3], *first[5:]), turned
    with pytest.raises(MessageError, match="rank 0 waits at <B0") as error:
        require_end(both)
    assert error.value.rule == "deadlock"


def broken():
    """(rule, rank, its row), each of TWO with one thing wrong."""
    first, second = actions(TWO)
    yield "order", 0, (*first[:2], *first[4:6], *first[2:4], *first[6:])
    yield "order", 1, second[:-2]
    yield "order", 1, (*second, Op(B, 1, 1))
    yield "need", 1, second[1:]
    yield "need", 0, (*first[:4], first[5], first[4], *first[6:])
    yield "early", 0, (first[1], first[0], *first[2:])
    yield "twice", 0, (*first[:2], first[1], *first[2:])
    yield "twice", 1, (second[0], second[0], *second[1:])
    yield "dropped", 1, second[:-1]
    yield "stranger", 0, (first[0], Send((F, 0, 0), 0), *first[2:])
    yield "stranger", 0, (*first, Recv((F, 1, 0), 1))
    yield "stranger", 0, (*first, Recv((F, 0, 0), 1))
    yield "early", 0, (Together((first[1],)), first[0], *first[2:])


@pytest.mark.parametrize(("rule", "rank", "row"), list(broken()))
def test_rows_that_do_not_perform_the_schedule_are_refused(rule, rank, row):
    with pytest.raises(MessageError, match=f"rank {rank}") as error:
        require_actions(TWO, with_row(actions(TWO), rank, row))
    assert error.value.rule == rule


def test_messages_keep_their_order():
    schedule = plan(gpipe, 2, 2)
    first, second = actions(schedule)
    turned = (first[0], first[2], first[3], first[1], *first[4:])
    require_actions(schedule, (turned, second))
    with pytest.raises(MessageError, match=">F1 .*<F0") as error:
        require_end((turned, second))
    assert error.value.rule == "pair"


def test_waiting_for_a_rank_that_has_finished_is_an_error():
    rows = actions(plan(gpipe, 2, 1))
    with pytest.raises(MessageError, match="rank 0 waits at <B0 for rank 1") as error:
        require_end((rows[0], rows[1][:-1]))
    assert error.value.rule == "ended"


@pytest.mark.parametrize("peer", [0, -1, 2])
def test_a_message_to_an_unknown_rank_is_refused(peer):
    with pytest.raises(ValueError, match="0 to 1"):
        require_end(((Send((F, 0, 0), peer),), ()))
