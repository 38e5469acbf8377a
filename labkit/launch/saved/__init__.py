"""A Run as a folder."""
