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
        self.rows = {}
        names = ("m0", "control-m0")
        self.add("init", "run", rows=[self.row("rows", n, last="start", count=0) for n in names])

    @staticmethod
    def row(table, key, **state):
        return {"table": table, "key": key, "ticks": state.get("count", 0), **state}

    def add(self, op, proc, *, step=0.1, **more):
        self.t += int(step * SECOND)
        self.events.append({"t": self.t, "proc": proc, "op": op, **more})

    def wire(self, client, kind, *rows, applied=True, fault=None, step=0.1, name="UpdateItem"):
        wall = WALL + (self.t + step * SECOND) / SECOND
        keys = [f"{row['table']}/{row['key']}" for row in rows] or ["locks/m0"]
        self.add(
            "wire", client, step=step, kind=kind, name=name, rows=list(rows), applied=applied,
            fault=fault, status=200, wall=wall, keys=keys, seq=len(self.events),
        )  # fmt: skip

    def claim(self, client, kind, token, version, *, ends=2.0, **how):
        end = None if ends is None else WALL + self.t / SECOND + ends
        state = {"token": token, "version": version}
        self.wire(client, kind, self.row("locks", "m0", expires_at=end, **state), **how)

    def reports(self, proc, op, phase, **more):
        self.add(op, proc, phase=phase, **more)

    def tenure(self, proc, token, fence, *writes, believes=True):
        """Take, write in turn (value, what was read, count), believe and release."""
        client, locks = proc.split(".")[0], {"m0": [token, fence]}
        self.reports(proc, "acquire", "invoke", names=["m0"], way="mutex")
        self.claim(client, "acquire", token, fence)
        self.reports(proc, "acquire", "ok", locks=locks, names=["m0"])
        since = self.t
        for value, read, count in writes:
            self.reports(proc, "write", "invoke", values={"m0": value})
            self.written(client, (token, fence), value, read, count)
            self.reports(proc, "write", "ok", values={"m0": value})
        if believes:
            self.add("belief", proc, locks=locks, since=since, until=self.t)
        self.reports(proc, "release", "invoke", locks=locks)
        self.claim(client, "release", token, fence, ends=None)
        self.reports(proc, "release", "ok", locks=locks)

    def written(self, client, lock, value, read, count):
        token, fence = lock
        state = {"last": value, "read": read, "count": count, "by": token, "fence": fence}
        self.wire(client, "TransactWriteItems", self.row("rows", "m0", **state))

    def found(self):
        return check(self.events, FACTS).found()


def two_tenures():
    history = History()
    history.tenure("c0.0", "a", 1, ("v1", "start", 1), ("v2", "v1", 2))
    history.tenure("c1.0", "b", 2, ("v3", "v2", 3))
    return history


def test_a_good_history_passes():
    history = two_tenures()
    final = {"table": "rows", "key": "m0", "last": "v3", "count": 3, "ticks": 3}
    history.add("final", "run", rows=[final])
    report = check(history.events, FACTS)
    assert report.violations == []
    assert report.checked["P1"] == 3
    assert any(line.startswith("P3  holds") for line in report.lines())


def test_runs_count_together():
    good, bad = check(two_tenures().events, FACTS), check(two_believers().events, FACTS)
    whole = in_all([good, bad])
    assert whole.found() == {"P4"}
    assert whole.checked["P3"] == good.checked["P3"] + bad.checked["P3"]


def test_figures_add_up():
    history = two_tenures()
    starts = [{"t": 0, "op": "start", "proc": proc} for proc in ("c0.0", "c0.0t1", "c1.0")]
    history.events += starts
    figures = check(history.events, FACTS | {"seconds": 5.0}).figures
    twice = in_all([check(history.events, FACTS | {"seconds": 5.0})] * 2).figures
    assert str(figures["acquires"]) == "2: ok 2"
    assert str(twice["acquires"]) == "4: ok 4"
    assert twice["seconds of attack"] == 10.0
    # whose of a client's threads a request is cannot be seen
    assert figures["requests per acquire, free"] == [1]
    assert twice["requests per acquire, free"] == [1, 1]


