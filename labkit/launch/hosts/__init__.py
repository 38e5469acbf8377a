"""Ranks under torchrun, on this host and others."""
