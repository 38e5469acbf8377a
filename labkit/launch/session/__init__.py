"""Ranks that keep their variables from cell to cell.

session.py         Session: what a reader calls
in_rank.py         what it asks of its ranks: a cell, a value, names
ranks.py   their processes: start, one command after another, what an error ends
in_rank.py    what each of these processes does
session.py        the Run of one cell
"""
