"""Puzzles: arrange the operations of a step so that it keeps a memory and a time budget.

    ruling = solve("two ranks", "F0 B0 F1 B1\\nF0 B0 F1 B1")
    bool(ruling)                    # False: it keeps the memory, and takes too long
    print(ruling)                   # what came of it, in words, and the order in time

book.py lists the puzzles. ruling.py reads an answer, simulates it, holds it against the budgets and
says what is in the way.
"""

from labkit.grade.puzzles.book import PUZZLES, Puzzle, UnknownPuzzle, get_puzzle
from labkit.grade.puzzles.ruling import Ruling, judge, solve, standing

__all__ = [
    "PUZZLES",
    "Puzzle",
    "Ruling",
    "UnknownPuzzle",
    "get_puzzle",
    "judge",
    "solve",
    "standing",
]
