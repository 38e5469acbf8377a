"""What a ruling says of waits and chains, and the grid in time, as text."""

from labkit.grade.puzzles.explain import longest_chain, longest_wait
from labkit.pipeline import (
    Costs,
    one_f_one_b,
    parse,
    plan,
    simulate,
)

GOOD = "F0 F1 B0 B1\nF0 B0 F1 B1"


def test_who_waits_longest_and_for_what_is_told():
    timing = simulate(parse("F0 B0 F1 B1\nF0 B0 F1 B1"))
    assert longest_wait(timing) == (
        "rank 0 is idle longest, 6 of 12; its longest wait is from 1 to 4, before B0, for B0 "
        "of stage 1 on rank 1"
    )
    timing = simulate(parse("F0 B0\nF0 B0"), Costs(forward=[1, 9]))
    assert "rank 0 is idle longest" in longest_wait(timing) and "1 to 12" in longest_wait(timing)
    timing = simulate(parse("F0 B0\nF0 B0"), Costs(input_gradient=[9, 1]))
    assert longest_wait(timing).endswith("from 4 to 14, after its last operation")
    assert longest_wait(simulate(parse("F0 B0"))) == "no rank is ever idle"


def test_the_longest_chain_is_unbroken_from_0_to_the_end():
    timing = simulate(parse(GOOD))
    assert longest_chain(timing) == "rank 0 F0, rank 1 F0 B0 F1 B1, rank 0 B1"
    slow = simulate(plan(one_f_one_b, 2, 4), Costs(send=2))
    assert (
        longest_chain(slow)
        == "rank 0 F0, rank 1 F0 B0, rank 0 B0 F2, rank 1 F2 B2 F3 B3, rank 0 B3"
    )
    long = simulate(parse("\n".join(["F0 B0 F1 B1 F2 B2"] * 3)))
    assert longest_chain(long).endswith("...: 12 times from rank to rank")
