"""Environments that change settings of the whole process: the run goes on as without them."""

from __future__ import annotations

import io
import logging
import logging.config
from pathlib import Path

from a3c_exp.run.console import run_log


def test_the_log_goes_on_where_logging_is_configured_anew(tmp_path: Path) -> None:
    loggers = logging.root.manager.loggerDict.values()
    before = [(each, each.disabled) for each in loggers if isinstance(each, logging.Logger)]
    with run_log(tmp_path / "train.log", io.StringIO()):
        logging.config.dictConfig({"version": 1})
        logging.getLogger("a3c_exp").warning("worker 1 failed")
    for logger, disabled in before:
        logger.disabled = disabled
    assert "worker 1 failed" in (tmp_path / "train.log").read_text()
