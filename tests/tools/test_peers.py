"""Other libraries under the same fault injection: the judge, on histories made by hand, and a run with ours."""

import json
from pathlib import Path

import pytest

from dev.chaos.history import SECOND, read
from dev.peers import OURS, java
from dev.peers.judge import (
    blocked,
    errors,
    hand_overs,
    judge,
    longest_idle,
    lost,
    newcomers,
    overlapping,
    takeovers,
    unwritten,
)
from dev.peers.picture import draw
from dev.peers.run import PeerOptions, PeerRun
from dev.peers.spans import length, union, without
from dev.peers.table import lines

LEASE = 4.0


class History:
    """Events at seconds of one's choice."""

    def __init__(self):
        self.events = []

    def add(self, at, op, proc, **more):
        self.events.append({"t": int(at * SECOND), "proc": proc, "op": op, **more})
        return self

    def acquire(self, proc, since, until, phase="ok", **more):
        self.add(since, "acquire", proc, phase="invoke")
        return self.add(until, "acquire", proc, phase=phase, **more)

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
        self.add(
            at, "wire", proc.split(".")[0], name="PutItem", applied=True, fault=fault, rows=[row]
        )
        return self.add(at, "control", proc, phase="ok", values={"m0": value})

    def frozen(self, client, since, until, op="stand_still"):
        self.add(since, op, "run", client=client)
        return self.add(until, "heal" if op == "partition" else "resume", "run", client=client)

    def lost(self):
        return lost(self.events, "control", "control-m0")


def test_spans():
    assert union([(4, 6), (1, 3), (2, 4), (8, 8)]) == [(1, 6)]
    assert without([(0, 10)], [(2, 3), (8, 12)]) == [(0, 2), (3, 8)]
    assert without([(2, 3)], [(0, 10)]) == []
    assert length([(0, 2), (1, 3)]) == 3


def test_two_believe_at_one_time():
    history = History().believe("c0.0", 1, 3).believe("c1.0", 2.5, 4)
    assert overlapping(history.events, LEASE) == {"overlaps": [500.0], "overlaps_excused": []}


def test_one_believes_after_the_other():
    history = History().believe("c0.0", 1, 3).believe("c1.0", 3, 4).believe("c1.1", 3.9, 5)
    assert overlapping(history.events, LEASE) == {"overlaps": [], "overlaps_excused": []}


def test_who_was_frozen_is_excused_until_a_heartbeat_can_show():
    history = History().frozen("c0", 1.5, 8).believe("c0.0", 1, 9).believe("c1.0", 6, 9)
    assert overlapping(history.events, LEASE) == {"overlaps": [], "overlaps_excused": [1000.0]}
    history.believe("c1.1", 9, 20).believe("c0.1", 12, 13)
    assert overlapping(history.events, LEASE) == {
        "overlaps": [1000.0], "overlaps_excused": [1000.0],
    }  # fmt: skip


def test_who_was_stopped_is_not_excused_once_it_is_awake():
    history = History().frozen("c0", 1.5, 8, "stop_client").believe("c0.0", 1, 9)
    history.believe("c1.0", 6, 7).believe("c1.1", 7.5, 8.5)
    assert overlapping(history.events, LEASE) == {"overlaps": [500.0], "overlaps_excused": []}


def test_an_update_is_lost_if_it_is_overwritten_unseen_and_what_comes_late_is_distinguished():
    history = History().write("c0.0", 1, "a", "start").write("c1.0", 2, "b", "start")
    assert history.lost() == {"acked": 2, "lost": 1, "lost_by_late": 0}
    history = History().write("c0.0", 1, "a", "start").write("c1.0", 2, "b", "a")
    history.write("c1.0", 2.1, "b", "a", fault="duplicate")
    assert history.lost() == {"acked": 2, "lost": 0, "lost_by_late": 0}
    # it is lost once
    history.write("c0.0", 3, "a", "start", fault="late_duplicate").write("c1.0", 4, "c", "b")
    assert history.lost() == {"acked": 3, "lost": 0, "lost_by_late": 1}


def test_reported_held_but_nothing_was_written():
    history = History().claim("c0", 1.5, "c0.0-1", applied=False).acquire("c0.0", 1, 2)
    # it emptied the row, another wrote it, and it wrote it itself, but later
    history.claim("c0", 1.4, "__empty__").claim("c1", 1.6, "c1.0-1").claim("c0", 2.5, "c0.0-1")
    assert unwritten(history.events) == 1


@pytest.mark.parametrize("owner", ["c0.0", "c0.0-12"])
def test_reported_held_and_written(owner):
    history = History().claim("c0", 1.5, owner).acquire("c0.0", 1, 2)
    history.acquire("c1.0", 1, 3, "fail").acquire("c2.0", 1, 3, "info", error="E")
    assert unwritten(history.events) == 0


def test_errors_by_class():
    history = (
        History().acquire("c0.0", 1, 2, "info", error="E").acquire("c0.0", 3, 4, "info", error="E")
    )
    assert errors(history.acquire("c1.0", 3, 4, "fail").events) == {"E": 2}


def test_timed_out_though_nobody_held():
    history = History().believe("c1.0", 1, 5).acquire("c0.0", 1, 16, "fail")
    assert len(blocked(history.events, LEASE)) == 1


@pytest.mark.parametrize(
    "history",
    [
        History().believe("c1.0", 1, 9).acquire("c0.0", 1, 16, "fail"),
        History().frozen("c0", 9, 10, "partition").acquire("c0.0", 1, 16, "fail"),
        History().acquire("c0.0", 1, 16, "ok"),
        History().acquire("c0.0", 1, 5, "fail"),
    ],
    ids=["held till late", "cut off", "had it", "gave up early"],
)
def test_timed_out_for_a_reason(history):
    assert blocked(history.events, LEASE) == []


