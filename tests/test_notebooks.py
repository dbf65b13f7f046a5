"""Every notebook runs from top to bottom, within a minute, and its committed outputs are those."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LIMIT = 60
"""Seconds a cell may take; a notebook takes about five."""


def outputs(notebook: Any) -> dict[str, list[tuple[str, str]]]:
    """Return what each code cell shows, by cell id: (kind, text), pictures by kind alone."""
    shown: dict[str, list[tuple[str, str]]] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        found = shown.setdefault(cell["id"], [])
        streams = ""
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                streams += "".join(output["text"])
                continue
            for kind, text in sorted(output.get("data", {"error": output.get("evalue")}).items()):
                same = kind.startswith("text/") and "image/png" not in output.get("data", {})
                found.append((kind, "".join(text) if same else ""))
        if streams:
            found.append(("stream", streams))
    return shown


def test_there_are_notebooks():
    assert [path.stem for path in NOTEBOOKS] == [
        "algorithm_choice",
        "first_look",
        "topology_exploration",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_and_shows_what_is_committed(path: Path):
    for name in ("nbclient", "matplotlib"):
        pytest.importorskip(name, reason=f"needs {name}: the test and plot extras")
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    committed = json.loads(path.read_text(encoding="utf-8"))
    # An old output: run `python docs/notebooks.py` and commit what it writes.
    assert outputs(module.executed(path, LIMIT)) == outputs(committed)


def test_a_topology_and_a_plan_show_themselves():
    committed = json.loads((ROOT / "notebooks/topology_exploration.ipynb").read_text())
    shown = outputs(committed)
    topology, plan = (dict(shown[cell])["text/html"] for cell in ("mi300", "plans"))
    assert "mi300x-8" in topology and "<svg" in topology
    assert "allreduce" in plan and "direct-twoshot" in plan
