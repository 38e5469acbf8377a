"""Reinforcement learning over ranks, as a ladder: each rung is a file of its own.

Read in this order, and start here:

    environments.py     gymnasium's CartPole, several of them, and one that is slow on purpose
    actor_critic.py     a small policy with a value function, rollouts, advantages
    ppo.py              rung 1: PPO under data parallelism, one all-reduce per update
    a3c.py              rung 2: asynchronous workers and the lab's parameter server
    v_trace.py          values and advantages from the steps of an older policy
    impala.py           rung 3: actors, a queue (rollout_queue.py) and a learner
    replay.py           prioritised replay in shards over ranks
    dqn.py              rung 4: DQN, whose ranks learn from any shard
    two_agents.py       rung 5: two agents with one reward, which learn together and act alone

What rungs 1 to 5 leave behind:

    history.py          returns, samples, updates, staleness, and the idle time of each rank

Rung 6, reinforcement learning of a language model, begins with grpo.py:

    grpo.py             advantages within a group, and the clipped loss over all tokens
    batch_invariant.py  products whose result for a row does not depend on batch and ranks
    invariant_gpt.py    the GPT and its decoder, of these products
    weight_sync.py      weights from the training to the serving layout, by bytes needed
    copying.py          a task whose answers a program checks
    settings.py         a job's settings; figures.py: the measures of each update
    generator.py        an engine's rank; completion.py: its answers and messages
    answer_queue.py     bounded staleness, the order of answers, stalls
    grpo_trainer.py     a trainer's rank
    language.py         the loop: synchronous, one step off, asynchronous, partial rollouts

examples/one_file/grpo.py is GRPO in plain torch.distributed, without labkit.
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy

if TYPE_CHECKING:
    from labkit.rl.actor_critic import ActorCritic, RLConfig
    from labkit.rl.copying import Copying
    from labkit.rl.dqn import DQNConfig
    from labkit.rl.environments import cart_pole, slow_cart_pole
    from labkit.rl.figures import Figures
    from labkit.rl.generator import Generator
    from labkit.rl.grpo import group_advantages, grpo_loss
    from labkit.rl.grpo_trainer import Trainer
    from labkit.rl.history import Episode, History, Recorder
    from labkit.rl.impala import ImpalaConfig
    from labkit.rl.invariant_gpt import InvariantDecoder, InvariantGPT
    from labkit.rl.language import Parts, Trained
    from labkit.rl.ppo import PPOConfig
    from labkit.rl.replay import ShardedReplay
    from labkit.rl.settings import Settings
    from labkit.rl.two_agents import AgentsConfig
    from labkit.rl.weight_sync import WeightSync


__getattr__, __dir__, __all__ = lazy(__name__)
