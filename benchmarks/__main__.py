"""Run one benchmark by its name, or list them: `python -m benchmarks [NAME [options]]`.

A benchmark is a module of this package with a `main(argv)` that returns the exit status.  It prints
what it measured and never fails because something was slow: only wrong answers, a missing tool and
bad usage are failures.
"""

import ast
import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def scenarios() -> dict[str, str]:
    """Return the benchmarks by name, each with the first line of its docstring.

    The files are read, not imported: one of them may need a package that is not installed.
    """
    found = {}
    for path in sorted(HERE.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        functions = {
            (node.name, *(argument.arg for argument in node.args.args))
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
        }
        if ("main", "argv") in functions and not path.name.startswith("_"):
            found[path.stem] = (ast.get_docstring(tree) or "").split("\n", 1)[0]
    return found


def main(argv: list[str]) -> int:
    """Run the benchmark that `argv[0]` names with the rest of *argv*."""
    known = scenarios()
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: python -m benchmarks NAME [options]      (NAME --help lists its options)\n")
        for name, summary in known.items():
            print(f"  {name:12} {summary}")
        return 0
    if argv[0] not in known:
        print(f"no benchmark is called {argv[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"benchmarks.{argv[0]}")
    return int(module.main(argv[1:]))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
