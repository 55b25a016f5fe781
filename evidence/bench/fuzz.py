"""`python -m evidence.bench.fuzz`: wrong and damaged input at random, and a table of what became of
it.

Overrides are drawn over all groups, options and settings. Files of a finished run are damaged: bits
are flipped, ends are cut off, values are replaced by others of another type. Each case must end as
a run or in one clear line: never with a traceback, never without an end, and never by running code
that the input names. The same seed draws the same cases.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

import a3c_exp
from a3c_exp import evaluate
from a3c_exp.__main__ import main as train_command
from a3c_exp.cli.hydra_compose import composed, to_container
from a3c_exp.cli.hydra_session import hydra_session
from a3c_exp.cli.startup import conf_folder
from a3c_exp.common.settings import flatten
from a3c_exp.config.builder import load_experiment
from a3c_exp.errors import ConfigError, RunError, printable
from a3c_exp.report.report import Report
from a3c_exp.report.runs import find_runs
from a3c_exp.run import markdown
from evidence.bench import damage

Case = Callable[[random.Random, Path], str]
"""Draws one case and tries it in an empty folder. Returns what became of it; raises what the
program does."""

SECONDS = 30
"""After so many a case counts as one without an end."""
MEMORY = 12 * 2**30
"""Bytes of address space. A case that would fill the machine's memory fails instead."""
FAULTS = ("traceback", "no end", "code ran", "unclear line")

CANARY = "canary"
"""The file that code named by an input would make."""


class NoEndError(BaseException):
    """Raised by the alarm in a case that takes too long. No handler of the program catches it."""


# -- overrides
# --------------------------------------------------------------------------------------------------

GROUPS = (
    "env",
    "network",
    "returns",
    "critic_returns",
    "algorithm",
    "optimizer",
    "schedule",
    "backend",
    "experiment",
)
ENVIRONMENTS = (
    "cartpole",
    "acrobot",
    "pendulum",
    "mountaincar_continuous",
    "recall",
    "cartpole_memory",
)
"""Those that start in milliseconds, for runs."""

_NUMBERS = (
    "0 1 -1 2 3 7 16 64 1000 65535 65536 65537 4294967296 1e6 2e9 1e18 0.5 1e-300 "
    "1e308 1e309 -0.0 nan inf"
)
NUMBERS = [*_NUMBERS.split(), str(2**63 - 1), str(2**63), str(-(2**63) - 1), "9" * 400, "9" * 5000]
_WORDS = (
    "null true false '' auto episode all best [] {} [1,2] [[8,4,2]] [1,[2,[3]]] {1:2} "
    "{a:1} {a:{b:{c:1}}} ~ + ="
)
_SYNTAX = (
    "1,2 range(0,3) range(0,1e12) choice(1,2) glob(*) ${seed} ${nowhere} "
    "${oc.env:HOME} ${ a'b a=b ../../x"
)
_CODE = "{_target_:os.system} {_target_:a3c_exp.errors.ConfigError} os.system a3c_exp.returns.GAE"
OTHERS = [*_WORDS.split(), *_SYNTAX.split(), *_CODE.split(), damage.CODE, "x" * 5000]
OTHERS += ["[" * 20 + "]" * 20, "[" * 150 + "]" * 150, "{a:" * 150 + "1" + "}" * 150]
OTHERS += ["'\x1b[31mred'", "\u202eback", "a b", '"', "\\", "\u00e9\u4e2d"]


def option_names(hydra: Any) -> dict[str, list[str]]:
    return {group: hydra.options(group) for group in GROUPS}


def setting_names() -> list[str]:
    """Return every setting that a file of conf/ has, by its dotted key."""
    keys: set[str] = set()
    for path in [conf_folder() / "config.yaml", *conf_folder().glob("*/*.yaml")]:
        text = path.read_text(encoding="utf-8")
        content = {key: value for key, value in yaml.safe_load(text).items() if key != "defaults"}
        is_whole = "@package _global_" in text or path.parent == conf_folder()
        keys.update(key for key, _ in flatten(content if is_whole else {path.parent.name: content}))

    return sorted(keys)


