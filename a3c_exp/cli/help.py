"""a3c_exp: asynchronous actor-critic experiments

Train; the run's folder is made in outputs/:
  python -m a3c_exp env=lunar workers=16
A run for each combination of values:
  python -m a3c_exp -m seed=0,1,2,3,4 returns=n_step,n_step_zero
Four runs at once; the same command again goes on:
  python -m a3c_exp sweep=outputs/<sweep> jobs=4 seed=0,1,2,3,4
Continue a run that was cut:
  python -m a3c_exp resume=latest
A new run with the settings of another, or of a file:
  python -m a3c_exp from=latest seed=1
A locked asynchronous run again, bit for bit (it had record=order):
  python -m a3c_exp replay=latest
Play with the trained policy:
  python -m a3c_exp.evaluate latest video=true
Tables and learning curves of many runs:
  python -m a3c_exp.report outputs/<sweep>
Write the policy as an ONNX file:
  python -m a3c_exp.export latest
Times of this machine, to simulate any number of workers:
  python -m a3c_exp.measure env=lunar workers=64
Curves:
  tensorboard --logdir outputs

Choices (group=option; the files are in
{conf}):
{groups}

A preset, experiment=NAME, has the settings of the source in its file.
NAME_solved has our own settings, which solve the task.

Settings inside a choice are set with a dot:
  returns.n=5 optimizer.learning_rate=1e-3 network.hidden_sizes=[32]

Settings of the whole run, with their defaults (some environments set theirs):
{settings}

{words}
"""

# The text above is what `python -m a3c_exp --help` prints, with what it reads from disk in the
# places in braces:
# importing Hydra takes half a second.

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill, shorten

from a3c_exp.cli.startup import conf_folder
from a3c_exp.exit_codes import ExitCode

EXISTING = ("refuse", "resume", "restart")
NUMBERS = ("jobs", "search")
WORDS = {
    "sweep": (
        "the folder of a sweep: finished runs in it stay, runs that were cut go on, "
        "the others begin"
    ),
    "jobs": "a whole number from 1 to 99999: runs of a sweep at once",
    "search": (
        "a whole number from 1 to 99999: trials, whose settings are chosen by the "
        "scores of earlier ones"
    ),
    "objective": "best, last or a curve: the score in a search",
    "existing": f"one of {', '.join(EXISTING)}: what becomes of runs that are there already",
    "resume": "one run's folder: it goes on",
    "from": "one run's folder: a new run takes its settings",
    "replay": "the folder of a run with record=order: a new run follows its order, bit for bit",
}
"""The words, what each may be, and what it does."""
FLAGS = {"--help", "-h"}
WIDTH = 79
COLUMN = 26
"""Columns of the whole text, and before an explanation."""
OTHERS = {
    "--cfg job": "print what a command is composed to, or a sweep's runs; run nothing",
    "-m": "run each combination of values that are given with commas",
    "--config-dir": "a folder of your own options, beside those above",
    "--hydra-help": "the other flags, and Hydra's own choices (docs/hydra.md)",
    "hydra.run.dir=": "the folder of the run",
}


def _explained(word: str, text: str, column: int = COLUMN) -> str:
    """A word and its explanation, which is wrapped beside it."""
    return (
        fill(
            text, WIDTH, initial_indent=word.ljust(column - 1) + " ", subsequent_indent=" " * column
        )
        or word
    )


def _first_sentence(path: Path) -> str:
    """The first sentence of the comment at the head of an option's file, cut to two lines."""
    comments = (line.partition("#")[2].strip() for line in path.read_text().splitlines())
    texts = [text for text in comments if text and not text.startswith("@package")]
    sentence, *_ = re.split(r"(?<!et al)[.;] |$", " ".join(texts), maxsplit=1)
    return shorten(sentence.rstrip("."), 2 * (WIDTH - COLUMN) - 10, placeholder=" ...")


def print_help(arguments: Sequence[str]) -> int:
    """Print the options of each group and the settings of conf/config.yaml."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument("--config-dir", "-cd")
    config_dir = parser.parse_known_args(arguments)[0].config_dir
    options = defaultdict[str, dict[str, str]](dict)
    for folder in (conf_folder(), *([] if config_dir is None else [Path(config_dir)])):
        for path in sorted(folder.glob("*/*.yaml")):
            options[path.parent.name][path.stem] = _first_sentence(path)

    groups = "\n".join(
        "\n".join(
            [f"  {group}:", *(_explained(f"    {name}", text) for name, text in names.items())]
        )
        for group, names in sorted(options.items())
    )
    text = (conf_folder() / "config.yaml").read_text()
    lines = text[text.index("\n\n") : text.index("\nhydra:")].strip().splitlines()
    settings = "\n".join(
        _explained(f"  {setting.rstrip()}", comment.strip())
        for setting, _, comment in (line.partition("#") for line in lines)
    )

    every = OTHERS | {f"{word}=": text for word, text in WORDS.items()}
    words = "\n".join(_explained(f"  {word}", text) for word, text in every.items())
    print((__doc__ or "").format(conf=conf_folder(), groups=groups, settings=settings, words=words))
    return ExitCode.DONE
