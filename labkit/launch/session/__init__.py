"""Ranks that keep their variables from cell to cell."""
