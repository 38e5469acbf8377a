"""The grader of send_recv_order: every order that ends passes, and what does not is told apart."""

import random
from pathlib import Path

import pytest

from labkit.grade import check
from labkit.grade.graders.order_actions import NoAction, row_of
from labkit.grade.graders.order_questions import Pipe, draw, questions_of
from labkit.grade.graders.order_runs import by_one_process, wrong_on_ranks
from labkit.grade.graders.send_recv_order import GRADER, _performed
from labkit.grade.workspace import Workspace
from labkit.pipeline import Kind, Op
from labkit.pipeline.messages import Recv, Send, Together, actions

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "send_recv_order"


def plain(rank, p, m, row):
    """Receive, compute, send."""
    actions = []
    for op in row:
        before, after = (rank - 1, rank + 1) if op[0] == "F" else (rank + 1, rank - 1)
        actions += [("recv", op, before)] if 0 <= before < p else []
        actions += [op]
        actions += [("send", op, after)] if 0 <= after < p else []
    return actions


def swapped(actions, where):
    """Sends and receives with one rank, next to each other, turned round where `where` says so."""
    actions = list(actions)
    for at in range(len(actions) - 1):
        one, other = actions[at : at + 2]
        is_exchange = (one[0], other[0], one[2:]) == ("send", "recv", other[2:])
        if is_exchange and where(one, other):
            actions[at : at + 2] = [other, one]
    return actions


def by_parity(rank, p, m, row):
    """Even ranks send first, odd ones receive first, where the neighbour exchanges as well."""
    warmup = p - rank - 1

    def is_turned(sent, received):
        is_steady = sent[1][0] == "B" or int(sent[1][1:]) >= warmup
        return rank % 2 == 1 and is_steady

    return swapped(plain(rank, p, m, row), is_turned)


def later_receives_first(rank, p, m, row):
    """At every exchange the later rank receives the forward, and then sends the gradient."""
    return swapped(plain(rank, p, m, row), lambda sent, received: sent[1][0] == "B")


def posted_together(rank, p, m, row):
    """Every send with the receive that follows it, whoever it is from."""
    actions = []
    for action in plain(rank, p, m, row):
        is_receive = isinstance(action, tuple) and action[0] == "recv"
        if is_receive and actions and isinstance(actions[-1], tuple) and actions[-1][0] == "send":
            actions[-1] = [action, actions[-1]]
        else:
            actions.append(action)
    return tuple(actions)


def batches(rank, p, m, row):
    """A generator: before each operation one batch, of what is left to send and what is needed.

    It is empty where there is neither, as before rank 0's first operation.
    """
    to_send = []
    for op in row:
        before, after = (rank - 1, rank + 1) if op[0] == "F" else (rank + 1, rank - 1)
        yield to_send + [("recv", op, before)] * (0 <= before < p)
        yield op
        to_send = [("send", op, after)] * (0 <= after < p)
    yield to_send


def judged(order, seed=0):
    questions = GRADER.questions(random.Random(seed))
    return GRADER.judge(questions, [order(*each.arguments) for each in questions])


