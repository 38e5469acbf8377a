"""Reinforcement learning over ranks, as a ladder: each rung is a file of its own."""
