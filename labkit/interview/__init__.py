"""What an interviewer asks, and answers in which every number is proved.

cards/       the question cards of bank/*.md: parsed, validated, counted
evidence.py  prove("4.93 ms", "calc.all_reduce_seconds(1e9, n=8, alpha=5e-6, beta=1/360e9)")
runs/        short real runs whose number is evidence: runs.collectives.ring_sent_bytes(4, 16_000)
"""
