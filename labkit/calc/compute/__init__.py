"""Arithmetic: how much a token costs, and how long training takes."""
