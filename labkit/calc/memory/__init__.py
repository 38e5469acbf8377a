"""Bytes that a rank holds while it trains: model states, activations, caches."""
