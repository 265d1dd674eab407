"""The command line of the benchmark: see the package.

It starts the engine, runs the scenarios, and writes figures and tables. A scenario that fails does not end the others.
Libraries that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import boto3

import dev.bench
from dev.bench import PEERS, ROOT, Setting, table_of
from dev.bench.children import preload
from dev.bench.libraries import create_table, keys_of, versions
from dev.bench.scenarios import NAMES
from dev.bench.scenarios.row import TABLE as ROWS_TABLE
from dev.bench.tables import Table, as_rst, as_text
from dev.dynamodb_local import dynamodb_local, why_no_dynamodb_local
from pynamodb_mutex.testing import Engine, embedded_dynamodb, use


def main(arguments: list[str] | None = None) -> int:
    """Measure, print tables, write figures; return 1 if something could not be measured."""
    summary = (dev.bench.__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser("dev.bench", description=summary)
    engines = {"embedded": embedded_dynamodb, "local": dynamodb_local}
    parser.add_argument("--engine", choices=engines, help="local is taken if it can be had")
    parser.add_argument("--only", choices=NAMES, action="append", help="one scenario, or several")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to see whether it runs")
    parser.add_argument(
        "--out", type=Path, default=Path("build/bench"), help="folder for all files"
    )
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with engines[
        options.engine or ("embedded" if why_no_dynamodb_local() else "local")
    ]() as engine:
        return _run(options, engine)


def _run(options: argparse.Namespace, engine: Engine) -> int:
    """Run the scenarios, write what they found after each, and return the exit code."""
    found = versions()
    if missing := [name for name in PEERS if name not in found]:
        print(f"not installed, and left out: {', '.join(missing)}")
    stamp = {
        "commit": _commit(), "date": datetime.now(timezone.utc).date().isoformat(),
        "engine": engine.name, "quick": options.quick, "cpus": os.cpu_count(), "versions": found,
    }  # fmt: skip
    # figures of other scenarios stay as they are, with the commit at which they were measured
    scenarios: dict[str, Any] = figures(options.out) if options.only else {}
    names = options.only or NAMES
    setting = Setting(engine.endpoint_url, tuple(found), options.quick)
    with use(engine):
        make_tables(setting.libraries)
        for name in names:
            since = time.monotonic()
            measured = _measured(name, setting)
            scenarios[name] = measured | {"took_s": time.monotonic() - since, "measured": stamp}
            write(options.out, scenarios, name)
            print("\n".join(map(as_text, _tables(name, measured))), flush=True)
    print(circumstances(stamp))
    print(f"results.json and the tables are in {options.out}")
    return int(any("failed" in scenarios[name] for name in names))


def _commit() -> str:
    """Return the commit that is measured, with a plus if what is measured was changed since; "unknown" without git."""
    git = ["git", "-C", str(ROOT)]
    status = ["status", "--short", "--", "pynamodb_mutex", "dev"]
    try:
        head, changes = (
            subprocess.run([*git, *each], capture_output=True, text=True, check=True).stdout.strip()
            for each in (["rev-parse", "--short", "HEAD"], status)
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + "+" * bool(changes)


def figures(folder: Path) -> dict[str, Any]:
    """Return the figures in a folder by scenario; of each, ``measured`` has its commit, date and circumstances."""
    path = folder / "results.json"
    return json.loads(path.read_text())["scenarios"] if path.exists() else {}


def write(folder: Path, scenarios: dict[str, Any], name: str) -> None:
    """Write all figures, and the tables of one scenario with the circumstances."""
    (folder / "results.json").write_text(json.dumps({"scenarios": scenarios}, indent=1) + "\n")
    found = scenarios[name]
    made = map(as_rst, _tables(name, found))
    (folder / f"{name}.rst").write_text("\n\n".join([*made, circumstances(found["measured"])]))


def circumstances(stamp: dict[str, Any]) -> str:
    """Return a sentence with the commit, the date, the engine and the machine; the figures have the versions, too."""
    # one that was running before can only be DynamoDB Local
    engine = "the embedded engine" if stamp["engine"] == "embedded" else "DynamoDB Local"
    quick = ", at tiny sizes, which show nothing" * stamp["quick"]
    return f"Measured at commit {stamp['commit']} on {stamp['date']}, on {engine} with {stamp['cpus']} processors{quick}.\n"


def make_tables(libraries: tuple[str, ...]) -> None:
    """Create the tables of the libraries, empty."""
    client = boto3.client("dynamodb")
    asked = {table_of(name): keys_of(name) for name in libraries} | {ROWS_TABLE: ("pk",)}
    for table, keys in asked.items():
        with suppress(client.exceptions.ResourceNotFoundException):
            # from an earlier run, if the engine was running before
            client.delete_table(TableName=table)
        create_table(client, table, keys)


def _measured(name: str, setting: Setting) -> dict[str, Any]:
    """Run a scenario; return what it found, or why there is nothing."""
    try:
        return _scenario(name).measure(setting)
    except Exception as error:
        traceback.print_exc()
        return {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}


def _scenario(name: str) -> Any:
    return importlib.import_module(f"dev.bench.scenarios.{name}")


def _tables(name: str, found: dict[str, Any]) -> list[Table]:
    """Return the tables of a scenario; if it failed, one with the reason."""
    if "failed" in found:
        return [Table(name, ["Failed"], [[found["failed"]]])]
    return _scenario(name).tables(found)


if __name__ == "__main__":
    preload()
    sys.exit(main())
