"""A module imports only from lower floors or its own package; three packages have one home each.

The floors are those of the design: what a module may know. Imports inside functions and for type
checking count too, but for the two public doors named below.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import rccl_py

ROOT = Path(rccl_py.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

FLOORS = [
    {"arguments", "errors", "units"},
    {"buffers", "config", "disagreement", "dtypes", "fabric", "recorder", "reduce_ops", "schedule"},
    {"algorithms", "collectives", "execute", "framing", "links", "patterns"},
    {"topology", "check", "programs", "timing"},
    {"transports", "planner"},
    {"formats"},
    {
        "comm",
        "report",
    },
    {"compat"},
    {"cli"},
]
FLOOR = {name: k for k, names in enumerate(FLOORS) for name in names}
SIDEWAYS = {
    ("units", "errors"),
    ("arguments", "errors"),
    ("programs", "check"),
    ("buffers", "dtypes"),
    ("disagreement", "recorder"),
    ("fabric", "schedule"),
    ("links", "framing"),
}
"""On one floor, who may use whom."""
DOORS = {("topology/build.py", "report"), ("planner/plan.py", "report")}
"""`_repr_html_`, which a notebook calls: text of a higher floor, loaded when asked for."""
OUTSIDE = {"matplotlib": {"report/draw.py", "report/draw_errors.py"}, "networkx": {"topology"},
           "mpi4py": {"transports/mpi.py", "cli"},
           "yaml": {"topology"}, "msgspec": {"topology", "report/files.py", "cli"}}  # fmt: skip
"""Who may import what does not come with Python or NumPy."""


def part_of(path: Path) -> str:
    """Return the name, below rccl_py, of the package or module a file belongs to."""
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> list[tuple[str, str]]:
    """Return (line, what): absolute names; ``rccl_py.x`` for relative imports."""
    package = ["rccl_py", *path.relative_to(ROOT).parts[:-1]]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            names = (
                [f"{whole}.{alias.name}" for alias in node.names] if not node.module else [whole]
            )
            found += [(node.lineno, name) for name in names]
    return found


by_module = pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))


def test_every_module_has_a_floor():
    assert {part_of(p) for p in MODULES} - {"__init__"} <= set(FLOOR)


@by_module
def test_a_module_imports_only_from_lower_floors_or_its_own_package(path):
    own = part_of(path)
    if own == "__init__":
        return  # the package's front shows names of every floor
    for line, name in imports(path):
        top, _, rest = name.partition(".")
        if top != "rccl_py":
            continue
        other = rest.split(".")[0]
        if other not in FLOOR:  # rccl_py itself, for its version
            assert own in ("cli", "compat"), f"{path}:{line} imports {name}"
            continue
        if (str(path.relative_to(ROOT)), other) in DOORS:
            continue
        allowed = other == own or FLOOR[other] < FLOOR[own] or (own, other) in SIDEWAYS
        assert allowed, f"{path}:{line}: {own} imports {other}"


@by_module
def test_a_package_from_outside_is_imported_where_it_belongs_only(path):
    where = str(path.relative_to(ROOT))
    for line, name in imports(path):
        homes = OUTSIDE.get(name.split(".")[0])
        assert homes is None or any(where == h or where.startswith(f"{h}/") for h in homes), (
            f"{path}:{line} imports {name}"
        )


@pytest.mark.parametrize("part, never", [
    ("algorithms", {"fabric", "timing", "topology", "planner", "links", "transports"}),
    ("timing", {"algorithms", "transports", "topology", "planner", "comm"}),
    ("topology", {"algorithms", "schedule", "timing", "planner", "collectives"}),
    ("transports", {"fabric", "timing", "planner", "topology", "algorithms"}),
    ("schedule", {"fabric", "links", "units"}),
])  # fmt: skip
def test_what_a_part_must_not_know_it_does_not_import(part, never):
    for path in MODULES:
        if part_of(path) == part:
            known = {name.split(".")[1] for _, name in imports(path) if name.startswith("rccl_py.")}
            assert not known & never, f"{path} imports {sorted(known & never)}"


@by_module
def test_only_the_commands_print_exit_or_read_the_environment(path):
    if part_of(path) == "cli" or path.parts[-2:] == ("compat", "nccl.py"):
        return  # nccl4py's programs name their machine in the environment
    for node in ast.walk(ast.parse(path.read_text())):
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        assert name not in ("print", "exit", "sys.exit", "input", "os.getenv"), (
            f"{path}:{node.lineno}"
        )
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "os.environ":
            # A default for Open MPI's own start, set before mpi4py is loaded.
            assert path.name == "mpi.py", f"{path}:{node.lineno}"


@by_module
def test_nothing_is_imported_by_star(path):
    assert not any(alias.name == "*" for node in ast.walk(ast.parse(path.read_text()))
                   if isinstance(node, ast.ImportFrom) for alias in node.names)  # fmt: skip


@by_module
def test_every_name_a_module_offers_exists(path):
    tree = ast.parse(path.read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    offered = next((ast.literal_eval(node.value) for node in assigned
                    if ast.unparse(node.targets[0]) == "__all__"), [])  # fmt: skip
    module = rccl_py
    if path.parent != ROOT or path.stem != "__init__":
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-2:] == ("transports", "mpi"):
            pytest.importorskip("mpi4py", reason="mpi4py is not installed")
        name = ".".join(["rccl_py", *(p for p in parts if p != "__init__")])
        module = __import__(name, fromlist=["x"])
    assert [name for name in offered if not hasattr(module, name)] == []
