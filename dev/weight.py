"""How many lines of code there are, by folder: ``make lint`` prints them.

A line counts if it has code: blank lines, comments and docstrings, those of attributes too, do not. The core is the package
without what few users import.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("pynamodb_mutex", "tests", "dev")
NOT_CORE = ("cli", "receivers", "testing")

_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(source: str) -> int:
    """Return how many lines of a module have code."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(ast.Constant(str()), lineno=first, end_lineno=last):
                code.difference_update(range(first, last + 1))
    return len(code)


def by_folder(part: Path) -> Counter[str]:
    """Return the lines of each folder of a part, with those below it; of its own modules by an empty name."""
    lines: Counter[str] = Counter()
    for path in sorted(part.rglob("*.py")):
        folder, *below = path.relative_to(part).parts
        lines[folder if below else ""] += code_lines(path.read_text(encoding="utf-8"))
    return lines


def main() -> None:
    """Print the lines of each folder, of each part, and of the core."""
    for part in PARTS:
        lines = by_folder(ROOT / part)
        for folder, count in sorted(lines.items()):
            print(f"{count:8,}  {part}/{folder}")
        print(f"{lines.total():8,}  {part}")
        if part == PARTS[0]:
            core = lines.total() - sum(lines[folder] for folder in NOT_CORE)
            print(f"{core:8,}  {part} without {', '.join(NOT_CORE)}: the core")


if __name__ == "__main__":
    main()
