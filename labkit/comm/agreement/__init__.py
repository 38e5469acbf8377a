"""Ranks compare what they mean before an operation is carried out."""
