"""Puzzles: arrange the operations of a step so that it keeps a memory and a time budget.

    ruling = solve("let go", "F0 F1 B0 F2 B1 F3 B2 B3\nF0 B0 F1 B1 F2 B2 F3 B3")
    bool(ruling)                    # True: a step, in 15 units of time, with 2 microbatches at once
    print(ruling)                   # what came of it, in words, and the order in time

puzzle.py says what one is, book.py lists them. An answer is read (reading.py), must be a training
step on the puzzle's stages (puzzle_rules.py), is simulated and held against the budgets
(ruling.py), and what stands in the way is said (explain.py) and drawn as text
(labkit.pipeline.in_time).
"""

from labkit.grade.puzzles.book import PUZZLES, UnknownPuzzle, get_puzzle
from labkit.grade.puzzles.puzzle import Puzzle
from labkit.grade.puzzles.puzzle_engine import has_passed, solve, standing
from labkit.grade.puzzles.ruling import Ruling, judge

__all__ = [
    "PUZZLES",
    "Puzzle",
    "Ruling",
    "UnknownPuzzle",
    "get_puzzle",
    "has_passed",
    "judge",
    "solve",
    "standing",
]
