"""Other libraries under the same fault injection: the judge, on histories made by hand, and a run with ours."""

import json

import pytest

from dev.chaos.history import SECOND, read
from dev.peers import OURS, java, judge, spans
from dev.peers.picture import draw
from dev.peers.run import PeerOptions, PeerRun
from dev.peers.table import lines

LEASE = 4.0


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


FROZEN = History().frozen("c0", 1.5, 8).believe("c0.0", 1, 9).believe("c1.0", 6, 9)


@pytest.mark.parametrize(
    ("history", "overlaps", "excused"),
    [
        pytest.param(
            History().believe("c0.0", 1, 3).believe("c1.0", 2.5, 4), [500.0], [], id="at one time"
        ),
        pytest.param(
            History().believe("c0.0", 1, 3).believe("c1.0", 3, 4).believe("c1.1", 3.9, 5),
            *([], []),
            id="one after the other",
        ),
        pytest.param(FROZEN, [], [1000.0], id="who was frozen is excused"),
        pytest.param(
            History().frozen("c0", 1.5, 8).believe("c0.0", 1, 9).believe("c1.0", 6, 9)
            .believe("c1.1", 9, 20).believe("c0.1", 12, 13),
            *([1000.0], [1000.0]),
            id="until a heartbeat can show",
        ),
        pytest.param(
            History().frozen("c0", 1.5, 8, "stop_client").believe("c0.0", 1, 9)
            .believe("c1.0", 6, 7).believe("c1.1", 7.5, 8.5),
            *([500.0], []),
            id="who was stopped is not excused once it is awake",
        ),
    ],
)  # fmt: skip
def test_two_believe(history, overlaps, excused):
    found = judge.overlapping(history.events, LEASE)
    assert found == {"overlaps": overlaps, "overlaps_excused": excused}


def test_update_is_lost_if_it_is_overwritten_unseen_and_what_comes_late_is_distinguished():
    def lost(history):
        return tuple(judge.lost(history.events, "control", "control-m0").values())

    history = History().write("c0.0", 1, "a", "start").write("c1.0", 2, "b", "start")
    assert list(judge.lost(history.events, "control", "control-m0")) == [
        "acked",
        "lost",
        "lost_by_late",
    ]
    assert lost(history) == (2, 1, 0)
    history = History().write("c0.0", 1, "a", "start").write("c1.0", 2, "b", "a")
    history.write("c1.0", 2.1, "b", "a", fault="duplicate")
    assert lost(history) == (2, 0, 0)
    # it is lost once
    history.write("c0.0", 3, "a", "start", fault="late_duplicate").write("c1.0", 4, "c", "b")
    assert lost(history) == (3, 0, 1)


def test_reported_held_but_nothing_was_written():
    history = History().claim("c0", 1.5, "c0.0-1", applied=False).acquire("c0.0", 1, 2)
    # it emptied the row, another wrote it, and it wrote it itself, but later
    history.claim("c0", 1.4, "__empty__").claim("c1", 1.6, "c1.0-1").claim("c0", 2.5, "c0.0-1")
    assert judge.unwritten(history.events) == 1
    for owner in ("c0.0", "c0.0-12"):
        history = History().claim("c0", 1.5, owner).acquire("c0.0", 1, 2)
        history.acquire("c1.0", 1, 3, "fail").acquire("c2.0", 1, 3, "info", error="E")
        assert judge.unwritten(history.events) == 0


def test_errors_by_class():
    history = History().acquire("c0.0", 1, 2, "info", error="E").acquire("c1.0", 3, 4, "fail")
    history.acquire("c0.0", 3, 4, "info", error="E")
    assert judge.errors(history.events) == {"E": 2}


