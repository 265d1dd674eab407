"""Other libraries under the same fault injection: the judge, on histories made by hand, and a run with ours."""

import json

import pytest

from dev.chaos.history import SECOND, read
from dev.peers import OURS, java, judge, spans
from dev.peers.picture import draw
from dev.peers.run import PeerOptions, PeerRun
from dev.peers.table import lines

LEASE = 4.0


def test_java_client_whose_process_has_ended_holds_nothing(tmp_path, monkeypatch):
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\nread call; echo 0 no\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(java.CLASSES, "")
    client = java.JavaClient("locks", LEASE, "owner")
    client._process.wait()
    assert not client.held()
    with pytest.raises(java.JavaError, match="has ended"):
        client.release()
    client.close()


class History:
    """Events at seconds of one's choice."""

    def __init__(self):
        self.events = []

    def add(self, at, op, proc, **more):
        self.events.append({"t": int(at * SECOND), "proc": proc, "op": op, **more})
        return self

    def asks(self, proc, at):
        return self.add(at, "acquire", proc, phase="invoke")

    def gets(self, proc, at, phase="ok", **more):
        return self.add(at, "acquire", proc, phase=phase, **more)

    def acquire(self, proc, since, until, phase="ok", **more):
        return self.asks(proc, since).gets(proc, until, phase, **more)

    def believe(self, proc, since, until):
        span = {"since": int(since * SECOND), "until": int(until * SECOND)}
        return self.add(until, "belief", proc, locks={"m0": [f"{proc}-{since}", 0]}, **span)

    def claim(self, proc, at, owner, *, applied=True):
        return self.add(
            at, "wire", proc, table="peers", name="PutItem", applied=applied, says=[owner],
            fault=None, rows=[],
        )  # fmt: skip

    def write(self, proc, at, value, read, fault=None):
        row = {"table": "rows", "key": "control-m0", "last": value, "read": read}
        client = proc.split(".")[0]
        self.add(at, "wire", client, name="PutItem", applied=True, fault=fault, rows=[row])
        return self.add(at, "control", proc, phase="ok", values={"m0": value})

    def frozen(self, client, since, until, op="stand_still"):
        self.add(since, op, "run", client=client)
        return self.add(until, "heal" if op == "partition" else "resume", "run", client=client)

    def killed(self, client, at):
        return self.add(at, "kill", "run", client=client, proc_killed=f"{client}.0")


def killed():
    """A holder is killed, while another client waits."""
    history = History().acquire("c0.0", 0, 1).acquire("c1.0", 0, 0.5, "fail")
    return history.asks("c1.0", 1.2).killed("c0", 2)


def test_spans():
    assert spans.union([(4, 6), (1, 3), (2, 4), (8, 8)]) == [(1, 6)]
    assert spans.without([(0, 10)], [(2, 3), (8, 12)]) == [(0, 2), (3, 8)]
    assert spans.without([(2, 3)], [(0, 10)]) == []
    assert spans.length([(0, 2), (1, 3)]) == 3


def released(*, waits):
    history = History().acquire("c0.0", 0, 1)
    if waits:
        history.asks("c1.0", 1.5)
    return history.add(2, "release", "c0.0", phase="ok")


def frozen(*, op="stand_still"):
    return History().frozen("c0", 1.5, 8, op).believe("c0.0", 1, 9)


def answered(owner):
    """Two acquires without an answer, and one that an owner of this name has written."""
    history = History().claim("c0", 1.5, owner).acquire("c0.0", 1, 2)
    return history.acquire("c1.0", 1, 3, "fail").acquire("c2.0", 1, 3, "info", error="E")


def rewritten():
    """An update that has seen the one before it, and arrives again."""
    history = History().write("c0.0", 1, "a", "start").write("c1.0", 2, "b", "a")
    return history.write("c1.0", 2.1, "b", "a", fault="duplicate")


