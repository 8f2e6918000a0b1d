"""The tree keeps what the documents say: what they name is there, and imports point one way."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: What a file that decides something must not import: loops, sockets, processes, gRPC.
IMPURE = {
    *("trio", "zmq", "purerpc", "hypercorn", "starlette", "anyio"),
    *("socket", "select", "threading", "subprocess", "asyncio"),
}

#: From what starts everything down to what depends on nothing.  A module imports from its own
#: level, from one below, or a PURE file.
LEVELS = (
    ("replay.__main__", "replay.cli"),
    ("replay.runtime",),
    ("replay.mirror",),
    ("replay.worker", "replay.taps", "replay.player", "replay.consumer", "replay.web"),
    ("replay.engines", "replay.plane", "replay.rpc", "replay.journal", "replay.metrics"),
    ("replay",),
)

PATHS = sorted((ROOT / "replay").rglob("*.py"))


def dotted(path: Path) -> str:
    """Return the name under which a file is imported."""
    relative = path.relative_to(ROOT).with_suffix("")
    return ".".join(relative.parts).removesuffix(".__init__")


MODULES = {dotted(path): path for path in PATHS if "_proto" not in path.parts}


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_pure(path: Path) -> bool:
    """Tell whether the first lines of a file call it PURE."""
    return re.search(r"\bPURE\b", ast.get_docstring(tree(path)) or "") is not None


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports, anywhere in it; of our own the most exact name."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            exact = {f"{node.module}.{alias.name}" for alias in node.names} & set(MODULES)
            names |= exact or {node.module}
    return names


def level(name: str) -> int:
    """Return how far down a module is; the longest prefix decides."""
    prefixes = [
        (len(prefix), number)
        for number, prefixes in enumerate(LEVELS)
        for prefix in prefixes
        if name == prefix or name.startswith(f"{prefix}.")
    ]
    return max(prefixes)[1]


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
)
def test_a_path_that_a_document_names_is_there(document: str | Path) -> None:
    text = (ROOT / document).read_text()
    named = re.findall(r"`((?:replay|tests|tools|examples|proto|docs|benchmarks)/[\w./]*)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_dependency_has_its_sentence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    required = [*project["dependencies"], *(each for extra in extras for each in extra)]
    text = (ROOT / "docs" / "dependencies.md").read_text().lower()
    names = {re.split(r"[\[<>=]", requirement)[0].lower() for requirement in required}
    rows = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| "))
    assert {name for name in names if not re.search(rf"\b{re.escape(name)}\b", rows)} == set()


def test_the_architecture_names_every_folder_that_has_code() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    folders = {
        f"{path.parent.relative_to(ROOT)}/"
        for path in MODULES.values()
        if path.name != "__init__.py" and path.parent.parent == ROOT / "replay"
    }
    assert {folder for folder in folders if f"`{folder}`" not in text} == set()


@pytest.mark.parametrize("name", [name for name, path in MODULES.items() if is_pure(path)])
def test_a_pure_file_imports_no_loop_and_no_socket(name: str) -> None:
    assert {imported.split(".")[0] for imported in imports(MODULES[name])} & IMPURE == set()


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_one_way(name: str) -> None:
    upward = {
        imported
        for imported in imports(MODULES[name])
        if imported in MODULES and level(imported) < level(name) and not is_pure(MODULES[imported])
    }
    assert upward == set()
