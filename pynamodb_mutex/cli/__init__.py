"""The command line ``pynamodb-mutex``. Needs the extra ``cli``; no other part of the package imports this one.

This module is the entry point, and imports click and rich only after it has checked that they are there. The group of
all commands is in `_app`; each command is in the module that its import there names. What the commands share
is in `_place` (where the locks are), `_locks` (how they are read), `_output` (how they are printed) and `_exit_codes`.

Exit codes: 0 done; 1 failed; 2 wrong usage; 130 interrupted by Ctrl-C; 141 the reader of standard
output has gone. A command that has further ones names them in its help.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pynamodb_mutex.cli._exit_codes import INTERRUPTED

if TYPE_CHECKING:
    from io import TextIOWrapper


def main() -> None:
    """Run the command line and exit."""
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        sys.exit(f"pynamodb-mutex needs {' and '.join(missing)}: pip install 'pynamodb-mutex[cli]'")
    try:
        from pynamodb_mutex.cli._app import app  # noqa: PLC0415 - imports need the extra
    except KeyboardInterrupt:
        # the imports take long enough for that, and no command is there yet to report it
        sys.exit(INTERRUPTED)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by ``2>&-``
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for the rest of the process
    # as standard error does with a character that the encoding lacks, so that a key in Greek does not end a command
    cast("TextIOWrapper", sys.stdout).reconfigure(errors="backslashreplace")
    app(prog_name="pynamodb-mutex")
