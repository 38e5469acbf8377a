"""Question cards with evidence, drills with fresh numbers, and the interview made of both."""