class Overrides:
    """Cases of overrides that are composed and checked, environment and network included; nothing
    is run."""

    def __init__(self, hydra: Any) -> None:
        self._hydra = hydra
        self._options = option_names(hydra)
        self._keys = setting_names()

    def _one(self, rng: random.Random) -> str:
        mark = rng.choices(("", "+", "++", "~"), (40, 1, 1, 1))[0]
        value = rng.choice(NUMBERS if rng.random() < 0.6 else OTHERS)

        if rng.random() < 0.3:
            group = rng.choice(GROUPS)
            return (
                f"{mark}{group}={rng.choice(self._options[group]) if rng.random() < 0.8 else value}"
            )

        key = rng.choice(self._keys)
        if rng.random() < 0.1:
            group = key.partition(".")[0]
            key = rng.choice(
                (group, f"{key}.x", key[:-1], key.upper(), f"{key}[0]", f"{key}@y", "hydra")
            )

        return f"{mark}{key}={value}"

    def __call__(self, rng: random.Random, folder: Path) -> str:
        overrides = [self._one(rng) for _ in range(rng.randint(1, 4))]
        folder.joinpath("case").write_text(repr(overrides))
        load_experiment(to_container(composed(self._hydra, overrides).node))
        return "accepted"


SETTINGS = (
    "workers=1|2|3 envs_per_worker=1|2|5 rollout_length=1|5|32|episode gamma=0|0.9|1 "
    "update=async|sync lock=true|false "
    "optimizer_state=shared|per_worker epsilon=0|0.3|1 eval.every=null|50 "
    "checkpoint.every=null|1|64 "
    "seed=0|4611686018427 "
    "env.normalize_observations=true|false env.normalize_rewards=true|false|centered "
    "env.reward_clip=null|1|1e-9 "
    "env.reward_scale=1|1e-30|1e30 env.max_episode_steps=null|1|7 "
    "optimizer.learning_rate=1e-3|1e-30|1e30 "
    "stop.max_episodes=null|1 stop.max_seconds=null|1e308 stop.window=1|100 "
    "record_episodes=0|1|1000 "
    "checkpoint.keep=both|none|best|latest network.distribution=gaussian|squashed_gaussian|beta"
)
"""Settings of whole runs, each with its choices."""


class Runs:
    """Cases of whole runs of 200 steps on the serial backend, with overrides that fit one another
    most of the time."""

    def __init__(self, hydra: Any) -> None:
        self._options = option_names(hydra)

    def _overrides(self, rng: random.Random) -> list[str]:
        choices = [
            f"env={rng.choice(ENVIRONMENTS)}",
            "backend=serial",
            "total_steps=200",
            "eval.episodes=1",
        ]
        choices += [
            f"{group}={rng.choice(self._options[group])}"
            for group in ("returns", "optimizer", "schedule")
        ]
        choices.append(
            rng.choice(("network=mlp", "network=lstm", "network=mlp network.hidden_sizes=[]"))
        )
        choices.append(rng.choice(("algorithm=a3c", "algorithm=ppo algorithm.minibatch_size=null")))

        for setting in rng.sample(SETTINGS.split(), rng.randint(2, 8)):
            key, _, values = setting.partition("=")
            choices.append(f"{key}={rng.choice(values.split('|'))}")

        return " ".join(choices).split()

    def __call__(self, rng: random.Random, folder: Path) -> str:
        overrides = self._overrides(rng)
        folder.joinpath("case").write_text(repr(overrides))

        try:
            a3c_exp.train(overrides, folder / "run")
        except RunError as error:
            if "Traceback" in str(error):
                raise
            return "failed in a line"

        return "ran"


# -- files of a run
# --------------------------------------------------------------------------------------------------


def use_policy(folder: Path) -> str:
    """Evaluate the run's policy."""
    return _called(evaluate.main, [str(folder), "episodes=1"])


def resume(folder: Path) -> str:
    """Go on with the run, for a few steps more than it has."""
    return _called(train_command, [f"resume={folder}", "total_steps=300"])


def report(folder: Path) -> str:
    """Report on the run beside a whole one, without the pictures, which take most of a second."""
    runs, left_out = find_runs([folder.parent])
    printable(Report(runs, left_out).text())
    outcomes = {ended(printable(reason)) for reason in left_out.values()}
    return (
        "unclear line" if "unclear line" in outcomes else "left out by name" if outcomes else "ran"
    )


FILES: dict[
    str, tuple[Callable[[random.Random, bytes], bytes], tuple[Callable[[Path], str], ...]]
] = {
    "config.yaml": (damage.yaml_file, (use_policy, report, resume)),
    "summary.json": (damage.json_file, (report,)),
    "metrics.csv": (damage.table, (report, resume)),
    "episodes.csv": (damage.table, (resume,)),
    "checkpoints/latest.ckpt": (damage.checkpoint, (use_policy, resume)),
    "events.out.tfevents.*": (damage.any_bytes, (resume,)),
}
"""Files of a run: how each is damaged, and what is then tried."""


