"""Grading: exercises on real ranks, judged by what they computed and what they sent.

    labkit.check("ring_all_reduce")      the learner's exercises/ring_all_reduce.py, or a function
    labkit.hint("ring_all_reduce")       the next of three
    labkit.solution("ring_all_reduce")   after a pass, or on confirmation
    labkit.reset("ring_all_reduce")      the stub again; the learner's file is kept

Read in this order: grader.py, what a grader is made of, with one of labkit/course/*/exercises;
engine.py, from a name to a verdict; submission.py reads the code, harness.py runs it on each rank,
observed.py is what was seen there; findings.py looks for the first thing that is wrong, with
unfinished.py and differences.py; verdict.py says it. watched.py is the group that code under test
gets. catalog.py finds exercises, stubs.py and workspace.py are about files, hints.py about the
learner. graded_schedules.py has what exercises about schedules share; puzzles/ is another kind of
exercise.
"""
