"""Write the policy of a run as an ONNX file, which other programs and languages can run without
this package, or its weights as a safetensors file.

python -m a3c_exp.export latest [format=safetensors]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from a3c_exp.cli.startup import folder_command
from a3c_exp.common.ranges import Checked, Count
from a3c_exp.common.reading import expanded, parse_key_values
from a3c_exp.config.schema import build
from a3c_exp.errors import ConfigError, named, printable, require_package
from a3c_exp.exit_codes import ExitCode, leave

TORCH_SUFFIXES = (".pt", ".pth")
OTHER_SUFFIX = {"onnx": ".safetensors", "safetensors": ".onnx"}
"""The suffix of the other format's files."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Checked):
    """Write the policy of a run as an ONNX file, and check it. Its actions are the most likely
    ones.

    format: `onnx` (default), or `safetensors`: the weights by torch's names, and the scales of
        observations.
    checkpoint: `best`, `latest` or the steps of a numbered one (default: the best, or the latest of
        a run without evaluations).
    file: the file to write (default: policy.onnx or policy.safetensors in the run's folder).
    steps: number of observations that an ONNX file is checked on, of episodes that the policy plays
        (default 2000).
    plugins: as in training (default []).
    """

    format: Literal["onnx", "safetensors"] = "onnx"
    checkpoint: Literal["best", "latest"] | int | None = None
    file: str | None = None
    steps: Count = 2000
    plugins: tuple[str, ...] = ()


def main(arguments: Sequence[str]) -> int:
    return folder_command("export", ExportOptions, _export, arguments)


def _export(folder: Path, settings: Sequence[str]) -> int:
    export_run(folder, build(parse_key_values(settings), ExportOptions))
    return ExitCode.DONE


def export_run(folder: Path, options: ExportOptions) -> Path:
    """Write the policy of the run in `folder`, say so, and return the path.

    Raises ConfigError, and RunError if the file differs from the policy.
    """
    if not folder.is_dir():
        raise ConfigError("run", str(folder), "must be the folder of a run")

    path = folder / f"policy.{options.format}" if options.file is None else expanded(options.file)
    if path.suffix in TORCH_SUFFIXES:
        advice = "network.state_dict() of a3c_exp.load(<run>) is for torch.save"
        raise ConfigError("file", str(path), f"must end in .{options.format}: {advice}")

    if path.suffix == OTHER_SUFFIX[options.format]:
        problem = f"must be {path.suffix[1:]}, for file={options.file}"
        raise ConfigError("format", options.format, problem)

    if not path.parent.is_dir():
        raise ConfigError("file", str(path), "must be in a folder that exists")

    if options.format == "onnx":
        key, value = ("format", "onnx") if options.file is None else ("file", options.file)
        require_package(key, value, "onnx", "onnx", "onnxruntime", "onnxscript")
    # Only now: importing torch takes seconds, which --help and a wrong option need not wait for.
    from a3c_exp.core.cpu import one_thread
    from a3c_exp.evaluate import load_run
    from a3c_exp.export.policy_file import check_replaceable, write_policy
    from a3c_exp.run.run_folder import check_names

    if options.file is None:
        with named("run"):
            check_names(folder, path.name)

    check_replaceable(path, options.format)
    with one_thread():
        loaded = load_run(folder, options.checkpoint, options.plugins)
        result = write_policy(path, options.format, folder, loaded, options.steps)

    print(printable(f"{path}: {result}"))
    return path


if __name__ == "__main__":
    sys.exit(leave(main(sys.argv[1:])))