def test_p1_a_write_without_the_lock():
    history = two_tenures()
    history.written("c0", ("a", 1), "v4", "v3", 4)
    assert history.found() == {"P1"}


def test_p1_tenures_interleave():
    history = History()
    history.claim("c0", "acquire", "a", 1)
    history.written("c0", ("a", 1), "v1", "start", 1)
    history.claim("c1", "hand_over", "b", 2)
    history.written("c1", ("b", 2), "v2", "v1", 2)
    history.written("c0", ("a", 1), "v3", "v2", 3)
    texts = [violation.text for violation in check(history.events, FACTS).of("P1")]
    assert any("after another's write" in text for text in texts)


def test_p2_made_from_what_was_overwritten():
    history = two_tenures()
    history.tenure("c0.0", "c", 3, ("v4", "v2", 4))
    assert history.found() == {"P2"}


@pytest.mark.parametrize(
    ("reported", "value", "found"),
    [
        pytest.param("ok", "v9", {"P2"}, id="as applied, and it is not there"),
        pytest.param("fail", "v2", {"P2"}, id="as not applied, and it is there"),
        pytest.param("info", "v2", set(), id="as unknown, and it is there"),
        pytest.param("info", "v9", set(), id="as unknown, and it is not there"),
    ],
)
def test_p2_what_a_write_was_reported_as(reported, value, found):
    history = two_tenures()
    history.reports("c0.0", "write", reported, values={"m0": value})
    assert history.found() == found


def test_p2_applied_twice():
    history = History()
    history.tenure("c0.0", "a", 1, ("v1", "start", 1), ("v2", "v1", 2), ("v1", "start", 1))
    assert history.found() == {"P2"}


def test_p2_another_end_than_the_last_seen():
    history = two_tenures()
    final = {"table": "rows", "key": "m0", "last": "v2", "count": 2, "ticks": 2}
    history.add("final", "run", rows=[final])
    assert history.found() == {"P2"}


@pytest.mark.parametrize(("deleted", "token"), [(False, 7), (True, 1)])
def test_p3_tokens_grow_also_over_a_deletion(deleted, token):
    history = History()
    history.tenure("c0.0", "a", 7)
    if deleted:
        history.wire("reaper", "DeleteItem", {"table": "locks", "key": "m0"}, name="DeleteItem")
    history.tenure("c1.0", "b", token)
    assert history.found() == {"P3"}


@pytest.mark.parametrize(
    ("next_claim", "how", "found"),
    [
        pytest.param(("c1", "acquire", "b", 2), {}, {"P4"}, id="live, and taken"),
        pytest.param(("c1", "acquire", "b", 2), {"step": 2.5}, set(), id="dead, and taken"),
        pytest.param(("c0", "PutItem", "a", 1), {"ends": 1.0}, {"P4"}, id="its end moves back"),
    ],
)
def test_p4_what_follows_on_a_claim(next_claim, how, found):
    history = History()
    history.claim("c0", "acquire", "a", 1, ends=2.0)
    history.claim(*next_claim, **how)
    assert history.found() == found


def test_p4_revived():
    history = two_tenures()
    history.claim("c1", "renew", "b", 2)
    assert history.found() == {"P4"}


def two_believers(*, answered=False, **resumed):
    history = History()
    history.claim("c0", "acquire", "a", 1, ends=1.0)
    if resumed:
        history.add("resume", "run", client="c0", **resumed)
    if answered:
        history.wire("c0", "renew")
    history.claim("c1", "acquire", "b", 2, step=1.5)
    for proc, token, fence, back in (("c0.0", "a", 1, 1.4), ("c1.0", "b", 2, 0.2)):
        since = history.t - int(back * SECOND)
        history.add("belief", proc, locks={"m0": [token, fence]}, since=since, until=history.t)
    return history