def test_longest_time_in_which_nobody_held():
    history = History().believe("c1.0", 1, 3).believe("c1.1", 8, 9).acquire("c0.0", 2, 10)
    assert longest_idle(history.events) == pytest.approx(5.0)
    # who is away waits for nobody
    history = History().frozen("c0", 2.5, 9, "stop_client").acquire("c0.0", 2, 10)
    assert longest_idle(history.events) == pytest.approx(1.0)
    assert longest_idle(History().believe("c1.0", 1, 3).events) == 0


def killed():
    history = History().acquire("c0.0", 0, 1).acquire("c1.0", 0, 0.5, "fail")
    history.add(1.2, "acquire", "c1.0", phase="invoke")
    return history.add(2, "kill", "run", client="c0", proc_killed="c0.0")


def test_a_take_over_counts_from_the_kill_to_another_client():
    history = killed().acquire("c0.1", 2.5, 3).add(7, "acquire", "c1.0", phase="ok")
    assert takeovers(history.events) == [5.0]
    assert takeovers(killed().events) == []


def test_a_newcomer_is_who_took_a_dead_ones_place_and_asks_for_the_first_time():
    history = killed().acquire("c0.1", 20, 21.5).acquire("c0.1", 22, 29)
    assert newcomers(history.events) == [1.5]
    assert newcomers(killed().acquire("c0.1", 20, 35, "fail").events) == []


def test_a_hand_over_is_to_one_who_waited():
    history = History().acquire("c0.0", 0, 1).add(1.5, "acquire", "c1.0", phase="invoke")
    history.add(2, "release", "c0.0", phase="ok").add(2.3, "acquire", "c1.0", phase="ok")
    assert hand_overs(history.events) == [pytest.approx(0.3)]


@pytest.mark.parametrize("kind", ["came later", "the same again", "killed meanwhile"])
def test_no_hand_over(kind):
    history = History().acquire("c0.0", 0, 1)
    if kind == "killed meanwhile":
        history.add(1.5, "acquire", "c1.0", phase="invoke").add(2, "release", "c0.0", phase="ok")
        history.acquire("c2.0", 2.1, 2.2, "fail")
        history.add(2.3, "kill", "run", client="c2", proc_killed="c2.0")
        history.add(7, "acquire", "c1.0", phase="ok")
    else:
        history.add(2, "release", "c0.0", phase="ok")
        history.acquire("c0.0" if kind == "the same again" else "c1.0", 2.1, 2.2)
    assert hand_overs(history.events) == []


def figures(**calm):
    history = killed().believe("c0.0", 1, 2).believe("c1.0", 1.5, 3).claim("c0", 0.5, "c0.0")
    history.acquire("c2.0", 1, 2, "info", error="E")
    attack = judge(history.events, LEASE)
    library = {"version": "1", "attacks": [attack], "calm": attack | calm}
    other = {"version": "2", "attacks": [], "calm": {}}
    return {
        "engine": "embedded", "lease": LEASE, "seconds": 8.0, "seeds": [1],
        "libraries": {OURS: library, "other": other},
    }  # fmt: skip


def test_the_table_has_a_column_for_each_library():
    text = lines(figures(takeovers=[5.0, 7.0, 6.0], hand_overs=[]))
    assert text[0].split("  ")[-1] == "other 2"
    assert any(line.startswith("two believers") and "1, 500 ms, max 500" in line for line in text)
    assert any("median 6.00 s, max 7.00 s, n 3" in line for line in text)
    assert text[-2:] == [f"{OURS} raised E 1", "other raised nothing"]
    assert json.dumps(figures())


def test_the_picture_is_drawn(tmp_path: Path):
    shown = figures(takeovers=[5.0, 7.0, 6.0], newcomers=[0.03])
    assert draw(shown, tmp_path / "it.png").stat().st_size > 10_000


def test_without_java_it_is_said(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert java.why_not() == "there is no java and no javac and no mvn"


@pytest.mark.timeout(1800)
@pytest.mark.lengthy
def test_ours_under_attack(tmp_path: Path):
    facts = PeerRun(PeerOptions(seed=1, seconds=5.0, lease=1.0), tmp_path)()
    found = judge(read(tmp_path), facts["lease"])
    assert found["acquired"] > 0
    assert found["requests"] >= 2
    assert found["lost"]["acked"] > 0
    assert found["lost_guarded"]["acked"] > 0
    assert (found["unwritten"], found["overlaps"]) == (0, [])
    assert (found["lost_guarded"]["lost"], found["hung"], found["died"]) == (0, 0, 0)


@pytest.mark.timeout(1800)
@pytest.mark.lengthy
def test_our_holders_are_killed_in_the_calm(tmp_path: Path):
    PeerRun(PeerOptions(seed=1, seconds=0, lease=1.0, faults=0.0, kills=1), tmp_path)()
    events = read(tmp_path)
    (taken_over,) = takeovers(events)
    assert taken_over > 0
    assert hand_overs(events)


@pytest.mark.timeout(1800)
@pytest.mark.lengthy
def test_a_newcomer_finds_our_dead_holders_lock_free(tmp_path: Path):
    asked = PeerOptions(seed=1, seconds=0, lease=10.0, faults=0.0, kills=1, clients=1)
    PeerRun(asked, tmp_path)()
    (waited,) = newcomers(read(tmp_path))
    assert waited < asked.lease
