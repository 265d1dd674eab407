"""How many words the documentation has, by group of pages, and how plainly it speaks: ``make docs`` prints it.

A group that is over 110 % of its budget is an error: shorten it, or say the same on one page in place of two. Of the reference
counts what a reader sees, because its text is in docstrings.

So is a manual, or a reference, that points back with words that stand for another word ("those that", "whoever", a free "what is"), that does not
say "you", or that nests its sentences, by how often each comes in 1,000 words; and a page that points back too often.
"""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatchcase
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
API = "build/docs"
"""Where the reference is built, which is a page `api`, and those below it."""

OTHERS = "start and others"
GROUPS = {
    "features": (8700, "choosing table locks once row_locks several_locks concepts/order hand_over asyncio"),
    "guides": (11000, "howto/*"),
    "concepts": (
        6400,
        "concepts/how_it_works concepts/fencing_tokens concepts/lease_and_timeout guarantees costs",
    ),
    "command line": (4200, "cli/*"),
    "moving": (1800, "moving/*"),
    "evidence": (5500, "proof proof/* models speed speed/* compatibility comparison"),
}  # fmt: skip
"""Words that a group may have, and its pages; a page of no group is among the others."""

PRO_FORMS, YOU, SUBORDINATORS = (
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        (
            r"\b(?:those|that of|the ones?|such|who(?:so)?ever|whatever|whichever|of which|the former|the latter"
            r"|wh(?:at|o) (?:is|are|it|they|the|a|no|had|has|holds|waits|have|does|do|comes|uses|reads)"
            r"|(?:an?|that|this|last|first|next|other|another|new|old|no|each|which|every) ones?)\b"
        ),
        r"\byours?\b|\byou\b",
        r"\b(?:if|unless|because|although|so that|while|until|before|after|whose|which)\b",
    )
)
MOST_PRO_FORMS, MOST_ON_A_PAGE, LEAST_YOU, MOST_SUBORDINATORS = 4.5, 8.0, 10.0, 20.0
"""In 1,000 words: of the whole manual; and of a page that is not short, or made by ``make bench``."""

SHORT_PAGE = 80

API_BUDGET = 15000
MOST = 1.1

_NO_PROSE = re.compile(
    r"( *)\.\. (?:(?P<hidden>hidden: |(?:raw|include|index|image)::)|code-block::)"
)
_MARKUP = re.compile(r"(?m)^ *(?::[\w-]+:(?: .*)?|\.\. _[^:]+:)$")
"""Options of directives, metadata, and labels."""

_LETTER = re.compile(r"[^\W\d_]")


def prose_of_page(text: str) -> str:
    """Return what a page says: of its code the comments alone; no hidden code, options of directives or tables' numbers."""
    lines: list[str] = []
    block, hidden = None, False
    for line in text.splitlines():
        if block is not None and line.strip() and len(line) - len(line.lstrip()) <= block:
            block = None
        if block is not None:
            lines.append("" if hidden else line.partition("# ")[2])
        elif start := _NO_PROSE.match(line):
            block, hidden = len(start[1]), bool(start["hidden"])
            lines.append("")
        else:
            lines.append(_without_numbers(line))
    return _MARKUP.sub("", "\n".join(lines))


def _without_numbers(line: str) -> str:
    """Return a line of a page without those of its cells, if it is one of a table, that have no letters."""
    if line.lstrip().startswith('"'):  # of a csv-table
        return re.sub(r'"[^"]*"', lambda cell: cell[0] if _LETTER.search(cell[0]) else "", line)
    return "  ".join(cell for cell in re.split(" {2,}", line) if _LETTER.search(cell))


class _Article(HTMLParser):
    """Collects the text of a built page that a reader sees as prose: without navigation and code blocks.

    Code in a sentence, and signatures, are marked as literals.
    """

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._articles = self._code = 0
        self._is_signature = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._articles += tag == "article"
        self._code += tag == "pre"
        self._is_signature |= tag == "dt" and "sig " in (dict(attrs).get("class") or "")
        self._mark(tag)

    def handle_endtag(self, tag: str) -> None:
        self._articles -= tag == "article"
        self._code -= tag == "pre"
        self._mark(tag)
        self._is_signature &= tag != "dt"

    def _mark(self, tag: str) -> None:
        if tag == "code" or (tag == "dt" and self._is_signature):
            self.handle_data("``")

    def handle_data(self, data: str) -> None:
        if self._articles and not self._code:
            self.text += data


