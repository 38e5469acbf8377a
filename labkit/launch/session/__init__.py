"""Ranks that keep their variables from cell to cell.

session.py         Session: what a reader calls
command.py         what it asks of its ranks: a cell, a value, names
session_ranks.py   their processes: start, one command after another, what an error ends
session_main.py    what each of these processes does
cell_run.py        the Run of one cell
"""
