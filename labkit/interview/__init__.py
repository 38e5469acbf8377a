"""The engines of question cards, drills, mock interviews and the claims court.

Their questions are in labkit/course, a folder per subject.

    cards/          card.py reads cards; sitting.py asks them and records the rating
    evidence.py     prove("14 steps", "calc.collective('all_reduce', 'ring', 8).steps")
    runs.py         the real runs of all subjects: runs.collectives.ring_sent_bytes(4, 16_000)
    real_run.py     how such a run is written; recorded_times.py where it reads a clock
    drills/         questions with fresh numbers: drill.py makes one, question.py judges an answer
    design/         design rounds: a briefing, a plan that the planner checks, changes
    draw/           grids to fill: who sends what when, who holds what
    take_home.py    one job, one simulated cluster, and its step time as the score
    quiz.py         multiple choice from drills, claims and cards
    case_files.py   a job with a hidden fault: slow_case.py makes it slow, rl_case.py learn little
    court.py        claims, judged by calc and real runs
    mock/           an interview with a plan, a clock and a report
    summary.py      a learner's standing in everything
    anki.py         the cards as a file for Anki
    page.py         Markdown as HTML
"""