def test_p4_only_a_resumed_client_may_believe_with_another_and_until_an_answer():
    assert two_believers().found() == {"P4"}
    assert two_believers(still=False).found() == {"P4"}
    assert two_believers(still=True).found() == set()
    assert two_believers(still=True, answered=True).found() == {"P4"}


def test_p4_force_breaks_a_belief():
    history = History()
    history.claim("c0", "acquire", "a", 1)
    since = history.t
    history.wire("operator", "GetItem", name="GetItem", applied=True)
    history.claim("operator", "force", "forced-x", 2, ends=None)
    history.claim("c1", "acquire", "b", 3)
    for proc, token in (("c0.0", "a"), ("c1.0", "b")):
        history.add("belief", proc, locks={"m0": [token, 1]}, since=since, until=history.t)
    assert history.found() == set()


def controls(*steps):
    history = two_tenures()
    for value, read in steps:
        history.reports("c0.0", "control", "invoke", values={"m0": value})
        history.wire("c0", "PutItem", history.row("rows", "control-m0", last=value, read=read))
        history.reports("c0.0", "control", "ok", values={"m0": value})
    for _ in range(15):
        history.add("stop_client", "run", client="c0")
    return history


def test_p5_the_control_must_lose_something():
    assert controls(("t1", "start"), ("t2", "t1")).found() == {"P5"}
    assert controls(("t1", "start"), ("t2", "start")).found() == set()


def test_p5_counts_over_several_runs():
    few = controls(("t1", "start"), ("t2", "t1"))
    few.events = few.events[:-7]  # eight stopped clients are left
    one = check(few.events, FACTS)
    assert "P5" not in one.found()
    assert in_all([one, one]).found() == {"P5"}
    lost = controls(("t1", "start"), ("t2", "start"))
    lost.events = lost.events[:-7]
    both = in_all([one, check(lost.events, FACTS)])
    assert both.found() == set()
    assert both.checked["P5"] == 1


def killed(takes_after):
    history = History()
    history.claim("c0", "acquire", "a", 1)
    history.add("kill", "run", client="c0", last=True)
    history.reports("c1.0", "acquire", "invoke", names=["m0"])
    history.claim("c1", "acquire", "b", 2, step=takes_after)
    history.reports("c1.0", "acquire", "ok", names=["m0"], locks={"m0": ["b", 2]})
    return history


def test_p6_a_dead_holders_lock():
    assert killed(4.0).found() == set()
    assert killed(8.0).found() == {"P6"}


def test_p6_a_thread_that_came_later_waited_for_nothing():
    history = killed(8.0)
    asked = next(event for event in history.events if event.get("phase") == "invoke")
    last = history.events[-1]
    last["proc"] = "c1.0t1"
    late = asked | {"proc": "c1.0t1", "t": last["t"] - SECOND // 2}
    history.events.append(late)
    assert history.found() == set()


@pytest.mark.parametrize("other", ["c1.0", "c0.0t1"], ids=["client", "thread"])
def test_p6_everybody_is_served_in_the_end(other):
    history = History()
    for proc in ("c0.0", other):
        history.add("start", proc)
    history.add("quiet", "run")
    history.tenure("c0.0", "a", 1)
    history.add("stop", "run")
    texts = [violation.text for violation in check(history.events, FACTS).violations]
    assert texts == [f"{other} was not served in the quiet at the end"]


def test_p6_a_free_key_is_waited_for():
    history = two_tenures()
    history.reports("c0.0", "acquire", "invoke", names=["m0"])
    for _ in range(3):
        history.wire("c0", "GetItem", name="GetItem")
    history.reports("c0.0", "acquire", "fail", names=["m0"])
    assert history.found() == {"P6"}


def test_p7_reported_as_held_and_not():
    history = two_tenures()
    history.reports("c0.0", "acquire", "invoke", names=["m0"])
    history.reports("c0.0", "acquire", "ok", names=["m0"], locks={"m0": ["c", 3]})
    assert history.found() == {"P7"}


def test_p7_reported_as_anothers_and_its_own():
    history = two_tenures()
    history.reports("c0.0", "acquire", "invoke", names=["m0"])
    history.claim("c0", "acquire", "c", 3, fault="drop_answer")
    history.reports("c0.0", "acquire", "fail", names=["m0"])
    assert history.found() == {"P7"}


def test_p7_reported_as_anothers_and_it_is_another_threads():
    history = History()
    for proc in ("c0.0", "c0.0t1"):
        history.reports(proc, "acquire", "invoke", names=["m0"])
    history.claim("c0", "acquire", "a", 1)
    history.reports("c0.0", "acquire", "ok", names=["m0"], locks={"m0": ["a", 1]})
    history.reports("c0.0t1", "acquire", "fail", names=["m0"])
    assert history.found() == set()


def taken_again(*, told_before, fault=None):
    """A client's acquire is applied, the lease passes, another has its turn, and the acquire is repeated."""
    history = History()
    history.reports("c0.0", "acquire", "invoke", names=["m0"])
    history.claim("c0", "acquire", "a", 1, ends=0.5, fault="drop_answer")
    if told_before:
        history.reports("c0.0", "acquire", "ok", names=["m0"], locks={"m0": ["a", 1]})
    history.add("start", "c1.0", step=1.0)
    history.tenure("c1.0", "b", 2)
    history.claim("c0", "acquire", "a", 3, fault=fault)
    return history


def test_p7_a_repeated_acquire_may_take_the_lock_again():
    history = taken_again(told_before=False)
    history.reports("c0.0", "acquire", "ok", names=["m0"], locks={"m0": ["a", 3]})
    report = check(history.events, FACTS)
    assert report.violations == []
    assert report.figures["locks taken again by a repeated acquire"] == 1
    assert report.figures["orphaned claims"] == 0


def test_p7_a_token_comes_again_after_its_acquire_was_answered():
    assert taken_again(told_before=True).found() == {"P7"}
    assert taken_again(told_before=True, fault="late").found() == set()


def test_p7_anothers_claim_is_released():
    history = two_tenures()
    history.claim("c0", "acquire", "c", 3)
    history.claim("c1", "release", "c", 3, ends=None)
    assert history.found() == {"P7"}


def test_p7_reported_as_released_and_not():
    history = History()
    history.claim("c0", "acquire", "a", 1)
    history.reports("c0.0", "release", "ok", locks={"m0": ["a", 1]})
    assert history.found() == {"P7"}


def test_p7_a_token_comes_twice():
    history = two_tenures()
    history.claim("c0", "acquire", "a", 3, fault="late_duplicate")
    assert history.found() == set()
    history.claim("c1", "acquire", "b", 4, step=3.0)
    assert history.found() == {"P7"}


def test_p7_force_breaks_what_it_has_not_seen():
    history = History()
    history.wire("operator", "GetItem", name="GetItem")
    history.claim("c0", "acquire", "a", 1)
    history.claim("operator", "force", "forced-x", 2, ends=None)
    assert history.found() == {"P7"}


def test_p7_errors_are_typed():
    history = two_tenures()
    history.reports("c0.0", "read", "fail", error="KeyError", typed=False, text="'x'")
    assert history.found() == {"P7"}


def test_p7_a_fork_holds_nothing():
    history = two_tenures()
    history.add("fork", "c0.0-fork", held=False, refused={"release": "x", "ensure": "x"})
    assert history.found() == set()
    history.add("fork", "c0.0-fork", held=True, refused={"release": "x", "ensure": "x"})
    assert history.found() == {"P7"}


def test_p8_taken_before_it_was_asked_for():
    history = History()
    history.claim("c0", "acquire", "a", 1)
    history.reports("c0.0", "acquire", "invoke", names=["m0"])
    history.reports("c0.0", "acquire", "ok", names=["m0"], locks={"m0": ["a", 1]})
    assert history.found() == {"P8"}


def test_overlaps_are_found_by_a_sweep():
    a, b, c = (Belief(*span, "", 0) for span in ((0, 10, "a"), (5, 7, "b"), (10, 12, "c")))
    assert overlaps([c, a, b]) == [(a, b)]
