"""The licenses of all packages that are needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # bench is not installed: it belongs to the checkout

from bench import licenses

ALLOWED = ["MIT", "MPL 2.0 (MPL)", "BSD-3-Clause", "Apache-2.0 WITH LLVM-exception"]


@pytest.mark.parametrize(
    "license_name",
    [
        "MIT",
        "mit",
        "MIT AND BSD-3-Clause",
        "(MIT OR GPL-2.0-only)",
        "MPL 2.0 (MPL)",
        "Apache-2.0 WITH LLVM-exception AND MIT",
    ],
)
def test_a_license_in_the_list_is_allowed(license_name: str) -> None:
    assert licenses.is_allowed(license_name, ALLOWED)


@pytest.mark.parametrize(
    "license_name", ["GPL-2.0-only", "MIT AND GPL-2.0-only", "GPL-2.0-only AND (X11 OR MIT)", "unknown", ""]
)
def test_any_other_is_not(license_name: str) -> None:
    assert not licenses.is_allowed(license_name, ALLOWED)


def test_every_package_is_listed_with_its_license(capsys: pytest.CaptureFixture[str]) -> None:
    assert licenses.main() == 0, "a new dependency? see [tool.licenses] in pyproject.toml"
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("| numpy |")).endswith(" | yes |")
    assert any(line.startswith("| markupsafe |") for line in lines), "needed by a package that is needed"


def test_a_license_in_no_list_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = licenses.PROJECT.read_text(encoding="utf-8").replace('ale-py = "GPL', 'ale-py = "AGPL')
    monkeypatch.setattr(licenses, "PROJECT", tmp_path / "pyproject.toml")
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    pytest.importorskip("ale_py")
    assert licenses.main() == 1
    assert capsys.readouterr().err.endswith("[tool.licenses]: ale-py (GPL-2.0-only)\n")
