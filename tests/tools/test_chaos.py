"""The trial: its judge on histories made by hand, and whole runs."""

import json
import shutil
import time

import pytest
from pynamodb.exceptions import PynamoDBException
from this_process import current_process

from dev.chaos import __main__ as command
from dev.chaos.history import SECOND, Recorder, figures, problems, read
from dev.chaos.sections import KEYS, ROWS
from dev.faultproxy import deny


class History:
    """Events as a run would leave them, a tenth of a second apart."""

    def __init__(self):
        self.events = []
        self.t = 0
        self.add("init", "run", lease=1.0)

    def add(self, op, proc, *, step=0.1, **more):
        self.t += int(step * SECOND)
        self.events.append({"t": self.t, "proc": proc, "op": op, **more})
        return self

    def call(self, op, proc, *, phase="ok", **more):
        return self.add(op, proc, phase="invoke", **more).add(op, proc, phase=phase, **more)

    def lock(self, op, proc, token, fence=0, **more):
        return self.call(
            op, proc, locks={"m0": {"token": token, "fence": fence}}, names=["m0"], **more
        )

    def acquires(self, proc, token, fence):
        return self.lock("acquire", proc, token, fence)

    def shares(self, proc, token, fence=2):
        locks = {"m0": {"token": token, "fence": fence, "shared": True}}
        return self.call("acquire", proc, locks=locks, names=["m0"])

    def releases(self, proc, token):
        return self.lock("release", proc, token)

    def writes(self, proc, token, read, value, **how):
        return self.lock("write", proc, token, read={"m0": read}, values={"m0": value}, **how)

    def believes(self, proc, token):
        since = self.t + SECOND // 20
        return self.add("held", proc, since=since, locks={"m0": {"token": token, "fence": 0}})

    def ends_with(self, value):
        return self.add("final", "run", values={"m0": value})

    def keep(self, folder):
        folder.mkdir()
        lines = "".join(json.dumps(event) + "\n" for event in self.events)
        (folder / "run.jsonl").write_text(lines)
        return folder


def holding():
    """c0 holds the lock and has written."""
    return History().acquires("c0.0t0", "a", 1).writes("c0.0t0", "a", "start/0", "v1")


def taken(history=None):
    """c1 has taken the lock from c0, which believed before."""
    return (history or holding()).believes("c0.0t0", "a").acquires("c1.0t0", "b", 2)


def broken():
    """Force has broken the claim of c0."""
    history = holding()
    return history.add("force", "run", key="m0", since=history.t + 1)


def forced():
    return broken().acquires("c1.0t0", "b", 2)


def shared():
    """c1 and c2 share the lock that c0 has released."""
    return holding().releases("c0.0t0", "a").shares("c1.0t0", "b").shares("c2.0t0", "c")


HISTORIES = {
    "two in turn": holding().releases("c0.0t0", "a").acquires("c1.0t0", "b", 2)
        .writes("c1.0t0", "b", "v1", "v2").releases("c1.0t0", "b").ends_with("v2"),
    "a lease that is over": taken().believes("c1.0t0", "b").writes("c1.0t0", "b", "v1", "v2"),
    "a refused write": taken().writes("c0.0t0", "a", "v1", "v2", phase="fail").ends_with("v1"),
    "a write of unknown outcome, applied": holding().writes("c0.0t0", "a", "v1", "v2", phase="info")
        .acquires("c1.0t0", "b", 2).ends_with("v2"),
    "a write of unknown outcome, not applied": holding().writes("c0.0t0", "a", "v1", "v2", phase="info")
        .acquires("c1.0t0", "b", 2).ends_with("v1"),
    "a writer that is killed": holding()
        .add("write", "c0.0t0", phase="invoke", locks={"m0": {"token": "a", "fence": 1}},
             values={"m0": "v2"}, read={"m0": "v1"})
        .acquires("c1.0t0", "b", 2).writes("c1.0t0", "b", "v2", "v3"),
    "a belief that force broke": forced().believes("c0.0t0", "a"),
    "a release of one that force broke": forced().releases("c0.0t0", "a"),
    "renewed in time": holding().lock("renew", "c0.0t0", "a"),
    "two share, one leaves, a third joins": shared().believes("c1.0t0", "b").believes("c2.0t0", "c")
        .releases("c1.0t0", "b").shares("c3.0t0", "d").believes("c2.0t0", "c").believes("c3.0t0", "d")
        .releases("c2.0t0", "c").releases("c3.0t0", "d").acquires("c0.0t0", "e", 3),
    "readers that force broke": shared().add("force", "run", key="m0", since=0).acquires("c0.0t0", "e", 3)
        .believes("c1.0t0", "b").believes("c2.0t0", "c"),
    "BAD a reader and a writer believe": shared().acquires("c0.0t0", "e", 3).believes("c1.0t0", "b"),
    "BAD a writer has the readers' fencing token": shared().acquires("c0.0t0", "e", 2),
    "BAD a reader has the writer's fencing token": taken().shares("c2.0t0", "c"),
    "BAD a reader joins after a writer":
        shared().acquires("c0.0t0", "e", 3).shares("c3.0t0", "d"),
    "BAD believes after it has left": shared().releases("c1.0t0", "b").believes("c1.0t0", "b"),
    "BAD two believe": taken().believes("c0.0t0", "a"),
    "BAD believes longer than its lease, after force":
        forced().add("end", "run", step=1.5).believes("c0.0t0", "a"),
    "BAD believes after its release": holding().releases("c0.0t0", "a").believes("c0.0t0", "a"),
    "BAD fencing token falls": holding().releases("c0.0t0", "a").acquires("c1.0t0", "b", 1),
    "BAD written without the lock": taken().writes("c0.0t0", "a", "v1", "v2"),
    "BAD written after force": broken().writes("c0.0t0", "a", "v1", "v2"),
    "BAD an update is lost": taken().writes("c1.0t0", "b", "start/0", "v2"),
    "BAD said to be applied, and is not": holding().ends_with("start/0"),
    "BAD said to be refused, and is applied":
        taken().writes("c0.0t0", "a", "v1", "v2", phase="fail").ends_with("v2"),
    "BAD an old write comes twice":
        holding().writes("c0.0t0", "a", "v1", "v2").releases("c0.0t0", "a").ends_with("v1"),
    "BAD a write of unknown outcome is applied after the next holder's":
        holding().writes("c0.0t0", "a", "v1", "v2", phase="info").acquires("c1.0t0", "b", 2)
        .writes("c1.0t0", "b", "v1", "v3").ends_with("v2"),
    "BAD renewed what another holds": taken().lock("renew", "c0.0t0", "a"),
    "BAD released what another holds": taken().releases("c0.0t0", "a"),
}  # fmt: skip