MEASURES = {
    "overlaps": lambda events: [*judge.overlapping(events, LEASE).values()],
    "lost": lambda events: judge.lost(events, "control", "control-m0"),
    "unwritten": judge.unwritten,
    "errors": judge.errors,
    "blocked": lambda events: len(judge.blocked(events, LEASE)),
    "idle": judge.longest_idle,
    "takeovers": judge.takeovers,
    "newcomers": judge.newcomers,
    "hand_overs": judge.hand_overs,
}
CASES = [
    # ms for which two clients believed, and those of them that are excused
    ("overlaps", [[500.0], []], History().believe("c0.0", 1, 3).believe("c1.0", 2.5, 4)),
    ("overlaps", [[], []],
     History().believe("c0.0", 1, 3).believe("c1.0", 3, 4).believe("c1.1", 3.9, 5)),
    # who was frozen is excused until a heartbeat can show; who was stopped, until it is awake
    ("overlaps", [[], [1000.0]], frozen().believe("c1.0", 6, 9)),
    ("overlaps", [[1000.0], [1000.0]],
     frozen().believe("c1.0", 6, 9).believe("c1.1", 9, 20).believe("c0.1", 12, 13)),
    ("overlaps", [[500.0], []],
     frozen(op="stop_client").believe("c1.0", 6, 7).believe("c1.1", 7.5, 8.5)),
    # an update is lost, once, if it is overwritten unseen; what comes late is distinguished
    ("lost", {"acked": 2, "lost": 1, "lost_by_late": 0},
     History().write("c0.0", 1, "a", "start").write("c1.0", 2, "b", "start")),
    ("lost", {"acked": 2, "lost": 0, "lost_by_late": 0}, rewritten()),
    ("lost", {"acked": 3, "lost": 0, "lost_by_late": 1},
     rewritten().write("c0.0", 3, "a", "start", "late_duplicate").write("c1.0", 4, "c", "b")),
    # reported as held: it emptied the row, another wrote it, and it wrote it itself, but later
    ("unwritten", 1, History().claim("c0", 1.5, "c0.0-1", applied=False).acquire("c0.0", 1, 2)
     .claim("c0", 1.4, "__empty__").claim("c1", 1.6, "c1.0-1").claim("c0", 2.5, "c0.0-1")),
    ("unwritten", 0, answered("c0.0")),
    ("unwritten", 0, answered("c0.0-12")),
    ("errors", {"E": 2}, answered("c0.0").acquire("c0.0", 3, 4, "info", error="E")),
    # timed out, though nobody held; not if one held, it was cut off, had it, or gave up early
    ("blocked", 1, History().believe("c1.0", 1, 5).acquire("c0.0", 1, 16, "fail")),
    ("blocked", 0, History().believe("c1.0", 1, 9).acquire("c0.0", 1, 16, "fail")),
    ("blocked", 0, History().frozen("c0", 9, 10, "partition").acquire("c0.0", 1, 16, "fail")),
    ("blocked", 0, History().acquire("c0.0", 1, 16, "ok")),
    ("blocked", 0, History().acquire("c0.0", 1, 5, "fail")),
    # the longest time in which one waited, who was not away, and nobody held
    ("idle", 5.0, History().believe("c1.0", 1, 3).believe("c1.1", 8, 9).acquire("c0.0", 2, 10)),
    ("idle", 1.0, History().frozen("c0", 2.5, 9, "stop_client").acquire("c0.0", 2, 10)),
    ("idle", 0, History().believe("c1.0", 1, 3)),
    # a take-over counts from the kill to another client
    ("takeovers", [5.0], killed().acquire("c0.1", 2.5, 3).gets("c1.0", 7)),
    ("takeovers", [], killed()),
    # a newcomer is who took a dead one's place, and asks for the first time
    ("newcomers", [1.5], killed().acquire("c0.1", 20, 21.5).acquire("c0.1", 22, 29)),
    ("newcomers", [], killed().acquire("c0.1", 20, 35, "fail")),
    # a hand-over is to one who waited: not to who came later, the same again, or with a kill between
    ("hand_overs", [0.25], released(waits=True).gets("c1.0", 2.25)),
    ("hand_overs", [], released(waits=False).acquire("c1.0", 2.1, 2.2)),
    ("hand_overs", [], released(waits=False).acquire("c0.0", 2.1, 2.2)),
    ("hand_overs", [],
     released(waits=True).acquire("c2.0", 2.1, 2.2, "fail").killed("c2", 2.3).gets("c1.0", 7)),
]  # fmt: skip


@pytest.mark.parametrize(("measure", "expected", "history"), CASES)
def test_figure_of_a_history(measure, expected, history):
    assert MEASURES[measure](history.events) == expected


def figures(**calm):
    history = killed().believe("c0.0", 1, 2).believe("c1.0", 1.5, 3).claim("c0", 0.5, "c0.0")
    history.acquire("c2.0", 1, 2, "info", error="E")
    attack = judge.judge(history.events, LEASE)
    library = {"version": "1", "attacks": [attack], "calm": attack | calm}
    other = {"version": "2", "attacks": [], "calm": {}}
    return {
        "engine": "embedded", "lease": LEASE, "seconds": 8.0, "seeds": [1],
        "libraries": {OURS: library, "other": other},
    }  # fmt: skip


def test_table_and_picture_have_a_place_for_each_library(tmp_path):
    found = figures(takeovers=[5.0, 7.0, 6.0], newcomers=[0.03], hand_overs=[])
    text = lines(found)
    assert text[0].split("  ")[-1] == "other 2"
    assert any(line.startswith("two believers") and "1, 500 ms, max 500" in line for line in text)
    assert any("median 6.00 s, max 7.00 s, n 3" in line for line in text)
    assert text[-2:] == [f"{OURS} raised E 1", "other raised nothing"]
    assert json.dumps(found)
    assert draw(found, tmp_path / "it.png").stat().st_size > 10_000


def test_without_java_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert java.why_not() == "there is no java and no javac and no mvn"


def played(folder, **options):
    """Let processes of ours take turns, and return what happened."""
    folder.mkdir(exist_ok=True)
    PeerRun(PeerOptions(seed=1, **options), folder)()
    return read(folder)


@pytest.mark.timeout(1800)
@pytest.mark.lengthy
def test_ours_under_attack_and_in_the_calm(tmp_path):
    found = judge.judge(played(tmp_path, seconds=5.0, lease=1.0), 1.0)
    assert found["acquired"] > 0
    assert found["requests"] >= 2
    assert found["lost"]["acked"] > 0
    assert found["lost_guarded"]["acked"] > 0
    assert (found["unwritten"], found["overlaps"]) == (0, [])
    assert (found["lost_guarded"]["lost"], found["hung"], found["died"]) == (0, 0, 0)
    # holders are killed
    calm = {"seconds": 0, "faults": 0.0, "kills": 1}
    events = played(tmp_path / "calm", lease=1.0, **calm)
    (taken_over,) = judge.takeovers(events)
    assert taken_over > 0
    assert judge.hand_overs(events)
    # and when a newcomer asks, the dead holder's lock is free
    events = played(tmp_path / "alone", lease=10.0, clients=1, **calm)
    (waited,) = judge.newcomers(events)
    assert waited < 10.0
