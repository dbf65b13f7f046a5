"""Run the notebooks from top to bottom and keep their outputs: `python docs/notebooks.py`.

What a cell shows is text, HTML and pictures of a model, so the same on every machine but for the
bytes of a picture; tests/test_notebooks.py runs the same function and compares.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def executed(path: Path, timeout: int = 120) -> Any:
    """Return the notebook at `path`, run by a fresh kernel in its own folder."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def main() -> None:
    """Run the notebooks named, or all."""
    for path in [Path(p) for p in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(executed(path), path)
        print(f"{path}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
