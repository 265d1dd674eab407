"""Runs one scenario in this process, in the environment that has the peers.

    python -m dev.bench.worker SCENARIO SETTING RESULT.json

The setting is JSON: the fields of `dev.bench.Setting`.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from pathlib import Path

from dev.bench import Setting


def main(scenario: str, setting: str, result: str) -> None:
    logging.lastResort = (
        logging.NullHandler()
    )  # they warn of each lock that is held, or was lost: we count those
    engine_url, libraries, *sizes = json.loads(setting)
    module = importlib.import_module(f"dev.bench.scenarios.{scenario}")
    found = module.measure(Setting(engine_url, tuple(libraries), *sizes))
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
