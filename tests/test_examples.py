"""Every example runs as its docstring says and prints what examples/expected says."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from mpirun import mpirun

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def command_of(path: Path) -> list[str]:
    """Return the words of the command in an example's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return next(line.split() for line in text.splitlines() if line.strip().endswith(path.name))


def test_there_are_examples_and_each_has_its_output():
    assert len(EXAMPLES) >= 8
    assert {p.stem for p in EXAMPLES} == {p.stem for p in (FOLDER / "expected").glob("*.txt")}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_prints_what_is_expected(path):
    words = command_of(path)
    if words[0] == "mpirun":
        done = mpirun(int(words[words.index("-np") + 1]), str(path))
    else:
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True,
                              timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == (FOLDER / "expected" / f"{path.stem}.txt").read_text()
