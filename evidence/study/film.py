"""`python -m evidence.study.film outputs/<run>`: the moving image in README.md, an episode that a
policy of `env=lunar` plays with its most likely actions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import gymnasium
import numpy as np
from PIL import Image

import a3c_exp
from evidence.study.runs import ROOT

TARGET = ROOT / "docs" / "lunar.gif"
ENVIRONMENT = "LunarLander-v3"
SIZE = (420, 280)
EVERY = 2
"""Steps of an image."""
COLOURS = 16
LAST_MILLISECONDS = 2000
"""How long the last image stays."""


def play(run: Path, seed: int) -> tuple[list[Image.Image], float]:
    """Return the images of an episode of the policy of a run, and its return."""
    policy = a3c_exp.load(run)
    env = gymnasium.make(ENVIRONMENT, render_mode="rgb_array")
    observation, _ = env.reset(seed=seed)
    images = []
    total = 0.0
    is_over = False
    for step in range(10**9):
        if is_over or step % EVERY == 0:
            pixels = np.asarray(env.render(), np.uint8)
            images.append(Image.fromarray(pixels).resize(SIZE, Image.Resampling.LANCZOS))
        if is_over:
            break

        observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
        total += float(reward)
        is_over = terminated or truncated
    env.close()
    return images, total


def write(images: Sequence[Image.Image], target: Path) -> None:
    """Write images as a GIF that plays at the environment's own speed, again and again."""
    frames_per_second = gymnasium.spec(ENVIRONMENT).make().metadata["render_fps"]
    milliseconds = round(1000 * EVERY / frames_per_second)
    palette = images[0].quantize(COLOURS)
    first, *others = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
    durations = [milliseconds] * len(others) + [LAST_MILLISECONDS]
    first.save(target, save_all=True, append_images=others, duration=durations, loop=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m evidence.study.film", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run of env=lunar")
    parser.add_argument("--seed", type=int, default=0, help="of the episode")
    parser.add_argument("--target", type=Path, default=TARGET)
    options = parser.parse_args(arguments)

    images, total = play(options.run, options.seed)
    write(images, options.target)
    size = options.target.stat().st_size
    print(f"{options.target}: return {total:.1f}, {len(images)} images, {size:,} bytes")


if __name__ == "__main__":
    main()
