"""Write the reference pages, the requirement map and the drawn parts of ARCHITECTURE.md from the code.

python docs/generate.py            write what has changed
python docs/generate.py --check    exit 1 and name the pages that would change
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "tools"))  # docs_build lies there: no part of the package, nothing to install


REFERENCE = DOCS / "reference"
WRITERS = {
    REFERENCE / "manifest.md": "manifest:manifest",
    REFERENCE / "tools.md": "manifest:tools",
    REFERENCE / "events.md": "log:page_of_events",
    REFERENCE / "cli.md": "commands:cli",
    REFERENCE / "exit-codes.md": "commands:exit_codes",
    REFERENCE / "faults.md": "faults:faults",
    REFERENCE / "limits.md": "kernel:limits",
    REFERENCE / "refusals.md": "kernel:refusals",
    REFERENCE / "lint.md": "weaknesses:lint",
    REFERENCE / "states.md": "kernel:states",
    REFERENCE / "python.md": "public:python",
    DOCS / "requirements.md": "requirements:requirements",
    ROOT / "ARCHITECTURE.md": "architecture:architecture",
}
"""Every generated file, and the function below ``docs_build`` that gives its text."""


def text_of(path: Path) -> str:
    """What the file should hold, from the code as it is now."""
    module, _, function = WRITERS[path].partition(":")
    return getattr(import_module(f"docs_build.{module}"), function)()


def stale() -> list[Path]:
    """Generated files that are not what the code says."""
    return [path for path in WRITERS if not path.is_file() or path.read_text(encoding="utf-8") != text_of(path)]


def main(argv: list[str]) -> int:
    if argv not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    changed = stale()
    for path in changed:
        print(f"{'stale' if argv else 'written'}: {path.relative_to(ROOT)}")
        if not argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text_of(path), encoding="utf-8")
    return 1 if argv and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
