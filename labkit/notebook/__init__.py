"""What a notebook page is made of: predictions, tables, calculators, cells that are meant to fail.

    from labkit.notebook import calculator, expect_error, predict, reveal, table
    from labkit.notebook import memory_calculator, pipeline_calculator
    from labkit.notebook import layout_planner, mesh_explorer, schedule_puzzle
    from labkit.notebook import docket, judge, vote
    from labkit.notebook import card, case, dashboard, drill, mock_interview

The only room that imports IPython or ipywidgets. Everything here also works in a kernel without a
browser, where it shows its plain-text form.
"""

from labkit.notebook.calculator import calculator
from labkit.notebook.card_sitting import CardSitting, card
from labkit.notebook.claims_court import Vote, docket, vote
from labkit.notebook.dashboard import Dashboard, dashboard
from labkit.notebook.drill_round import DrillRound, case, drill
from labkit.notebook.expect_error import expect_error
from labkit.notebook.judgement import judge
from labkit.notebook.knobs import Knob, knobs
from labkit.notebook.layout_planner import LayoutPlanner, layout_planner
from labkit.notebook.memory_calculator import MemoryCalculator, memory_calculator
from labkit.notebook.mesh_explorer import MeshExplorer, mesh_explorer
from labkit.notebook.mock_interview import MockInterview, mock_interview
from labkit.notebook.pipeline_calculator import PipelineCalculator, pipeline_calculator
from labkit.notebook.predict import predict, reveal
from labkit.notebook.ring_cost import RingCost
from labkit.notebook.ring_slider import RingSlider, ring_slider
from labkit.notebook.schedule_puzzle import schedule_puzzle
from labkit.notebook.table import Row, table

__all__ = [
    "CardSitting",
    "Dashboard",
    "DrillRound",
    "Knob",
    "LayoutPlanner",
    "MemoryCalculator",
    "MeshExplorer",
    "MockInterview",
    "PipelineCalculator",
    "RingCost",
    "RingSlider",
    "Row",
    "Vote",
    "calculator",
    "card",
    "case",
    "dashboard",
    "docket",
    "drill",
    "expect_error",
    "judge",
    "knobs",
    "layout_planner",
    "memory_calculator",
    "mesh_explorer",
    "mock_interview",
    "pipeline_calculator",
    "predict",
    "reveal",
    "schedule_puzzle",
    "ring_slider",
    "table",
    "vote",
]
