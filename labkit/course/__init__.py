"""The subjects of the course, one folder each. Engines find them by folder; no room imports them.

    SUBJECT/
        subject.toml          its title, its place among the subjects, topics, exercises in order
        cards.md              questions with answers of a minute, and what proves their numbers
        claims.toml           common claims, for the court (notebook 27)
        drills.py             questions with fresh numbers each time
        evidence.py           real runs that give the numbers of cards and claims
        exercises/NAME.py     a grader: cases, the right answer, the budget, the usual mistakes
        exercises/NAME.toml   the exercise's title, hints, text after a pass, follow-ups

Every subject has subject.toml and cards.md; the others are optional.

    times.json                measured times of the court's runs, with the machine and the date

If a file would be longer than a chapter, a folder of the same name holds several. The exercise
itself is in exercises/NAME.py of the repository, its answer in solutions/NAME.py. labkit.grade and
labkit.interview have the engines. `labkit new` writes a template; docs/ says how to fill it in.
"""
