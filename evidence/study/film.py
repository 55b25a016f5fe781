"""`python -m evidence.study.film outputs/<run> --target docs/lunar.gif`: an episode of a run's
policy as a moving image, as in README.md."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from a3c_exp.envs import EnvBatch, Environment, Gym, close_within
from a3c_exp.evaluate import load_run
from a3c_exp.run.policy import evaluate_policy
from evidence.study.runs import ROOT

TARGET = ROOT / "docs" / "lunar.gif"
LAST_MILLISECONDS = 2000
"""How long the last image stays."""
IN_COLOR = {"screen_resolution": "RES_320X240", "screen_format": "RGB24"}
"""How Doom is drawn for a film. The policy sees it small and in gray all the same."""


def play(run: Path, options: argparse.Namespace) -> tuple[list[Image.Image], float, float]:
    """Return the images of an episode of the policy of a run, how many of them are a second, and
    the episode's return."""
    loaded = load_run(run)
    loaded.policy.seed(options.seed)
    env: Any = _in_color(loaded.experiment.eval_env).make(1, [options.seed], "rgb_array")
    images: list[Image.Image] = []

    def draw(batch: EnvBatch, step: int) -> None:
        if step % options.every == 0:
            image = Image.fromarray(np.asarray(batch.render(), np.uint8))
            size = (options.width, round(options.width * image.height / image.width))
            images.append(image.resize(size, Image.Resampling.LANCZOS))

    played = evaluate_policy(loaded.policy, env, 1, not options.sampled, on_step=draw)
    images_per_second = env.render_fps / options.every
    close_within(env)
    return images, images_per_second, float(played.returns[0])


def _in_color(env: Environment) -> Environment:
    """Return the environment as it is filmed."""
    if isinstance(env, Gym) and env.id.startswith("Vizdoom"):
        return replace(env, kwargs=env.kwargs | IN_COLOR)
    return env


def write(
    images: Sequence[Image.Image], images_per_second: float, colors: int, target: Path
) -> None:
    """Write images as a GIF that plays again and again."""
    palette = images[len(images) // 2].quantize(colors)
    first, *others = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
    durations = [round(1000 / images_per_second)] * len(others) + [LAST_MILLISECONDS]
    first.save(target, save_all=True, append_images=others, duration=durations, loop=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m evidence.study.film", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--seed", type=int, default=0, help="of the episode")
    parser.add_argument("--sampled", action="store_true", help="sample actions (default: greedy)")
    parser.add_argument("--every", type=int, default=2, help="steps of an image")
    parser.add_argument("--seconds", type=float, help="longest film (default: the whole episode)")
    parser.add_argument("--width", type=int, default=420, help="of the images, in pixels")
    parser.add_argument("--colors", type=int, default=16, help="of the palette")
    parser.add_argument("--target", type=Path, default=TARGET)
    options = parser.parse_args(arguments)

    images, images_per_second, total = play(options.run, options)
    if options.seconds is not None:
        images = images[: round(options.seconds * images_per_second)]

    write(images, images_per_second, options.colors, options.target)
    size = options.target.stat().st_size
    print(f"{options.target}: return {total:.1f}, {len(images)} images, {size:,} bytes")


if __name__ == "__main__":
    main()
