"""Pipeline schedules in closed form: bubbles, and microbatches in flight."""
