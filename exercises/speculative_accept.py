"""Which drafted tokens count: the rule that keeps speculative decoding exact.

An interviewer asks: "A small model drafts four tokens, and the large one checks them in one pass.
Which of them do you keep? What comes after the first one that you drop? Why is the output
distributed as if the large model had drawn every token itself, however bad the small one is?"

Write `speculative_accept(drafted, draft, target, uniforms)`: it returns the tokens that come out of
one pass of the large model.

Contract
    drafted   K tokens, whole numbers. The draft model drew token k from draft[k]
    draft     K distributions of the draft model, each a list of V probabilities that add up to 1
    target    K + 1 distributions of the large model at the same places: target[k] is for the place
              of drafted[k], given all drafted tokens before it, and target[K] for the place after
              the last one
    uniforms  K + 1 random numbers, uniform in [0, 1), independent. uniforms[k] decides whether
              drafted[k] counts. uniforms[K] draws the token that is not drafted: the last one of
              the result
    returns   a list of 1 to K + 1 tokens: drafted ones, in order, and then one that is not drafted
    exact     the output must be distributed as the large model's own: the first token as target[0],
              and so on. Of the rules that do this and decide on each drafted token by its own two
              distributions, yours accepts as many drafted tokens as possible
    zeros     draft[k] gives drafted[k] a probability above 0. target[k] may give it 0. Both
              distributions may be equal
    The arguments stay as they are. K may be 0

Test. Your function is called with all drafts and with uniforms of the whole range. The probability
of each list that it returns, with its length, must be correct to 1e-9. How you make a token from a
uniform number is up to you. So is a number exactly at a threshold, such as 0: it has probability 0.
"""

from collections.abc import Sequence

Distribution = Sequence[float]


def speculative_accept(
    drafted: Sequence[int],
    draft: Sequence[Distribution],
    target: Sequence[Distribution],
    uniforms: Sequence[float],
) -> list[int]:
    """Return the drafted tokens that count, and one more.

    Paper: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding",
    arXiv:2211.17192, algorithm 1.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")