@pytest.mark.parametrize("order", [by_parity, later_receives_first, posted_together, batches])
def test_every_family_of_right_answers_passes(order):
    verdict = check(NAME, order, workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("order", [by_parity, later_receives_first, posted_together])
@pytest.mark.parametrize("p", range(1, 9))
def test_they_end_for_any_number_of_ranks_and_microbatches(order, p):
    for m in range(1, 2 * p + 3):
        questions = questions_of([Pipe(p, m)])
        rows = tuple(row_of(order(*q.arguments), q.arguments[0], p) for q in questions)
        assert _performed(Pipe(p, m), rows).error is None, m


def wrong(name):
    """A wrong answer of that diagnosis."""

    def order(rank, p, m, row):
        its = plain(rank, p, m, row)
        good = posted_together(rank, p, m, row)
        is_receive = [isinstance(each, tuple) and each[0] == "recv" for each in its]
        receives = [each for each, is_such in zip(its, is_receive) if is_such]
        others = [each for each, is_such in zip(its, is_receive) if not is_such]
        sends = [each for each in its if isinstance(each, tuple) and each[0] == "send"]
        forwards = [each for each in row if each[0] == "F"]
        first = {"even": (rank + (rank == p - 1 and p % 2 == 0)) % 2, "odd": 0}
        first["odd"] = 1 if rank == p - 1 and p % 2 else rank % 2
        return {
            "both sides send first": its,
            "both sides receive first": swapped(
                its, lambda s, r: s[1][0] == "B" or int(s[1][1:]) >= p - rank - 1
            ),
            "stands still where microbatches are few": swapped(its, lambda s, r: rank % 2 == 1),
            "stands still for an odd number of ranks": _by(first["odd"], its, p - rank - 1),
            "stands still for an even number of ranks": _by(first["even"], its, p - rank - 1),
            "works for two ranks only": _by(rank == p - 1, its, p - rank - 1),
            "waits for everything before it computes": receives + others,
            "sends nothing before its last operation": [
                *(each for each in its if each not in sends),
                *sends,
            ],
            "sends what is not computed yet": sends + [each for each in its if each not in sends],
            "turns 1F1B into GPipe": plain(
                rank, p, m, forwards + [each.replace("F", "B") for each in forwards]
            ),
            "computes in another order": plain(rank, p, m, row[::-1]),
            "computes before the message is there": others + receives,
            "drops a message": [each for each in good if each != ("send", "F0", rank + 1)],
            "a message twice": [*good, *sends],
            "a message that belongs to nobody": (
                [*good, ("recv", "F0", rank + 1)] if rank + 1 < p else good
            ),
            "sends and receives do not pair": _late(its),
            "returns something else": None,
        }[name]

    return order


def _by(receives_first, its, warmup):
    def is_turned(sent, received):
        is_steady = sent[1][0] == "B" or int(sent[1][1:]) >= warmup
        return receives_first and is_steady

    return swapped(its, is_turned)


def _late(its):
    """The first two forwards are sent in the other order, the first after the second."""
    sends = [
        at for at, each in enumerate(its) if isinstance(each, tuple) and each[:2] == ("send", "F1")
    ]
    first = [
        at for at, each in enumerate(its) if isinstance(each, tuple) and each[:2] == ("send", "F0")
    ]
    if not sends or not first:
        return its
    its = list(its)
    message = its[first[0]]
    its.insert(sends[0] + 1, message)
    del its[first[0]]
    return its


DIAGNOSES = (
    "both sides send first",
    "both sides receive first",
    "stands still where microbatches are few",
    "stands still for an odd number of ranks",
    "stands still for an even number of ranks",
    "works for two ranks only",
    "waits for everything before it computes",
    "sends nothing before its last operation",
    "sends what is not computed yet",
    "turns 1F1B into GPipe",
    "computes in another order",
    "computes before the message is there",
    "drops a message",
    "a message twice",
    "a message that belongs to nobody",
    "sends and receives do not pair",
    "returns something else",
)


@pytest.mark.parametrize("name", DIAGNOSES)
@pytest.mark.parametrize("seed", range(4))
def test_each_mistake_has_its_name(name, seed):
    finding = judged(wrong(name), seed)
    assert finding is not None and finding.diagnosis == name, finding


def test_a_standstill_shows_the_circle():
    finding = judged(plain)
    assert "rank 0 waits at >F1 for rank 1; rank 1 waits at >B0 for rank 0" in finding.first_seen
    assert "[>F1]" in finding.details


@pytest.mark.parametrize("seed", range(6))
def test_pipelines_are_fresh_small_and_large_even_and_odd(seed):
    pipes = draw(random.Random(seed))
    assert len(set(pipes)) == len(pipes) and draw(random.Random(seed + 100)) != pipes
    for is_such in (
        lambda pipe: pipe.p == 1,
        lambda pipe: pipe.p % 2 and pipe.p > 1 and pipe.m < pipe.p,
        lambda pipe: pipe.p % 2 == 0 and pipe.m < pipe.p,
        lambda pipe: pipe.p % 2 and pipe.p > 1 and pipe.m > pipe.p,
        lambda pipe: pipe.p % 2 == 0 and pipe.m > pipe.p,
        lambda pipe: pipe.p > 2 and pipe.m == pipe.p,
    ):
        assert any(map(is_such, pipes))


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "F0",
        [3],
        ["W0"],
        ["F0", ("send", "F0")],
        [("post", "F0", 1)],
        [("send", "F0", 1.0)],
        [("send", "F0", True)],
        [("send", "F0", 0)],
        [("send", "F0", 3)],
        [("send", 0, 1)],
        [["F0", ("send", "F0", 1)]],
        [[("send", "F0", 1), "F1"]],
    ],
)
def test_what_is_no_action_is_refused(answer):
    with pytest.raises(NoAction):
        row_of(answer, 0, 3)


def test_actions_are_those_of_the_pipeline():
    row = row_of(["F0", ("send", "F0", 2), [("recv", "B0", 2), ["send", "B1", 0]]], 1, 3)
    i, f = Kind.I, Kind.F
    assert row == (
        Op(f, 1, 0),
        Send((f, 1, 0), 2),
        Together((Recv((i, 2, 0), 2), Send((i, 1, 1), 0))),
    )


def test_real_ranks_refuse_what_stands_still_and_what_comes_to_the_wrong_one(monkeypatch):
    pipe = Pipe(2, 3)
    monkeypatch.setattr("labkit.grade.graders.order_runs._STALL_S", 0.5)
    assert wrong_on_ranks(pipe, actions(pipe.schedule)).diagnosis == "stands still on real ranks"
    rows = tuple(
        row_of(posted_together(*q.arguments), q.arguments[0], 2) for q in questions_of([pipe])
    )
    assert wrong_on_ranks(pipe, rows) is None
    wanted = by_one_process(pipe)
    monkeypatch.setattr(
        "labkit.grade.graders.order_runs.by_one_process",
        lambda pipe: [wanted[0], {**wanted[1], "B1": wanted[1]["B0"]}],
    )
    assert wrong_on_ranks(pipe, rows).diagnosis == "another microbatch has arrived"
