"""What is taught, a folder per subject. No other room imports it: engines find it by its folders.

    SUBJECT/
        subject.toml          its title, its place among the subjects, topics, exercises in order
        cards.md              questions with answers of a minute, and what proves their numbers
        claims.toml           sentences that circulate, for the court (notebook 18)
        drills.py             questions with fresh numbers each time
        evidence.py           real runs that give the numbers of cards and claims
        exercises/NAME.py     a grader: cases, the right answer, the budget, the usual mistakes
        exercises/NAME.toml   the exercise's title, hints, what to say after a pass, follow-ups

Not every subject has all of these: subject.toml and cards.md always.

    times.json                what clocks read in runs of the court, with the machine and the date

Where a file would be longer than a chapter, a folder of the same name holds several. The exercise
itself is in exercises/NAME.py of the repository, its answer in solutions/NAME.py. labkit.grade and
labkit.interview have the engines. `labkit new` writes a template; docs/ says how to fill it in.
"""
