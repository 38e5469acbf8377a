"""Grading: exercises on real ranks, judged by what they computed and what they sent.

    labkit.check("ring_all_reduce")      the learner's exercises/ring_all_reduce.py, or a function
    labkit.hint("ring_all_reduce")       the next of three
    labkit.solution("ring_all_reduce")   after a pass, or on confirmation
    labkit.reset("ring_all_reduce")      the stub again; the learner's file is kept

Read the files in this order:

    grader.py             the parts of a grader; read one of labkit/course/*/exercises with it
    engine.py             from the name of an exercise to its verdict
    submission.py         reads the learner's code
    harness.py            calls it on each rank, with the group of watched.py
    observed.py           the record of what every rank did
    findings.py           finds the first mistake, with unfinished.py and differences.py
    verdict.py            shows it to the learner

catalog.py finds the exercises. stubs.py and workspace.py handle the learner's files, hints.py hints
and solutions. graded_schedules.py is shared by the exercises about pipeline schedules. puzzles/ has
another kind of exercise.
"""