def prose_of_article(html: str) -> str:
    """Return the text of the article of a built page, without its code blocks."""
    article = _Article()
    article.feed(html)
    return article.text


def words(text: str) -> int:
    """Return how many words a text has."""
    return sum(1 for word in text.split() if re.search(r"\w", word))


def rate(pattern: re.Pattern[str], page: str) -> float:
    """Return how often a pattern comes in 1,000 words of a page's prose, without its literals, roles and comments."""
    text = re.sub(r"(?m)^\s*\.\. .*$", "", prose_of_page(page))
    text = re.sub(r":[\w.]+:|\*+", "", re.sub(r"``[^`]+``|`[^`]+`", "CODE", text))
    return 1000 * len(pattern.findall(" ".join(text.split()))) / max(words(text), 1)


def unplain(what: str, pages: dict[str, str]) -> list[str]:
    """Print how plainly pages speak together; return what is beyond the limits.

    Args:
        what: What the pages are together.
        pages: The texts by name.
    """
    whole = "\n\n".join(pages.values())
    pro_forms, you, nested = (rate(each, whole) for each in (PRO_FORMS, YOU, SUBORDINATORS))
    print(
        f"{what}, in 1,000 words: {pro_forms:.1f} pro-forms, {you:.1f} you, {nested:.1f} subordinators"
    )
    wrong = ["pro-forms"] * (pro_forms > MOST_PRO_FORMS) + ["you"] * (you < LEAST_YOU)
    wrong += ["subordinators"] * (nested > MOST_SUBORDINATORS)
    for name, page in pages.items():
        is_long = words(prose_of_page(page)) > SHORT_PAGE
        if is_long and rate(PRO_FORMS, page) > MOST_ON_A_PAGE:
            wrong.append(name)
    return wrong


def group_of(page: str) -> str:
    """Return the name of a page's group."""
    return next(
        (
            name
            for name, (_, patterns) in GROUPS.items()
            if any(fnmatchcase(page, each) for each in patterns.split())
        ),
        OTHERS,
    )


def main() -> int:
    """Print the words of each page, by group, and the sums with their budgets; return 1 if a group has too many.

    The reference must have been built.
    """
    pages, reference = {"README": ROOT / "README.rst"}, {}
    for path in sorted((ROOT / "docs").rglob("*.rst")):
        name = path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        if name.partition("/")[0] == "api":
            html = (ROOT / API / f"{name}.html").read_text(encoding="utf-8")
            reference[name] = prose_of_article(html)
        else:
            pages[name] = path
    sums, budgets = {}, {name: budget for name, (budget, _) in GROUPS.items()}
    for group in (*GROUPS, OTHERS):
        sums[group] = 0
        for page, path in pages.items():
            if group_of(page) == group:
                count = words(prose_of_page(path.read_text(encoding="utf-8")))
                sums[group] += count
                print(f"{count:8,}  {page}")
        print(f"{sums[group]:8,}  {group}\n")
    budgets["API as rendered"] = API_BUDGET
    sums["API as rendered"] = sum(map(words, reference.values()))
    too_many = []
    print("   words   budget")
    for group, count in sums.items():
        budget = budgets.get(group)
        of_it = f"{budget:9,}  {group}: {count / budget:.0%}" if budget else f"{'':9}  {group}"
        print(f"{count:8,}{of_it}")
        if budget and count > MOST * budget:
            too_many.append(group)
    print(f"{sum(sums.values()):8,}{'':9}  all")
    if too_many:
        print(f"over {MOST:.0%} of the budget: {', '.join(too_many)}", file=sys.stderr)
    written = {page: path for page, path in pages.items() if not page.startswith("speed/")}
    texts = {page: path.read_text(encoding="utf-8") for page, path in written.items()}
    wrong = unplain("the manual", texts) + unplain("the API", reference)
    if wrong:
        print(f"not plain: {', '.join(wrong)}", file=sys.stderr)
    return bool(too_many or wrong)


if __name__ == "__main__":
    sys.exit(main())
