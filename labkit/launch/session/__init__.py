"""Ranks that keep their variables from cell to cell.

session.py   Session: what a reader calls, and the Run of one cell
in_rank.py   a process of a session: the commands that it is sent, its namespace
ranks.py     all these processes: start, one command after another, what an error ends
"""