@pytest.mark.parametrize(
    ("history", "calls"),
    [
        pytest.param(
            History().believe("c1.0", 1, 5).acquire("c0.0", 1, 16, "fail"), 1, id="in vain"
        ),
        pytest.param(History().believe("c1.0", 1, 9).acquire("c0.0", 1, 16, "fail"), 0, id="held"),
        pytest.param(
            History().frozen("c0", 9, 10, "partition").acquire("c0.0", 1, 16, "fail"),
            0,
            id="cut off",
        ),
        pytest.param(History().acquire("c0.0", 1, 16, "ok"), 0, id="had it"),
        pytest.param(History().acquire("c0.0", 1, 5, "fail"), 0, id="gave up early"),
    ],
)
def test_timed_out_though_nobody_held(history, calls):
    assert len(judge.blocked(history.events, LEASE)) == calls


def test_longest_time_in_which_nobody_held():
    history = History().believe("c1.0", 1, 3).believe("c1.1", 8, 9).acquire("c0.0", 2, 10)
    assert judge.longest_idle(history.events) == pytest.approx(5.0)
    # who is away waits for nobody
    history = History().frozen("c0", 2.5, 9, "stop_client").acquire("c0.0", 2, 10)
    assert judge.longest_idle(history.events) == pytest.approx(1.0)
    assert judge.longest_idle(History().believe("c1.0", 1, 3).events) == 0


def test_take_over_counts_from_the_kill_to_another_client():
    history = killed().acquire("c0.1", 2.5, 3).gets("c1.0", 7)
    assert judge.takeovers(history.events) == [5.0]
    assert judge.takeovers(killed().events) == []


def test_newcomer_is_who_took_a_dead_ones_place_and_asks_for_the_first_time():
    history = killed().acquire("c0.1", 20, 21.5).acquire("c0.1", 22, 29)
    assert judge.newcomers(history.events) == [1.5]
    assert judge.newcomers(killed().acquire("c0.1", 20, 35, "fail").events) == []


def released(*, waits):
    history = History().acquire("c0.0", 0, 1)
    if waits:
        history.asks("c1.0", 1.5)
    return history.add(2, "release", "c0.0", phase="ok")


@pytest.mark.parametrize(
    ("history", "seconds"),
    [
        pytest.param(released(waits=True).gets("c1.0", 2.25), [0.25], id="to one who waited"),
        pytest.param(released(waits=False).acquire("c1.0", 2.1, 2.2), [], id="came later"),
        pytest.param(released(waits=False).acquire("c0.0", 2.1, 2.2), [], id="the same again"),
        pytest.param(
            released(waits=True)
            .acquire("c2.0", 2.1, 2.2, "fail")
            .killed("c2", 2.3)
            .gets("c1.0", 7),
            [],
            id="killed meanwhile",
        ),
    ],
)
def test_hand_overs(history, seconds):
    assert judge.hand_overs(history.events) == seconds


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


@pytest.mark.timeout(1800)
@pytest.mark.lengthy
def test_ours_under_attack(tmp_path):
    facts = PeerRun(PeerOptions(seed=1, seconds=5.0, lease=1.0), tmp_path)()
    found = judge.judge(read(tmp_path), facts["lease"])
    assert found["acquired"] > 0
    assert found["requests"] >= 2
    assert found["lost"]["acked"] > 0
    assert found["lost_guarded"]["acked"] > 0
    assert (found["unwritten"], found["overlaps"]) == (0, [])
    assert (found["lost_guarded"]["lost"], found["hung"], found["died"]) == (0, 0, 0)


@pytest.mark.timeout(1800)
@pytest.mark.lengthy
def test_our_holders_are_killed_in_the_calm(tmp_path):
    PeerRun(PeerOptions(seed=1, seconds=0, lease=1.0, faults=0.0, kills=1), tmp_path)()
    events = read(tmp_path)
    (taken_over,) = judge.takeovers(events)
    assert taken_over > 0
    assert judge.hand_overs(events)


@pytest.mark.timeout(1800)
@pytest.mark.lengthy
def test_newcomer_finds_our_dead_holders_lock_free(tmp_path):
    asked = PeerOptions(seed=1, seconds=0, lease=10.0, faults=0.0, kills=1, clients=1)
    PeerRun(asked, tmp_path)()
    (waited,) = judge.newcomers(read(tmp_path))
    assert waited < asked.lease
