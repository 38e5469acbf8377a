"""What an interviewer asks, and answers in which every number is proved.

cards/       the question cards of labkit/course/*/cards.md: read and asked
evidence.py  prove("14 steps", "calc.collective('all_reduce', 'ring', 8).steps")
runs.py      short real runs whose number is evidence: runs.collectives.ring_sent_bytes(4, 16_000)
"""
