"""Ten messages word for word: one line with the key, the value and what is allowed. Other tests look at the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import QUICK

from a3c_exp.__main__ import main

MESSAGES = {
    "gamma=1.5": "gamma = 1.5: must be a number from 0 to 1",
    "workers=0": "workers = 0: must be a whole number from 1 to 65536",
    "returns=gea": "returns = 'gea': is no option: did you mean 'gae'? Allowed: "
    "discounted, gae, gae_095, n_step, n_step_zero, vtrace; --config-dir adds a folder of your own",
    "returns.m=3": "returns.m = 3: is no setting of GAE: Allowed: lambda_",
    "env=LunarLander-v3": "env = 'LunarLander-v3': is no option: it is env=lunar",
    "lr=1e-3": "lr = 0.001: is no setting of Experiment: here it is optimizer.learning_rate",
    "seed=0,1": "seed = '0,1': several values need -m (or quotes, if they are one text)",
    "resume=nowhere": "resume = 'nowhere': must be the folder of a run: it has no readable config.yaml",
    "update=sync optimizer_state=per_worker": "optimizer_state = 'per_worker': must be 'shared' where update=sync: "
    "a round is one step for all",
    "hydra.run.dir=run": "hydra.run.dir = '{here}/run': must be without a run: resume= goes on with the one in it",
}


@pytest.mark.parametrize("command", MESSAGES)
def test_a_message_word_for_word(command: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if command.startswith("hydra.run.dir"):
        assert main([*QUICK, "hydra.run.dir=run"]) == 0
        capfd.readouterr()
    assert main(command.split()) == 2
    assert capfd.readouterr().err == f"a3c_exp: {MESSAGES[command].format(here=here)}\n"
