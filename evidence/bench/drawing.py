"""`python -m evidence.bench.drawing`: what an image of CarRacing costs beside the physics of a
step, in processor time, which other work on the machine changes little."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

GAS = 3


def milliseconds(call: Callable[[], object], times: int) -> float:
    """Return the processor time of a call, the mean over some."""
    started = time.process_time()
    for _ in range(times):
        call()
    return 1000 * (time.process_time() - started) / times


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m evidence.bench.drawing", description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="to measure (default 200)")
    steps = parser.parse_args(arguments).steps

    env = gymnasium.make("CarRacing-v3", continuous=False, disable_env_checker=True)
    env.reset(seed=0)
    racing: Any = env.unwrapped
    whole = milliseconds(lambda: racing.step(GAS), steps)
    racing.reset(seed=0)
    racing._render = lambda mode: racing.state
    physics = milliseconds(lambda: racing.step(GAS), steps)
    env.close()
    print(f"a step with its image: {whole:.3g} ms, without: {physics:.3g} ms of processor time")


if __name__ == "__main__":
    main()
