"""A training step, and weeks of them, simulated for any layout.

orders -> graph          who does what in which order, and what each waits for
disturbance -> behaviour   who is unlike the others: the rest is simulated once
replica, gradients       seconds: through the pipeline, and after it
simulate_step            a step; simulated_step: what it shows, such as what costs most
weeks                    simulate_weeks: failures, checkpoints, restarts
"""
