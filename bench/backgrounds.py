"""The background of Atari games, for `env.normalize_observations`: `python -m bench.backgrounds qbert`.

For each game: the most frequent gray of its pictures under random play, its share of the pixels, and their mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from a3c_exp.envs import Atari
from a3c_exp.errors import ConfigError
from a3c_exp.run import markdown

GAMES = "beam_rider", "breakout", "enduro", "pong", "qbert", "seaquest", "space_invaders"
"""Those of rl-baselines3-zoo."""
COPIES = 4
BYTE = np.arange(256)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each game. Return 2 where there is no such game, or no emulator."""
    parser = argparse.ArgumentParser(prog="python -m bench.backgrounds", description=__doc__)
    parser.add_argument("game", nargs="*", default=GAMES, help=f"(default: {' '.join(GAMES)})")
    parser.add_argument("--steps", type=int, default=4000, help="of random play, of 4 frames each (default 4000)")
    flags = parser.parse_args(arguments)
    print(markdown.table(["game", "most frequent gray", "share of the pixels", "mean"]))
    for game in flags.game:
        try:
            counts = grays(game, flags.steps)
        except ConfigError as error:
            parser.error(str(error))
        shares = counts / counts.sum()
        print(markdown.row((game, f"{shares.argmax()}", f"{shares.max():.0%}", f"{shares @ BYTE:.0f}")), flush=True)
    return 0


def grays(game: str, steps: int, seed: int = 0) -> NDArray[np.int64]:
    """How many pixels have each of the 256 grays, in the pictures after `steps` random steps of a game."""
    rng, counts = np.random.default_rng(seed), np.zeros(256, np.int64)
    batch = Atari(game=game).make(COPIES, [seed + number for number in range(COPIES)])
    try:
        assert isinstance(batch.action_space, Discrete)
        actions = int(batch.action_space.n)
        batch.reset()
        for _ in range(-(-steps // COPIES)):
            observations = batch.step(rng.integers(actions, size=COPIES)).obs
            counts += np.bincount(observations[:, -1].reshape(-1), minlength=256)
    finally:
        batch.close()
    return counts


if __name__ == "__main__":
    raise SystemExit(main())
