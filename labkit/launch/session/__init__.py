"""Ranks that keep their variables from cell to cell.

session.py   Session, which a reader calls, and the Run of one cell
in_rank.py   one process of a session: its commands and its namespace
ranks.py     all processes: their start, one command after another, their end after an error
"""
