"""The command ``doctor``: is everything as locks need it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pynamodb_mutex.cli._checks import examine
from pynamodb_mutex.cli._findings import Finding, Verdict
from pynamodb_mutex.cli._output import json_option, on_terminal, print_json
from pynamodb_mutex.cli._place import FAILED, AppCommand, Place, pass_place

if TYPE_CHECKING:
    from collections.abc import Sequence

_STYLES = {
    Verdict.OK: "green",
    Verdict.WARNING: "yellow",
    Verdict.PROBLEM: "bold red",
    Verdict.UNCHECKED: "dim",
}


@click.command(cls=AppCommand)
@click.option(
    "--key",
    metavar="KEY",
    default="pynamodb-mutex doctor",
    show_default=True,
    help="The key with which permissions are tried; give one where a policy tells keys apart.",
)
@json_option
@click.pass_context
@pass_place
def doctor(place: Place, context: click.Context, key: str, as_json: bool) -> None:
    """Check credentials, endpoint, clocks, the table, its rows and permissions.

    Changes nothing, and ends within seconds. Permissions are tried by requests whose conditions cannot hold;
    those to create, change and delete tables cannot be tried like that and are not. Of the rows the first 500 are
    read.

    \b
    Examples:
      pynamodb-mutex doctor
      pynamodb-mutex doctor --json | jq '.checks[] | select(.verdict == "problem")'

    \b
    Exit codes:
      0    there is no problem; warnings, and what could not be checked, are none
      1    there is
    """
    model = place.lock_model()
    findings = examine(model, key)
    if as_json:
        print_json(_document(model.Meta.table_name, findings))
    elif on_terminal():
        _show(findings)
    else:
        for finding in findings:
            click.echo(f"{finding.verdict.value:9}  {finding.check:19}  {finding.what}")
            if finding.advice:
                click.echo(f"{'':9}  {'':19}  -> {finding.advice}")
        click.echo(_summary(findings))
    if _count(findings, Verdict.PROBLEM):
        context.exit(FAILED)


def _document(table: str, findings: Sequence[Finding]) -> dict[str, Any]:
    checks = [
        {
            "check": finding.check,
            "verdict": finding.verdict.value,
            "what": finding.what,
            "advice": finding.advice or None,
        }
        for finding in findings
    ]
    problems = _count(findings, Verdict.PROBLEM)
    return {"table": table, "problems": problems, "checks": checks}


def _show(findings: Sequence[Finding]) -> None:
    """Show a table that fits the terminal."""
    from rich.console import Console  # noqa: PLC0415 - only for a terminal
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    grid = Table.grid(padding=(0, 2))
    for finding in findings:
        what = Text(finding.what)
        if finding.advice:
            what.append(f"\n-> {finding.advice}", "bold")
        verdict = Text(finding.verdict.value, _STYLES[finding.verdict])
        grid.add_row(verdict, Text(finding.check, no_wrap=True), what)
    console = Console(highlight=False)
    console.print(grid)
    console.print(Text(_summary(findings)))


def _count(findings: Sequence[Finding], verdict: Verdict) -> int:
    return sum(finding.verdict is verdict for finding in findings)


def _summary(findings: Sequence[Finding]) -> str:
    problems, warnings = _count(findings, Verdict.PROBLEM), _count(findings, Verdict.WARNING)
    unsure = _count(findings, Verdict.UNCHECKED)
    text = f"{problems or 'no'} problem{'' if problems == 1 else 's'}"
    text += f", {warnings or 'no'} warning{'' if warnings == 1 else 's'}"
    return text + (f", {unsure} unchecked" if unsure else "")
