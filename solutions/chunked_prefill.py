"""Cut long prompts into chunks: plan a pass within a budget of tokens, and attend from a chunk.

An interviewer asks: "50 requests decode, and a prompt of 8,000 tokens arrives. What do the 50 users
see? How do you bound the gap between two of their tokens? What does that cost the new request? A
chunk from the middle of a prompt attends to which keys?"

Write two functions.

    plan_chunks(running, waiting, token_budget, max_running)
        running    a list of requests whose first chunk was computed, in order of arrival
        waiting    a list of requests that have not started, in order of arrival
        request    has three whole numbers: request.id, request.num_tokens (of the prompt, and of
                   the answer so far) and request.num_cached (how many of them, the first ones, have
                   keys and values already: fewer than num_tokens, and 0 if the request waits)
        token_budget  how many tokens a pass computes at most; max_running or more
        max_running   how many requests may run; as many or fewer run now
        returns    a dict: for each request of the next pass, its id and how many tokens it computes

    chunk_attention(q_HtK, k_HsK, v_HsK)
        q_HtK      queries of a chunk: the last t of the s tokens that the sequence has by now. H
                   heads, K features
        k_HsK, v_HsK  keys and values of all s tokens, those of the chunk the last; s is t or more
        returns    y_HtK: for each head softmax(q k^T / sqrt(K)) v, causal: a token attends to
                   itself and to all before it

Contract of plan_chunks
    decode    a running request with a single token that is not cached is in the pass, whatever the
              others need: each answer gets a token from each pass
    budget    all requests of a pass together compute token_budget tokens or fewer
    prompts   get what decoding leaves, those of running requests first, in order of arrival: the
              first one as much as it can use, then the next. A waiting request begins if tokens are
              left for it, and if fewer than max_running run, those that began in this pass included
    zero      a request without tokens in this pass is not in the dict

Contract of chunk_attention
    types     q, k, v and y have the same type, float32 or float64

Paper: Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve",
OSDI 2024.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def plan_chunks(
    running: Sequence[Any], waiting: Sequence[Any], token_budget: int, max_running: int
) -> dict[int, int]:
    """Return how many tokens each request of the next pass computes."""
    ### BEGIN SOLUTION
    missing = {each.id: each.num_tokens - each.num_cached for each in running}
    chunks = {id: 1 for id, num in missing.items() if num == 1}
    left = token_budget - len(chunks)
    prompts = {id: num for id, num in missing.items() if num > 1}
    for each in waiting[: max_running - len(running)]:
        prompts[each.id] = each.num_tokens
    for id, num in prompts.items():
        if num_now := min(num, left):
            chunks[id] = num_now
            left -= num_now
    return chunks
    ### END SOLUTION


def chunk_attention(q_HtK: Tensor, k_HsK: Tensor, v_HsK: Tensor) -> Tensor:
    """Attend from the last t of s tokens to themselves and all before them."""
    ### BEGIN SOLUTION
    t, s = q_HtK.shape[1], k_HsK.shape[1]
    scores_Hts = q_HtK @ k_HsK.transpose(1, 2) / q_HtK.shape[2] ** 0.5
    position_t, position_s = torch.arange(s - t, s), torch.arange(s)
    is_later_ts = position_s > position_t[:, None]
    return scores_Hts.masked_fill(is_later_ts, float("-inf")).softmax(-1) @ v_HsK
    ### END SOLUTION
