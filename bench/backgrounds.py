"""What `env.normalize_observations=background` subtracts from Atari games: `python -m bench.backgrounds qbert`.

For each game: the most frequent gray of its pictures under random play, its share of the pixels, and their mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from a3c_exp.config.background import STEPS, count_bytes
from a3c_exp.envs import Atari
from a3c_exp.errors import ConfigError
from a3c_exp.run import markdown

GAMES = "beam_rider", "breakout", "enduro", "pong", "qbert", "seaquest", "space_invaders"
"""Those of rl-baselines3-zoo."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each game. Exit code 2 where there is no such game, or no emulator."""
    parser = argparse.ArgumentParser(prog="python -m bench.backgrounds", description=__doc__)
    parser.add_argument("game", nargs="*", default=GAMES, help=f"(default: {' '.join(GAMES)})")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of random play (default {STEPS}, as the setting)")
    flags = parser.parse_args(arguments)
    print(markdown.table(["game", "most frequent gray", "share of the pixels", "mean"]))
    for game in flags.game:
        try:
            counts = count_bytes(Atari(game=game), flags.steps)
        except ConfigError as error:
            parser.error(str(error))
        shares = counts / counts.sum()
        cells = game, f"{shares.argmax()}", f"{shares.max():.0%}", f"{shares @ np.arange(256):.0f}"
        print(markdown.row(cells), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
