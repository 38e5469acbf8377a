"""The learner's progress, in one SQLite file: events, due questions, statistics.

    record("hint", "scan", number=1)            store an event; `events()` reads it back
    practice.answer("card/co-8", "good")        an answer: stored, and its subject scheduled again
    statistics.streak()                         days in a row, mastery by topic, ...
    exchange.export_json(path)                  every event, for a backup or another machine

Bottom to top: clock.py (time, the folder, warnings); event.py; scheduling.py makes states out of
answers; store.py opens the file and runs transactions; practice.py writes down what happens;
statistics.py and exchange.py read it all. No file needs torch. If the SQLite file cannot be read or
written, a ProgressWarning says so, and the work goes on.
"""

from labkit.progress.clock import ProgressWarning, home
from labkit.progress.event import Event
from labkit.progress.practice import events, record

__all__ = ["Event", "ProgressWarning", "events", "home", "record"]
