"""Write the policy of a run as an ONNX file, which other programs and languages can run without this package.

python -m a3c_exp.export outputs/<run>
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from a3c_exp.cli.startup import folder_command
from a3c_exp.common.reading import expanded, parse_key_values
from a3c_exp.config.schema import build
from a3c_exp.errors import ConfigError, named, one_line, printable, require

FILE = "policy.onnx"
LIBRARIES = ("onnx", "onnxruntime", "onnxscript")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write the policy of a run as an ONNX file, and check it.

    checkpoint: `best` or `latest` (default: the best, or the latest of a run without evaluations).
    greedy: the file's actions are the most likely ones (true, the default), or made from noise, an input (false).
    file: the file to write (default: policy.onnx in the run's folder).
    steps: number of observations that the file is checked on, of episodes that the policy plays (default 2000).
    seed: of these episodes (default 0).
    plugins: as in training (default []).
    trust: as of `python -m a3c_exp.evaluate` (default []).
    """

    checkpoint: Literal["best", "latest"] | None = None
    greedy: bool = True
    file: str | None = None
    steps: int = 2000
    seed: int = 0
    plugins: tuple[str, ...] = ()
    trust: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.steps >= 1, "steps", self.steps, "a whole number >= 1")
        require(self.seed >= 0, "seed", self.seed, "a whole number >= 0")

    def path(self, folder: Path) -> Path:
        """The file to write. Raises ConfigError if it cannot be one."""
        path = folder / FILE if self.file is None else expanded(self.file)
        require(path.parent.is_dir(), "file", str(path), "in a folder that exists")
        require(not path.is_dir(), "file", str(path), "a file, not a folder")
        missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
        if missing:
            problem = f"needs the packages {', '.join(missing)}: pip install 'a3c-exp[onnx]'"
            raise ConfigError("file", str(path), problem)
        return path


def main(arguments: Sequence[str]) -> int:
    return folder_command("export", Options, _command, arguments)


def _command(folder: Path, settings: Sequence[str]) -> int:
    options = build(parse_key_values(settings), Options)
    # Only now: importing torch takes seconds, which --help and a wrong option need not wait for.
    from a3c_exp.cli.evaluate import load_run
    from a3c_exp.config.saved import read_config
    from a3c_exp.core.cpu import one_thread
    from a3c_exp.export import onnx_file
    from a3c_exp.run.run_folder import check_links

    if options.file is None:
        with named("file"):
            check_links(folder, FILE)
    with named("run"):
        config = read_config(folder, options.plugins)
    path = options.path(folder)
    with one_thread():
        loaded = load_run(folder, options.checkpoint, options.plugins, options.trust)
        about = onnx_file.describe(folder, config, loaded.checkpoint, loaded.steps)
        try:
            report = onnx_file.export(
                path, loaded.policy, loaded.experiment.env, about, options.greedy, options.steps, options.seed
            )
        except onnx_file.CheckError as error:
            print(printable(f"a3c_exp: file = {str(path)!r}: {error}"), file=sys.stderr)
            return 1
        except OSError as error:
            print(f"a3c_exp: file = {str(path)!r}: cannot be written: {one_line(error)}", file=sys.stderr)
            return 1
    print(printable(f"{path}: {report}"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
