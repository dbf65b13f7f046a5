"""The README's Python runs and prints what it says."""

import re
from pathlib import Path

from rccl_py import load
from rccl_py.cli.plan import main

README = Path(__file__).resolve().parents[1] / "README.md"
MACHINES = README.with_name("docs") / "machines.md"


def test_the_readme_s_python_prints_what_its_comments_say(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    exec(compile(code, str(README), "exec"), {"__name__": "readme"})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("28.0 ")
    assert "allreduce of 4096 B on 8 ranks" in first
    assert second == "[2556.0, 2556.0, 2556.0]"


def test_the_plan_the_readme_shows_is_what_the_command_prints(capsys):
    block, *_ = re.findall(r"\$ rccl-plan (.*?)```", README.read_text(), re.S)
    arguments, *shown = block.strip().splitlines()
    assert main(arguments.split()) == 0
    printed = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    missing = [s for s in shown if s.strip() != "..." and " ".join(s.split()) not in printed]
    assert not missing


def test_the_machine_files_of_the_docs_load(tmp_path):
    blocks = re.findall(r"```yaml\n(.*?)```", MACHINES.read_text(), re.S)
    for block, gpus in zip(blocks, (16, 128), strict=True):
        (tmp_path / "machine.yaml").write_text(block)
        assert load(tmp_path / "machine.yaml").ngpus == gpus


def test_every_file_the_readme_links_to_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