class DamagedFile:
    """Cases of one file of a finished run, `whole`, that is damaged."""

    def __init__(self, whole: Path, name: str) -> None:
        self._whole = whole
        self._name = name
        self._damage, self._uses = FILES[name]

    def __call__(self, rng: random.Random, folder: Path) -> str:
        for name in ("damaged", "whole"):
            shutil.copytree(self._whole, folder / name)
        path = next((folder / "damaged").glob(self._name))
        path.write_bytes(self._damage(rng, path.read_bytes()))
        shutil.copy(path, folder / "case")
        return rng.choice(self._uses)(folder / "damaged")


def finished_run(folder: Path) -> Path:
    """Make a small run, with episodes and without a best checkpoint."""
    settings = (
        "env=cartpole backend=serial workers=1 envs_per_worker=2 rollout_length=8 total_steps=256"
    )
    a3c_exp.train([*settings.split(), "eval.every=null", "network.hidden_sizes=[8]"], folder)
    return folder


def _called(command: Callable[[Sequence[str]], int], arguments: list[str]) -> str:
    """Return what became of a command."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = command(arguments)
    return "ran" if code == 0 else ended(errors.getvalue())


def ended(text: str) -> str:
    """Return that a command has ended in one clear line; "unclear line" for any other text."""
    lines = text.strip("\n").split("\n")
    return (
        "one line"
        if len(lines) == 1 and lines[0].isprintable() and "Traceback" not in text
        else "unclear line"
    )


# -- the cases
# --------------------------------------------------------------------------------------------------


def try_case(case: Case, rng: random.Random, folder: Path) -> str:
    """Return what became of a case: see FAULTS; anything else is good."""
    here = Path.cwd()
    os.chdir(folder)
    before = signal.signal(signal.SIGALRM, _raise_no_end)
    signal.alarm(SECONDS)

    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            outcome = case(rng, folder)
    except ConfigError as error:
        outcome = ended(printable(" ".join(str(error).split("\n"))))
    except NoEndError:
        outcome = "no end"
    except Exception:
        (folder / "traceback").write_text(traceback.format_exc())
        outcome = "traceback"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        os.chdir(here)

    return "code ran" if (folder / CANARY).exists() else outcome


def _raise_no_end(signum: int, frame: FrameType | None) -> None:
    raise NoEndError


def try_all(kind: str, case: Case, count: int, seed: int, keep: Path) -> Counter[str]:
    """Try so many cases of a kind. Each fault is kept in a folder of its own below `keep`."""
    outcomes: Counter[str] = Counter()
    for number in range(count):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            outcome = try_case(case, random.Random(f"{seed}/{kind}/{number}"), folder)
            if outcome in FAULTS:
                target = keep / f"{kind.replace('/', '_')}_{number}"
                shutil.copytree(folder, target, symlinks=True, dirs_exist_ok=True)
                print(f"{kind} {number}: {outcome}: {target}", file=sys.stderr, flush=True)

        outcomes[outcome] += 1

    return outcomes


@contextlib.contextmanager
def all_cases() -> Iterator[dict[str, Case]]:
    """Give the cases of each kind, while Hydra is open."""
    with hydra_session() as hydra, tempfile.TemporaryDirectory() as temporary:
        with contextlib.redirect_stderr(io.StringIO()):
            run = finished_run(Path(temporary) / "run")
        damaged = {name: DamagedFile(run, name) for name in FILES}
        yield {"overrides": Overrides(hydra), "runs of 200 steps": Runs(hydra), **damaged}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 1 if a case has ended badly."""
    parser = argparse.ArgumentParser(
        prog="python -m evidence.bench.fuzz", description="Wrong and damaged input at random."
    )
    parser.add_argument("--seed", type=int, default=0, help="of the cases (default 0)")
    parser.add_argument(
        "--overrides", type=int, default=10_000, help="cases of overrides (default 10000)"
    )
    parser.add_argument("--runs", type=int, default=200, help="cases of whole runs (default 200)")
    parser.add_argument(
        "--files", type=int, default=500, help="cases of each file of a run (default 500)"
    )
    parser.add_argument(
        "--keep", type=Path, default=Path("outputs/fuzz"), help="folder for cases that end badly"
    )
    flags = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    counts = {"overrides": flags.overrides, "runs of 200 steps": flags.runs}
    print(markdown.table(("kind", "times tried", "what happened")), flush=True)

    bad = 0
    with all_cases() as cases:
        for kind, case in cases.items():
            outcomes = try_all(
                kind, case, counts.get(kind, flags.files), flags.seed, flags.keep.absolute()
            )
            bad += sum(outcomes[fault] for fault in FAULTS)
            became = ", ".join(
                f"{outcome} {count:,}" for outcome, count in sorted(outcomes.items())
            )
            print(markdown.row([kind, f"{outcomes.total():,}", became]), flush=True)

    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
