"""Where the pages lie, and the generator as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def generator() -> ModuleType:
    """``docs/generate.py``, loaded once; ``docs_build`` can be imported afterwards."""
    if "docs_generate" not in sys.modules:
        spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["docs_generate"] = module
        spec.loader.exec_module(module)
    return sys.modules["docs_generate"]


def handwritten_pages() -> list[Path]:
    """Every Markdown page of the repository that nobody generates."""
    generated = set(generator().WRITERS) - {ROOT / "ARCHITECTURE.md"}
    found = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    return sorted(path for path in found if path not in generated)
