"""Notebook pages: predictions, tables, calculators, cards, cells that are meant to fail.

    from labkit.notebook import calculator, expect_error, predict, reveal, table
    from labkit.notebook import cache_calculator, memory_calculator, pipeline_calculator
    from labkit.notebook import layout_planner, mesh_explorer, schedule_puzzle
    from labkit.notebook import docket, judge, vote
    from labkit.notebook import card, case, dashboard, drill, mock_interview

    shown.py             tables, boxes, cells that should fail; predictions.py: predict and reveal
    magic.py             %%ranks
    sliders.py           sliders for any function
    moving/              pictures of a run that move
    traffic.py memory.py cache.py pipeline.py planner.py mesh.py    a calculator each
    bars.py, schedule_svg.py   what calculators show; own_model.py: a reader's config.json
    controls.py          buttons and fields of the pages below
    cards.py drills.py quizzes.py drawings.py puzzle.py court.py    practice
    mock.py, mock_items.py     an interview; designing.py: a design round; take_home_page.py
    progress.py          the learner's standing; page_strip.py: on one page

No other room imports IPython or ipywidgets. Everything here also works in a kernel without a
browser, where it shows its plain-text form.
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy

if TYPE_CHECKING:
    from labkit.notebook import moving
    from labkit.notebook.cache import CacheCalculator, cache_calculator
    from labkit.notebook.cards import CardSitting, card
    from labkit.notebook.court import Vote, docket, judge, vote
    from labkit.notebook.designing import DesignView, design_round
    from labkit.notebook.drawings import DrawIt, draw
    from labkit.notebook.drills import DrillRound, case, drill
    from labkit.notebook.memory import MemoryCalculator, memory_calculator
    from labkit.notebook.mesh import MeshExplorer, mesh_explorer
    from labkit.notebook.mock import MockInterview, mock_interview
    from labkit.notebook.page_strip import strip
    from labkit.notebook.pipeline import PipelineCalculator, pipeline_calculator
    from labkit.notebook.planner import LayoutPlanner, layout_planner
    from labkit.notebook.predictions import predict, reveal
    from labkit.notebook.progress import Dashboard, dashboard
    from labkit.notebook.puzzle import schedule_puzzle
    from labkit.notebook.quizzes import Quiz, quiz
    from labkit.notebook.shown import Row, expect_error, table
    from labkit.notebook.sliders import Knob, knobs
    from labkit.notebook.take_home_page import TakeHome, take_home
    from labkit.notebook.traffic import TrafficCost, calculator

__getattr__, __dir__, __all__ = lazy(__name__)
