"""How many lines of code there are, by folder: ``make lint`` prints them.

A line counts if it has code: blank lines, comments and docstrings, those of attributes too, do not. The core is the package
without what few users import; the heart is what of it a plain lock needs, and each other folder a room.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("pynamodb_mutex/_lock", "pynamodb_mutex", "tests", "dev")
SUMS = (
    (PARTS[0], f"{PARTS[0]}, its folders: the heart", {""}),
    (PARTS[1], f"{PARTS[1]} without cli, receivers, testing: the core", {"cli", "receivers", "testing"}),
)  # fmt: skip
"""Further sums: of which part, their names, and the folders that they are without."""

_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(source: str, *, imports: bool = True) -> set[int]:
    """Return the numbers of the lines of a module that have code; without ``imports``, not of those that import."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(ast.Constant(str()), lineno=first, end_lineno=last):
                code.difference_update(range(first, last + 1))
            case ast.Import() | ast.ImportFrom() if not imports:
                code.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return code


def by_folder(part: Path, *, imports: bool = True) -> Counter[str]:
    """Return the lines of each folder of a part, with those below it; of its own modules by an empty name."""
    lines: Counter[str] = Counter()
    for path in sorted(part.rglob("*.py")):
        folder, *below = path.relative_to(part).parts
        source = path.read_text(encoding="utf-8")
        lines[folder if below else ""] += len(code_lines(source, imports=imports))
    return lines


def main() -> None:
    """Print the lines of each folder, each part, the heart and the core, and in a second column those without imports."""
    print("   lines  no imports")
    for part in PARTS:
        every, own = (by_folder(ROOT / part, imports=imports) for imports in (True, False))
        rows = [*((f"{part}/{folder}", {folder}) for folder in sorted(every)), (part, every.keys())]
        rows += [(name, every.keys() - left_out) for of, name, left_out in SUMS if of == part]
        for name, folders in rows:
            counts = [sum(lines[folder] for folder in folders) for lines in (every, own)]
            print(f"{counts[0]:8,}{counts[1]:12,}  {name}")


if __name__ == "__main__":
    main()
