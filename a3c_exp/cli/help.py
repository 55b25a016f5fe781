"""`python -m a3c_exp --help`. It reads the options from disk: importing Hydra takes half a second."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent

from a3c_exp.cli.arguments import read_arguments
from a3c_exp.cli.startup import conf_folder

FLAGS = {"--help", "-h"}
HELP = """\
a3c_exp: asynchronous actor-critic experiments

  python -m a3c_exp env=lunar workers=16                          train; the run's folder is made in outputs/
  python -m a3c_exp -m returns=n_step,n_step_zero seed=0,1,2      a run for each combination
  python -m a3c_exp sweep=outputs/<sweep> jobs=4 seed=0,1,2       4 runs at once; the same command again goes on
  python -m a3c_exp resume=outputs/<run> total_steps=2e6          continue from the last checkpoint
  python -m a3c_exp from=outputs/<run> seed=1                     a new run with the settings of another
  python -m a3c_exp.evaluate outputs/<run> video=true             play with the trained policy
  python -m a3c_exp.report outputs/<sweep>                        tables and learning curves of many runs
  python -m a3c_exp.export outputs/<run>                          write the policy as an ONNX file
  tensorboard --logdir outputs                                    curves

Choices (group=option; the files are in {conf}):
{groups}

Settings inside a choice are set with a dot: returns.n=5 optimizer.learning_rate=1e-3 network.hidden_sizes=[32]

Settings of the whole run, with their defaults (some environments set their own):
{settings}

  --cfg job   print what a command is composed to, and run nothing
  -m          run each combination of values that are given with commas
  sweep=<folder>   the same, in this folder: finished runs stay, runs that were cut go on, the others begin
  jobs=<n>    so many runs of a sweep at once
  search=<n>  so many trials, whose settings are chosen by the scores of earlier ones; objective=best|last|<curve>
  existing=refuse|resume|restart   what becomes of runs that are there already
  hydra.run.dir=<folder>   write the run there
"""


def command(arguments: Sequence[str]) -> int:
    """Print the options of each group and the settings of conf/config.yaml. Raises ConfigError."""
    config_dir = read_arguments([text for text in arguments if text not in FLAGS]).config_dir
    options = defaultdict[str, set[str]](set)
    for folder in (conf_folder(), *([] if config_dir is None else [Path(config_dir)])):
        for path in folder.glob("*/*.yaml"):
            options[path.parent.name].add(path.stem)
    groups = "\n".join(f"  {group:15} {', '.join(sorted(names))}" for group, names in sorted(options.items()))
    text = (conf_folder() / "config.yaml").read_text()
    settings = text[text.index("\n\n") : text.index("\nhydra:")].strip()
    print(HELP.format(conf=conf_folder(), groups=groups, settings=indent(settings, "  ")))
    return 0
