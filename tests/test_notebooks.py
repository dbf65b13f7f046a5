"""Every notebook is stripped of output, and its code cells run from top to bottom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
named = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)


def cells_of(path: Path) -> list[dict[str, Any]]:
    """Return the code cells."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_there_is_a_notebook():
    assert NOTEBOOKS


@named
def test_a_notebook_holds_no_output(path: Path):
    for cell in cells_of(path):
        assert not cell["outputs"], cell["id"]
        assert cell["execution_count"] is None, cell["id"]


@named
def test_the_code_of_a_notebook_runs(path: Path, capsys: pytest.CaptureFixture[str]):
    matplotlib = pytest.importorskip("matplotlib", reason="needs matplotlib: the plot extra")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    scope: dict[str, Any] = {"__name__": "__main__"}
    try:
        for cell in cells_of(path):
            exec(compile("".join(cell["source"]), f"{path.name}:{cell['id']}", "exec"), scope)
    finally:
        pyplot.close("all")
    assert "Error" not in capsys.readouterr().out
