"""The command ``pynamodb-mutex``. Needs the extra ``cli``; the package never imports it.

Exit codes: 0 done; 1 failed; 2 wrong usage; 130 interrupted by Ctrl-C; 141 nobody
reads what is printed. Commands that say more with theirs
name them in their help.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

INTERRUPTED = 130
"""Exit code: Ctrl-C, or a signal of that number."""

UNREAD = 141
"""Exit code: nobody reads what is printed any more, as of what SIGPIPE ends."""


def main() -> None:
    """Run the command line, and exit."""
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        sys.exit(f"pynamodb-mutex needs {' and '.join(missing)}: pip install 'pynamodb-mutex[cli]'")
    try:
        from pynamodb_mutex.cli._app import app  # noqa: PLC0415 - imports need the extra
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    app(prog_name="pynamodb-mutex")
