"""How many words the documentation has: ``make docs`` prints them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

_CODE = re.compile(r"( *)\.\. (?:hidden: |(?:code-block|raw|include)::)")


def prose_of_page(text: str) -> str:
    """Return what a page says: of its code the comments alone, and no literals."""
    lines, indent = [], None
    for line in text.splitlines():
        if indent is not None and line.strip() and len(line) - len(line.lstrip()) <= indent:
            indent = None
        if indent is None:
            lines.append(line)
        elif "# " in line:
            lines.append(line.partition("# ")[2])
        if indent is None and (start := _CODE.match(line)):
            indent = len(start[1])
            lines[-1] = ""
    return "\n".join(lines)


def main() -> None:
    """Print the words of prose, and all words, of the README and of each page."""
    total = [0, 0]
    pages = sorted((ROOT / "docs").rglob("*.rst"))
    for page in [ROOT / "README.rst", *pages]:
        text = page.read_text(encoding="utf-8")
        words = [word for word in prose_of_page(text).split() if re.search(r"\w", word)]
        counts = [len(words), len(text.split())]
        if page in pages:
            total = [one + other for one, other in zip(total, counts, strict=True)]
        print(f"{counts[0]:6,} {counts[1]:6,}  {page.relative_to(ROOT)}")
    print(f"{total[0]:6,} {total[1]:6,}  docs: words of prose, and all with code and markup")


if __name__ == "__main__":
    main()