@pytest.mark.skipif(not shutil.which("go"), reason="no Go to run Porcupine with")
@pytest.mark.timeout(300)
def test_judge_finds_violations_and_no_others(tmp_path, capsys):
    places = {name: history.keep(tmp_path / name) for name, history in HISTORIES.items()}
    assert not command.judged([*places.values()])
    said = capsys.readouterr().out
    for name, place in places.items():
        bad = name.startswith("BAD")
        assert (f"{place}: m0: Illegal" in said, f"{place}: all keys" in said) == (bad, not bad), (
            name
        )
        assert (place / "m0.html").exists() is bad


@pytest.mark.parametrize("required", ["", "1"])
def test_without_go_nothing_is_judged(tmp_path, monkeypatch, capsys, required):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PYNAMODB_MUTEX_REQUIRE_TOOLS", required)
    assert command.judged([tmp_path]) is not bool(required)
    assert "NOT JUDGED" in capsys.readouterr().out


def test_report():
    served = [*KEYS, *ROWS, "c1.0t0"]
    history = History().add("start", "c0.0t0").add("start", "c1.0t0").acquires("c0.0t0", "a", 1)
    history.add("kill", "run", client="c0", killed="c0.0").add("quiet", "run")
    quiet = len(history.events)
    history.add("acquire", "c1.0t0", phase="invoke", names=served)
    history.add("acquire", "c1.0t0", phase="ok", locks=dict.fromkeys(served))
    assert problems(history.events) == []
    assert len(problems(history.events[:quiet])) == len(served)
    for what, told in (
        ({"op": "hung", "client": "c1"}, "c1 hung"),
        (
            {"op": "read", "typed": False, "error": "KeyError", "text": "x"},
            "read raised KeyError: x",
        ),
        ({"op": "fork", "held": True, "refused": ["a", "b"]}, "a forked child could use"),
        ({"op": "fork", "held": False, "refused": ["a"]}, "a forked child could use"),
    ):
        (found,) = problems([*history.events, {"t": 0, "proc": "c1.0t0", **what}])
        assert told in found
    assert "acquire: 2 (ok 2)" in figures(history.events)


def test_history_survives_a_line_cut_short(tmp_path):
    record = Recorder(tmp_path / "c0.jsonl", "c0")
    record("start", pid=1)
    record.close()
    with record.path.open("a") as file:
        file.write('{"t": 1, "pro')
    assert [event["op"] for event in read(tmp_path)] == ["start"]


def test_made_up_answer_has_the_date_of_its_own_second(scene):
    # a fault may stand for a whole run: the Date of its beginning would put a new process's server time back
    scene.proxy.next(deny())
    time.sleep(30)
    with pytest.raises(PynamoDBException):
        scene.mutex().acquire()
    store = current_process().store(scene.here)
    assert store.server_now(store.connection._now()) == pytest.approx(time.time(), abs=1.5)


@pytest.mark.timeout(1200)
@pytest.mark.lengthy
@pytest.mark.skipif(not shutil.which("go"), reason="no Go to run Porcupine with")
def test_run_of_a_broken_library_is_found_and_keeps_its_history(tmp_path, capsys):
    folder = tmp_path / "kept"
    asked = ["--seed=6", "--seconds=6", "--calm", "--break=counter-reset", f"--keep={folder}"]
    status = command.main(asked)
    said = capsys.readouterr().out
    assert status == 1, said
    assert "Illegal" in said
    assert list(folder.glob("*.html"))
