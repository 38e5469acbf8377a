"""Two agents with one reward: what they learn, and what exploring costs (labkit/rl/two_agents.py).

Written down before tuning:

    games        climbing (11 at best), penalty (10), two steps (8)
    learners     independent, vdn, qmix; all with the same settings
    exploring    random: all actions at random; falls: from 100% to 5%; little: 5% always
    optimistic   falls, and an error below 0 counts a tenth (caution = 0.1)
    budget       400 updates of 32 episodes; seeds 1, 2, 3, 4, 5; settings are tuned on seed 0
    asked        two steps with all actions at random: 7, 7 and 8, as the paper of QMIX reports
    reported     the median return when both agents act greedily, the seeds that reach the best
                 return, and the mean return of an episode of training: its distance to the greedy
                 return is what exploring cost

    python benchmarks/rl_agents.py                      about 4 minutes on one rank
    python benchmarks/rl_agents.py climbing --ranks 2   one game, over two ranks
"""

import statistics
from dataclasses import replace

from measure import command_line, machine

import labkit
from labkit.rl.two_agents import GAMES, LEARNERS, AgentsConfig, greedy_return, train

SEEDS = (1, 2, 3, 4, 5)
CONFIG = AgentsConfig()
WAYS = {
    "random": {"last_epsilon": 1.0},
    "falls": {},
    "little": {"first_epsilon": 0.05},
    "optimistic": {"caution": 0.1},
}


def trainings(world: labkit.Group, game: str, learner: str) -> dict[str, list[list[float]]]:
    """By way of exploring: for each seed the greedy return, the mean one in training, updates/s."""
    found: dict[str, list[list[float]]] = {}
    for way, settings in WAYS.items():
        for seed in SEEDS:
            config = replace(CONFIG, learner=learner, seed=seed, **settings)
            history = train(world, GAMES[game], config)
            greedy = greedy_return(GAMES[game], history.parameters["tables_2SA"])
            mean = statistics.fmean(each.total for each in history.episodes)
            found.setdefault(way, []).append([greedy, mean, history.updates_per_s])
    return found


def main() -> None:
    """Print a table for each game."""
    parser = command_line(__doc__)
    parser.add_argument("game", nargs="*", default=list(GAMES), help=f"some of {list(GAMES)}")
    parser.add_argument("--ranks", type=int, default=1)
    chosen = parser.parse_args()
    if unknown := set(chosen.game) - set(GAMES):
        parser.error(f"{', '.join(unknown)}: choose among {', '.join(GAMES)}")
    print(f"{chosen.ranks} ranks, {CONFIG.num_updates} updates, seeds {SEEDS}. {machine()}")
    for game in chosen.game:
        best = GAMES[game].best
        print(f"{game}, {best:g} at best: greedy return, median (least to most) | in training")
        for learner in LEARNERS:
            found = labkit.run(trainings, chosen.ranks, (game, learner), timeout=600).values[0]
            for way, runs in found.items():
                greedy, means, rates = zip(*runs, strict=True)
                print(
                    f"  {learner:<12}{way:<11}{statistics.median(greedy):>6.1f} "
                    f"({min(greedy):.0f} to {max(greedy):.0f})  best in "
                    f"{sum(each == best for each in greedy)} of {len(greedy)} |"
                    f"{statistics.median(means):>7.1f}  {statistics.median(rates):>5.0f} updates/s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
