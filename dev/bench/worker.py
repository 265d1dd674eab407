"""Runs one scenario, in the environment that has the other libraries, and writes its figures to a file.

    python -m dev.bench.worker SCENARIO SETTING RESULT.json

SETTING is a JSON list: the fields of `dev.bench.Setting` in their order.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from pathlib import Path

from dev.bench import Setting


def main(scenario: str, setting: str, result: str) -> None:
    # libraries log a warning for each lock that is held or lost; the scenarios count these
    logging.lastResort = logging.NullHandler()
    engine_url, libraries, *sizes = json.loads(setting)
    module = importlib.import_module(f"dev.bench.scenarios.{scenario}")
    found = module.measure(Setting(engine_url, tuple(libraries), *sizes))
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
