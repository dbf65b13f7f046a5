"""The Python of docs/custom.md runs."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs" / "custom.md"


def test_the_programs_of_the_docs_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    names = {}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)
    assert len(blocks) == 2 and "my-ring" in capsys.readouterr().out
    assert str(names["mine"]) == "broadcast 'fan' on 4 ranks"
