"""Arrows between lanes: from the moment of a send to the moment when its receive was done."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from labkit.comm.operation import Timeline
from labkit.viz import style
from labkit.viz.lanes import MAIN_MIDDLE, Scale
from labkit.viz.messages_in_flight import Message, matched_messages

MAX_ARROWS = 60  # more is a thicket


def messages_to_draw(
    timelines: Sequence[Timeline], shown: Sequence[int], start_s: float, end_s: float
) -> list[Message]:
    """The messages to draw: all that lie in the window, or none where they would be a thicket."""
    messages = [
        message
        for message in matched_messages(timelines)
        if message.source in shown
        and message.destination in shown
        and message.recv.done_s is not None
        and start_s <= message.send.posted_s <= message.recv.done_s <= end_s
    ]
    return messages if len(messages) <= MAX_ARROWS else []


def draw_arrows(
    axes: Axes, scale: Scale, messages: Sequence[Message], shown: Sequence[int]
) -> None:
    """From the lane of each sender, at its post, to the lane of the receiver, at its end."""
    lane_of = {rank: lane for lane, rank in enumerate(shown)}
    for message in messages:
        assert message.recv.done_s is not None, "only completed messages become arrows"
        source, destination = lane_of[message.source], lane_of[message.destination]
        axes.annotate(
            "",
            xy=(scale.x(message.recv.done_s), destination + MAIN_MIDDLE),
            xytext=(scale.x(message.send.posted_s), source + MAIN_MIDDLE),
            arrowprops={
                "arrowstyle": "-|>,head_width=0.18,head_length=0.4",
                "color": style.INK,
                "linewidth": 0.9,
                "alpha": 0.8,
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )
