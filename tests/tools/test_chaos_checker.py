"""The checker of the chaos harness, on histories made by hand."""

import pytest

from dev.chaos.beliefs import Belief, overlaps
from dev.chaos.checker import check
from dev.chaos.history import SECOND
from dev.chaos.verdicts import in_all

FACTS = {"lease": 1.5, "injector": True}
WALL = 1_000_000.0


class History:
    """Events as a run would leave them, a tenth of a second apart."""

    def __init__(self):
        self.events = []
        self.t = 0
        names = ("m0", "control-m0")
        self.add("init", "run", rows=[self.row("rows", n, last="start", count=0) for n in names])

    @staticmethod
    def row(table, key, **state):
        return {"table": table, "key": key, "ticks": state.get("count", 0), **state}

    def add(self, op, proc, *, step=0.1, **more):
        self.t += int(step * SECOND)
        self.events.append({"t": self.t, "proc": proc, "op": op, **more})
        return self

    # -- what DynamoDB has seen

    def wire(self, client, kind, *rows, applied=True, fault=None, step=0.1, name="UpdateItem"):
        wall = WALL + (self.t + step * SECOND) / SECOND
        keys = [f"{row['table']}/{row['key']}" for row in rows] or ["locks/m0"]
        return self.add(
            "wire", client, step=step, kind=kind, name=name, rows=list(rows), applied=applied,
            fault=fault, status=200, wall=wall, keys=keys, seq=len(self.events),
        )  # fmt: skip

    def reads(self, client):
        return self.wire(client, "GetItem", name="GetItem")

    def claim(self, client, kind, token, version, *, ends=2.0, **how):
        end = None if ends is None else WALL + self.t / SECOND + ends
        state = {"token": token, "version": version, "expires_at": end}
        return self.wire(client, kind, self.row("locks", "m0", **state), **how)

    def acquire(self, client, token, version, **how):
        return self.claim(client, "acquire", token, version, **how)

    def force(self, version):
        return self.claim("operator", "force", "forced-x", version, ends=None)

    def written(self, client, lock, value, read, count):
        token, fence = lock
        state = {"last": value, "read": read, "count": count, "by": token, "fence": fence}
        return self.wire(client, "TransactWriteItems", self.row("rows", "m0", **state))

    def final(self, value, count):
        row = {"table": "rows", "key": "m0", "last": value, "count": count, "ticks": count}
        return self.add("final", "run", rows=[row])

    # -- what the clients were answered, and what they believed

    def asks(self, proc, **how):
        return self.add("acquire", proc, phase="invoke", names=["m0"], way="mutex", **how)

    def holds(self, proc, token, fence):
        locks = {"m0": [token, fence]}
        return self.add("acquire", proc, phase="ok", locks=locks, names=["m0"])

    def refused(self, proc):
        return self.add("acquire", proc, phase="fail", names=["m0"])

    def released(self, proc, token, fence):
        return self.add("release", proc, phase="ok", locks={"m0": [token, fence]})

    def wrote(self, proc, phase, value):
        return self.add("write", proc, phase=phase, values={"m0": value})

    def believes(self, proc, token, fence, since):
        locks = {"m0": [token, fence]}
        return self.add("belief", proc, locks=locks, since=since, until=self.t)

    def tenure(self, proc, token, fence, *writes):
        """Acquire, write in turn (value, what was read, count), believe and release."""
        client = proc.split(".")[0]
        self.asks(proc).acquire(client, token, fence).holds(proc, token, fence)
        since = self.t
        for value, read, count in writes:
            self.written(client, (token, fence), value, read, count).wrote(proc, "ok", value)
        self.believes(proc, token, fence, since)
        self.claim(client, "release", token, fence, ends=None)
        return self.released(proc, token, fence)

    def found(self):
        return check(self.events, FACTS).found()


def two_tenures():
    history = History().tenure("c0.0", "a", 1, ("v1", "start", 1), ("v2", "v1", 2))
    return history.tenure("c1.0", "b", 2, ("v3", "v2", 3))


def two_believers(*, answered=False, **resumed):
    history = History().acquire("c0", "a", 1, ends=1.0)
    if resumed:
        history.add("resume", "run", client="c0", **resumed)
    if answered:
        history.wire("c0", "renew")
    history.acquire("c1", "b", 2, step=1.5)
    for proc, token, fence, back in (("c0.0", "a", 1, 1.4), ("c1.0", "b", 2, 0.2)):
        history.believes(proc, token, fence, history.t - int(back * SECOND))
    return history


def controls(*steps, stopped=15):
    """A row without a lock is written in turn (value, what was read), while clients are stopped."""
    history = two_tenures()
    for value, read in steps:
        history.wire("c0", "PutItem", history.row("rows", "control-m0", last=value, read=read))
        history.add("control", "c0.0", phase="ok", values={"m0": value})
    for _ in range(stopped):
        history.add("stop_client", "run", client="c0")
    return history


KEPT = ("t1", "start"), ("t2", "t1")
LOST = ("t1", "start"), ("t2", "start")


def killed():
    """A holder is killed, while another client waits."""
    history = History().acquire("c0", "a", 1).add("kill", "run", client="c0", last=True)
    return history.asks("c1.0")


def taken_again(*, told_before, fault=None):
    """A client's acquire is applied, the lease passes, another has its turn, and the acquire is repeated."""
    history = History().asks("c0.0").acquire("c0", "a", 1, ends=0.5, fault="drop_answer")
    if told_before:
        history.holds("c0.0", "a", 1)
    history.add("start", "c1.0", step=1.0).tenure("c1.0", "b", 2)
    return history.acquire("c0", "a", 3, fault=fault)


REFUSED = {"release": "x", "ensure": "x"}
CASES = {
    "P1 written without the lock": two_tenures().written("c0", ("a", 1), "v4", "v3", 4),
    "P2 made from what was overwritten": two_tenures().tenure("c0.0", "c", 3, ("v4", "v2", 4)),
    "P2 reported as applied, and it is not there": two_tenures().wrote("c0.0", "ok", "v9"),
    "P2 reported as not applied, and it is there": two_tenures().wrote("c0.0", "fail", "v2"),
    "none: reported as unknown, and it is there": two_tenures().wrote("c0.0", "info", "v2"),
    "none: reported as unknown, and it is not there": two_tenures().wrote("c0.0", "info", "v9"),
    "P2 applied twice":
        History().tenure("c0.0", "a", 1, ("v1", "start", 1), ("v2", "v1", 2), ("v1", "start", 1)),
    "P2 another end than the last seen": two_tenures().final("v2", 2),
    "P3 token falls": History().tenure("c0.0", "a", 7).tenure("c1.0", "b", 7),
    "P3 token falls over a deletion": History().tenure("c0.0", "a", 7)
        .wire("reaper", "DeleteItem", History.row("locks", "m0")).tenure("c1.0", "b", 1),
    "P4 live, and taken": History().acquire("c0", "a", 1).acquire("c1", "b", 2),
    "none: dead, and taken": History().acquire("c0", "a", 1).acquire("c1", "b", 2, step=2.5),
    "P4 its end moves back": History().acquire("c0", "a", 1).claim("c0", "PutItem", "a", 1, ends=1.0),
    "P4 revived": two_tenures().claim("c1", "renew", "b", 2),
    "P4 two believe": two_believers(),
    "P4 two believe, one resumed with a clock that ran on": two_believers(still=False),
    "none: two believe, one resumed with a clock that stood still": two_believers(still=True),
    "P4 two believe, one resumed and was answered": two_believers(still=True, answered=True),
    "none: a belief that is broken by force, and another one":
        History().acquire("c0", "a", 1).reads("operator").force(2).acquire("c1", "b", 3)
        .believes("c0.0", "a", 1, SECOND // 5).believes("c1.0", "b", 1, SECOND // 5),
    "P5 the control loses nothing": controls(*KEPT),
    "none: the control loses something": controls(*LOST),
    "none: the control loses nothing, and few were stopped": controls(*KEPT, stopped=8),
    "none: a dead holder's lock is taken":
        killed().acquire("c1", "b", 2, step=4.0).holds("c1.0", "b", 2),
    "P6 a dead holder's lock is taken late":
        killed().acquire("c1", "b", 2, step=8.0).holds("c1.0", "b", 2),
    "none: who came later waited for nothing": killed().asks("c1.0t1", step=7.5)
        .acquire("c1", "b", 2, step=0.5).holds("c1.0t1", "b", 2),
    "P6 a free key is waited for":
        two_tenures().asks("c0.0").reads("c0").reads("c0").reads("c0").refused("c0.0"),
    "P7 reported as held, and not": two_tenures().asks("c0.0").holds("c0.0", "c", 3),
    "P7 reported as another's, and its own": two_tenures().asks("c0.0")
        .acquire("c0", "c", 3, fault="drop_answer").refused("c0.0"),
    "none: reported as another's, and another thread's": History().asks("c0.0").asks("c0.0t1")
        .acquire("c0", "a", 1).holds("c0.0", "a", 1).refused("c0.0t1"),
    "P7 a token comes again after its acquire was answered": taken_again(told_before=True),
    "none: it comes again late": taken_again(told_before=True, fault="late"),
    "P7 another's claim is released": two_tenures().acquire("c0", "c", 3)
        .claim("c1", "release", "c", 3, ends=None),
    "P7 reported as released, and not": History().acquire("c0", "a", 1).released("c0.0", "a", 1),
    "none: a token comes twice, late": two_tenures().acquire("c0", "a", 3, fault="late_duplicate"),
    "P7 a token comes twice": two_tenures().acquire("c0", "a", 3, fault="late_duplicate")
        .acquire("c1", "b", 4, step=3.0),
    "P7 force breaks what it has not seen":
        History().reads("operator").acquire("c0", "a", 1).force(2),
    "P7 an error that is not typed": two_tenures()
        .add("read", "c0.0", phase="fail", error="KeyError", typed=False, text="'x'"),
    "none: a fork holds nothing": two_tenures().add("fork", "c0.0-fork", held=False, refused=REFUSED),
    "P7 a fork holds something": two_tenures().add("fork", "c0.0-fork", held=True, refused=REFUSED),
    "P8 taken before it was asked for":
        History().acquire("c0", "a", 1).asks("c0.0").holds("c0.0", "a", 1),
}  # fmt: skip
"""Histories, each called by the property that it violates."""


@pytest.mark.parametrize("name", CASES)
def test_violation_is_found(name):
    assert CASES[name].found() == (set() if name.startswith("none") else {name[:2]})


def test_good_history_passes():
    report = check(two_tenures().final("v3", 3).events, FACTS)
    assert report.violations == []
    assert report.checked["P1"] == 3
    assert any(line.startswith("P3  holds") for line in report.lines())


def test_p1_tenures_interleave():
    history = History().acquire("c0", "a", 1).written("c0", ("a", 1), "v1", "start", 1)
    history.claim("c1", "hand_over", "b", 2).written("c1", ("b", 2), "v2", "v1", 2)
    history.written("c0", ("a", 1), "v3", "v2", 3)
    texts = [violation.text for violation in check(history.events, FACTS).of("P1")]
    assert any("after another's write" in text for text in texts)


@pytest.mark.parametrize("other", ["c1.0", "c0.0t1"], ids=["client", "thread"])
def test_p6_everybody_is_served_in_the_end(other):
    history = History().add("start", "c0.0").add("start", other).add("quiet", "run")
    history.tenure("c0.0", "a", 1).add("stop", "run")
    texts = [violation.text for violation in check(history.events, FACTS).violations]
    assert texts == [f"{other} was not served in the quiet at the end"]


def test_p7_repeated_acquire_may_take_the_lock_again():
    report = check(taken_again(told_before=False).holds("c0.0", "a", 3).events, FACTS)
    assert report.violations == []
    assert report.figures["locks taken again by a repeated acquire"] == 1
    assert report.figures["orphaned claims"] == 0


def test_runs_count_together():
    good, bad = check(two_tenures().events, FACTS), check(two_believers().events, FACTS)
    whole = in_all([good, bad])
    assert whole.found() == {"P4"}
    assert whole.checked["P3"] == good.checked["P3"] + bad.checked["P3"]
    one, lost = (check(controls(*each, stopped=8).events, FACTS) for each in (KEPT, LOST))
    assert in_all([one, one]).found() == {"P5"}
    both = in_all([one, lost])
    assert (both.found(), both.checked["P5"]) == (set(), 1)


def test_figures_add_up():
    history = two_tenures()
    history.events += [{"t": 0, "op": "start", "proc": proc} for proc in ("c0.0", "c0.0t1", "c1.0")]
    report = check(history.events, FACTS | {"seconds": 5.0})
    figures, twice = report.figures, in_all([report, report]).figures
    assert str(figures["acquires"]) == "2: ok 2"
    assert str(twice["acquires"]) == "4: ok 4"
    assert twice["seconds of attack"] == 10.0
    # whose of a client's threads a request is cannot be seen
    assert figures["requests per acquire, free"] == [1]
    assert twice["requests per acquire, free"] == [1, 1]


def test_overlaps_are_found_by_a_sweep():
    a, b, c = (Belief(*span, "", 0) for span in ((0, 10, "a"), (5, 7, "b"), (10, 12, "c")))
    assert overlaps([c, a, b]) == [(a, b)]
