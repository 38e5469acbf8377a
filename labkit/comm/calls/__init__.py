"""Calls that no Group carries out as one operation: compared all the same, see `compared.py`."""
