"""The command line: runs, sweeps, resumed runs, and flags that print.

A command that cannot run in full writes nothing, and its error is one line.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from a3c_exp import __version__
from a3c_exp.cli.arguments import read_arguments
from a3c_exp.cli.execute import Plan, execute, prestart
from a3c_exp.cli.existing import CONTINUE, how_ended
from a3c_exp.cli.hydra_compose import compose_node, hydra_session, setting, to_container
from a3c_exp.cli.resume import saved_plan
from a3c_exp.cli.startup import LABEL, import_training
from a3c_exp.common.reading import expanded
from a3c_exp.errors import printable, require, say
from a3c_exp.run.run_folder import config_text


def command(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code. Raises ConfigError, and RunError if a run of a
    launcher failed."""
    if "--version" in arguments:
        print(f"a3c_exp {__version__}")
        return 0
    line = read_arguments(arguments)
    if line.is_sweep:
        import_training()  # every run of it is checked here
        from a3c_exp.cli.sweep import run_sweep

        with hydra_session(line.config_dir) as hydra:
            return run_sweep(hydra, line)
    if line.saved is not None:
        plan = saved_plan(*line.saved, line)
    else:
        with hydra_session(line.config_dir) as hydra:
            node = compose_node(hydra, line.overrides)
            config = to_container(node)
            folder = setting(node, "hydra.run.dir")
        require(bool(folder), "hydra.run.dir", folder, "the name of a folder; . for this one")
        plan = Plan(
            config=config,
            folder=None if folder == "auto" else folder,
            existing=line.existing or "refuse",
            key="hydra.run.dir",
            overrides=[
                text
                for text in line.overrides
                if not text.lstrip("+").startswith(("hydra.", "hydra/"))
            ],
            label=os.environ.pop(LABEL, None),  # only a sweep gives one
        )
    if line.cfg is not None:
        from a3c_exp.config.builder import build_experiment

        build_experiment(plan.config)
        print(printable(config_text(plan.config)), end="")
        return 0
    prestart(plan.config.get("backend"))  # the fork server imports torch while this process does
    import_training()
    finished = execute(plan)
    if finished is not None:
        return finished.exit_code
    more = (
        ": a larger total_steps, or null for its stop rule, goes on"
        if plan.existing == CONTINUE
        else " before"
    )
    assert plan.folder is not None
    ending = how_ended(expanded(plan.folder))
    say(f"{plan.folder}: has {ending}{more}")
    return int(ending == "failed")
