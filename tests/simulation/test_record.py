"""The record: the same seed writes the same tables, and a violation is printed and fails."""

import csv
from concurrent.futures import Executor
from contextlib import nullcontext

import pytest

from dev.broken import broken
from dev.simulation import record


class OneByOne(Executor):
    """Does all in this process, which may have a broken library."""

    def map(self, call, *each, chunksize=1):
        return map(call, *each)


def table(folder, name):
    with (folder / name).open(encoding="utf-8") as file:
        return [*csv.reader(file)]


@pytest.fixture
def proof(monkeypatch, tmp_path):
    """A folder of tables, of three variants, of which the trial has found one."""
    kinds = {"release-by-key": "locks", "unknown-ended-by-ttl": "once", "ends-for-all": "shared"}
    monkeypatch.setattr(record, "KIND", kinds)
    monkeypatch.setattr(record, "PROOF", tmp_path)
    lines = ["Variant,What is broken,Schedules,Trial", "``release-by-key``,,,found"]
    (tmp_path / "variants.csv").write_text("\n".join(lines))
    return tmp_path


def play(monkeypatch, command):
    monkeypatch.setattr("sys.argv", ["record", *command.split()])
    return record.main()


def test_record_is_the_same_again(proof, monkeypatch, capsys):
    def written():
        assert play(monkeypatch, "--seed 5 --schedules 4 3 2 --teeth 2") == 0
        return {file.name: file.read_text() for file in proof.iterdir()}, capsys.readouterr().out

    first = written()
    assert first == written()
    head, *rows = table(proof, "record.csv")
    assert head == ["", "Locks", "Once", "Shared"]
    counts = {what: numbers for what, *numbers in rows}
    assert (counts["Schedules"], counts["Violations"]) == (["4", "3", "2"], ["0", "0", "0"])
    asked = {rule: numbers for rule, *numbers in table(proof, "asked.csv")}
    assert asked["O3"][0] == asked["O3"][2] == ""
    assert int(asked["O3"][1]) > 0
    variants = table(proof, "variants.csv")[1:]
    assert [name for name, *_ in variants] == [f"``{name}``" for name in record.KIND]
    _, meaning, numbers, trial = variants[0]
    assert (meaning, trial) == ("A release ends any claim in the row, not only its own", "found")
    shown = numbers.split(", ")
    assert {"1"} <= {*shown} <= {"1", "2", "-"}
    caught = " ".join(str(int(number != "-")) for number in shown)
    assert f"locks {caught} of 1 variants were caught\n" in first[1]


@pytest.mark.parametrize("name", [None, "end-doubled"])
def test_violation_is_printed_and_fails(proof, monkeypatch, capsys, name):
    monkeypatch.setattr(record, "ProcessPoolExecutor", OneByOne)
    with broken(name) if name else nullcontext():
        assert play(monkeypatch, "--seed 1 --schedules 1 0 0 --teeth 1") == bool(name)
    assert ("locks, seed 1: " in capsys.readouterr().out) == bool(name)
    assert table(proof, "record.csv")[-1][1] == str(int(bool(name)))
