"""Strong and weak scaling, the serial share, and how many ranks are worth it.

An interviewer asks: "A step takes 2 s on 8 GPUs and 0.4 s on 64. How efficient is that? What is the
serial share, by Amdahl's law? How many GPUs can you use before half of them are wasted? And why do
people train on ten thousand GPUs all the same?"

    strong scaling   the same work for any number of ranks
    weak scaling     n times the work for n times the ranks
    efficiency       of n ranks, compared with a base of fewer ranks: the work that they do in a
                     second divided by the work that they would do if each did as much as a rank of
                     the base does. 1 is ideal
    Amdahl's law     on n ranks the same work takes T(n) = T(1) (s + (1 - s) / n). s is the serial
                     share: the part of one rank's time that more ranks do not make shorter
    Gustafson's law  starts from a run on n ranks. s is the serial share of that run's time; in the
                     rest of it all n ranks work. The scaled speedup says how many times longer one
                     rank would take for the same work

Write five functions. base and n are numbers of ranks, and base < n. base may be 1, and need not be.
base_s and n_s are the seconds of a step, as measured on base ranks and on n ranks.

    strong_efficiency(base, base_s, n, n_s)
        the work of a step is the same on both
    weak_efficiency(base, base_s, n, n_s)
        the step on n ranks has n / base times the work
    serial_share(base, base_s, n, n_s)
        the s of Amdahl's law, where both times are of the same work and follow the law
    most_ranks(permille, percent)
        the largest number of ranks whose strong efficiency, by Amdahl's law and compared with one
        rank, is at least `percent`. permille is the serial share in thousandths. Both are whole
        numbers: permille from 1 to 999, percent from 1 to 100
    scaled_speedup(share, n)
        by Gustafson's law, with the serial share s = share of the run on n ranks, 0 to 1

Contract
    returns  most_ranks: an int, exact, also where the efficiency equals `percent`. The others: a
             float, within 1e-9 of the exact value. Efficiencies and shares are fractions: 0.25,
             not 25. An efficiency may be above 1
    never    labkit.measure. Each function is a line or three

Papers: Amdahl, "Validity of the single processor approach", AFIPS 1967; Gustafson, "Reevaluating
Amdahl's law", CACM 31(5), 1988.
"""


def strong_efficiency(base: int, base_s: float, n: int, n_s: float) -> float:
    """Return the efficiency of n ranks, where the work of a step stays the same."""
    ### BEGIN SOLUTION
    return base * base_s / (n * n_s)
    ### END SOLUTION


def weak_efficiency(base: int, base_s: float, n: int, n_s: float) -> float:
    """Return the efficiency of n ranks, where the work of a step grows with the ranks."""
    ### BEGIN SOLUTION
    # n ranks do n / base times the work: per rank the same work as on the base.
    return base_s / n_s
    ### END SOLUTION


def serial_share(base: int, base_s: float, n: int, n_s: float) -> float:
    """Return the serial share of one rank's time, by Amdahl's law through two measurements."""
    ### BEGIN SOLUTION
    # T(n) = serial + parallel / n: two equations for two unknowns.
    parallel = (base_s - n_s) / (1 / base - 1 / n)
    serial = base_s - parallel / base
    return serial / (serial + parallel)
    ### END SOLUTION


def most_ranks(permille: int, percent: int) -> int:
    """Return the most ranks with a strong efficiency of at least `percent`, by Amdahl's law."""
    ### BEGIN SOLUTION
    # The efficiency T(1) / (n T(n)) is 1 / (1 + (n - 1) s). So (n - 1) s <= 100 / percent - 1.
    return 1 + (100 - percent) * 1000 // (percent * permille)
    ### END SOLUTION


def scaled_speedup(share: float, n: int) -> float:
    """Return how many times longer one rank would take for what n ranks did, by Gustafson."""
    ### BEGIN SOLUTION
    # One rank would need the serial part once, and the parallel part n times.
    return share + (1 - share) * n
    ### END SOLUTION
