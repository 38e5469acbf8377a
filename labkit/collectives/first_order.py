"""For a backward that communicates and has no gradient itself: refuse to be differentiated.

torch's `once_differentiable` is not enough. It complains only where the incoming gradient needs
one, and with create_graph=True from a loss it does not: then what depends on saved inputs is left
out of the second derivative, without a word.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import torch


def first_order_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates the `backward` of an autograd Function: RuntimeError under create_graph=True."""

    @functools.wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            words = re.findall("[A-Z][a-z]*", type(ctx).__name__.removesuffix("Backward"))
            name = "_".join(words).lower()
            raise RuntimeError(
                f"create_graph=True: the gradients of {name} have no gradients; leave it out"
            )
        return backward(ctx, *grads)

    return checked
