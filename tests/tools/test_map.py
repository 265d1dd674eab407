"""The map of what a plain lock runs, and of what other features run in the same modules."""

import inspect

from dev import map as drawn
from pynamodb_mutex._lock.operations.acquire import Acquisition


def lines_of(function):
    lines, first = inspect.getsourcelines(function)
    return {*range(first, first + len(lines))}


def test_plain_lock_runs_lines_of_the_heart_alone():
    ran = drawn.run(*drawn.PLAIN)
    assert all(f"{name}/".startswith(tuple(f"{part}/" for part in drawn.HEART)) for name in ran)
    assert ran["_lock/operations/acquire"] & lines_of(Acquisition.take)
    assert not ran["_lock/operations/acquire"] & lines_of(Acquisition.by_force)
    assert all(0 < len(lines) < len(drawn.statements(name)) for name, lines in ran.items())


def test_features_run_further_lines_once(monkeypatch, capsys):
    features = {"forced": drawn.FEATURES["force"], "forced again": drawn.FEATURES["force"]}
    monkeypatch.setattr(drawn, "FEATURES", features)
    drawn.print_map()
    forced, again, total = capsys.readouterr().out.splitlines()[-3:]
    assert "_lock/operations/acquire" in forced
    assert again.split() == ["0", "forced", "again:"]
    assert total.split()[0] == forced.split()[0] != "0"


def test_lines_of_a_plain_lock_are_marked(capsys):
    drawn.print_lines("_lock/operations/acquire")
    printed = capsys.readouterr().out.splitlines()
    marked = {number for number, line in enumerate(printed, 1) if line.startswith("> ")}
    assert marked & lines_of(Acquisition.take)
    assert not marked & lines_of(Acquisition.by_force)
