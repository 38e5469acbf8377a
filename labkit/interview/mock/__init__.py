"""A mock interview: a plan of questions, drills and an exercise; a clock; a report by topic.

interview = Interview(plan_interview(45, "senior", seed=3))
interview.take(item, score=0.8, missed=[...])
interview.report().markdown

plan.py chooses the items, interview.py asks them and keeps the time, report.py writes the report.
"""

from labkit.interview.mock.interview import Interview, Taken
from labkit.interview.mock.plan import LEVELS, Item, Plan, plan_interview
from labkit.interview.mock.report import Report

__all__ = ["LEVELS", "Interview", "Item", "Plan", "Report", "Taken", "plan_interview"]
