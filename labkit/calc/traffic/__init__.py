"""Bytes, messages, steps and seconds of collectives, a file per algorithm."""
