"""`once` by schedule: requests that are late or doubled, each with the broken variant that random schedules seldom show."""

from contextlib import nullcontext, suppress
from functools import partial

import pytest
from pynamodb.exceptions import PynamoDBException

from dev.broken import broken
from dev.simulation.judge import Watched
from dev.simulation.network import Fault, Network
from dev.simulation.once import Effect, Receipt
from dev.simulation.once_judge import Call, OnceJudge
from dev.simulation.schedule import create_tables
from dev.simulation.threads import installed
from dev.simulation.world import Process, World
from pynamodb_mutex import NotRecordedError, Once


class Scene:
    """Processes A and B, of which A's requests of one kind meet one fault."""

    def __init__(self):
        self.world = World(1)
        network = Network(self.world)
        network.latency = network.late_reads = 0.0
        create_tables(self.world.tables)
        self.got = {}

    def play(self, name, faults, **processes):
        """Run a function in each process, with faults of A's writes, first come first, and a library that is broken so."""
        left = iter(faults)
        self.world.network.script = lambda sent: (
            next(left, None)
            if str(sent.thread) == "a.client" and sent.operation != "GetItem"
            else None
        )
        with broken(name) if name else nullcontext(), installed(self.world):
            for process, call in processes.items():
                Process(self.world, process, rate=1.0).start_thread("client", partial(call, self))
            self.world.run(30.0)

    def sleep(self, seconds):
        self.world.sleep(seconds)

    @property
    def row(self):
        return self.world.tables.row("receipts", ("once#k",)) or {}


def of_key(**options):
    options = {"lease": 2.0, "auto_renew": False, "model": Receipt} | options
    return Once.for_key("k", **options)


def crash(world):
    (process,) = world.processes
    process.crash()


def fail(scene):
    raise ZeroDivisionError


def begin_and_fail(scene, after=0.0):
    scene.sleep(after)
    with suppress(ZeroDivisionError):
        of_key().call(fail, scene)


@pytest.mark.parametrize("name", [None, "record-by-token"])
def test_run_whose_late_begin_puts_its_token_back_after_another_run_records_nothing(name):
    def a(scene):
        with suppress(NotRecordedError), of_key() as run:
            scene.sleep(7)
            scene.got["result"] = run.complete("a")

    scene = Scene()
    # A begins at 0 s, and its lease ends. B runs and fails at 5 s. At 6 s A's claim stands again, with a higher version.
    scene.play(name, [Fault("duplicated", 6.0)], a=a, b=partial(begin_and_fail, after=5.0))
    assert ("done_until" in scene.row) is (name is not None)
    assert ("result" in scene.got) is (name is not None)


@pytest.mark.parametrize("name", [None, "record-without-claim"])
def test_late_transaction_of_a_run_that_has_failed_is_not_applied(name):
    def a(scene):
        with (
            suppress(PynamoDBException),
            of_key(lease=10.0) as run,
            run.transaction(result="a") as transaction,
        ):
            transaction.update(Effect("k"), actions=[Effect.count.add(1)])

    scene = Scene()
    # The first attempt arrives at 8 s. The second one is refused for good, so that the run is released at 3 s.
    scene.play(name, [None, Fault("late", 8.0), Fault("denied")], a=a)
    effect = scene.world.tables.row("effects", ("k",))
    assert (effect is not None) is ("done_until" in scene.row)
    assert (effect is not None) is (name is not None)


@pytest.mark.parametrize("name", [None, "begins-again"])
def test_late_copy_of_a_begin_makes_no_claim_after_its_run_has_failed(name):
    scene = Scene()
    # the next call would wait for a lease of nobody
    scene.play(name, [Fault("duplicated", 3.0)], a=begin_and_fail)
    assert ("expires_at" in scene.row) is (name is not None)


@pytest.mark.parametrize("name", [None, "unknown-ended-by-ttl"])
def test_row_of_a_run_that_died_after_a_renewal_has_no_ttl(name):
    def a(scene):
        with of_key(on_abandoned="raise", auto_renew=True):
            scene.sleep(30)

    scene = Scene()
    scene.world.after(6.0, partial(crash, scene.world))
    scene.play(name, [], a=a)
    # with one nobody would have to decide any more, once the row is deleted
    assert "unknown" in scene.row
    assert ("ttl" in scene.row) is (name is not None)


@pytest.mark.parametrize("name", [None, "ended-result-kept"])
def test_begin_removes_the_result_that_has_ended(name):
    def a(scene):
        of_key(keep=0.5).call(str)
        scene.sleep(5)
        with suppress(ZeroDivisionError), of_key():
            scene.got |= scene.row
            fail(scene)

    scene = Scene()
    scene.play(name, [], a=a)
    assert ({"result", "done_until"} <= scene.got.keys()) is (name is not None)


@pytest.mark.parametrize("works_for", [1.0, 2.5])
def test_record_without_an_answer_is_unknown_also_if_the_lease_ends_meanwhile_or_before(works_for):
    def a(scene):
        def work():
            scene.sleep(works_for)
            return "a"

        with pytest.raises(NotRecordedError) as caught:
            of_key().call(work)
        scene.got["applied"] = caught.value.applied

    scene = Scene()
    lost = Fault("lost_request", 3.0)
    scene.play(None, [None, Fault("late", 8.0), *[lost] * 100], a=a)
    assert scene.got["applied"] is None
    assert "done_until" in scene.row


def test_result_that_was_forgotten_is_not_given_to_a_call_that_began_later():
    """A record's answer is lost, the result is forgotten, and another thread calls, before the repeat shows the record."""

    def a(scene):
        with of_key(lease=30.0) as run:
            run.complete("a")

    def b(scene):
        scene.sleep(1.5)
        assert Once.forget("k", model=Receipt)
        with of_key(lease=30.0) as run:
            scene.sleep(10)
            run.complete("b")

    def later(scene):
        scene.sleep(3)
        scene.got["later"] = of_key().call(str)

    scene = Scene()
    starts = partial(later, scene)
    scene.world.after(0.0, lambda: scene.world.processes[0].start_thread("later", starts))
    scene.play(None, [None, Fault("lost_answer", 5.0)], a=a, b=b)
    assert scene.got["later"] == "b"


def test_judge_grants_a_process_the_drift_since_its_last_answer_with_a_date():
    """The result has ended, and the library cannot know that after two hours without such an answer."""

    def a(scene):
        Once.peek("k", model=Receipt)
        scene.sleep(7200 * 0.99)
        scene.world.network.script = lambda _: Fault("undated")
        call = Call(judge, scene.world.running.process, "a", "once#k")
        scene.got["a"] = of_key(timeout=0).call(str)
        call.got(scene.got["a"])

    def b(scene):
        scene.sleep(7100)
        call = Call(judge, scene.world.running.process, "b", "once#k")
        call.keep, call.values = 0.5, [["done", "b"]]
        of_key(owner="b", keep=0.5).call(lambda: ("done", "b"))

    scene = Scene()
    judge = OnceJudge(scene.world, {"receipts": Watched("")})
    with installed(scene.world):
        Process(scene.world, "a", rate=0.99).start_thread("client", partial(a, scene))
        Process(scene.world, "b", rate=1.0).start_thread("client", partial(b, scene))
        scene.world.run(7300)
    assert scene.got["a"] == ["done", "b"]
