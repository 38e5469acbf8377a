"""Mutant: prints the row.

outcome: "wrong"
diagnosis: "returns something else"
"""


def one_f_one_b_schedule(rank, num_ranks, num_microbatches):
    warmup = min(num_ranks - rank - 1, num_microbatches)
    print([f"F{i}" for i in range(warmup)])
