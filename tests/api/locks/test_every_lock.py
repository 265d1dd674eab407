"""What all locks have in common: one key, several, any of several, a semaphore, rows."""

import copy
import gc
import inspect
import math
import pickle
import threading
import time
from contextlib import ExitStack, nullcontext
from functools import partial

import pytest
from operations_by_hand import waiting
from row_models import Account, Ledger
from this_process import forget_everything

from pynamodb_mutex import LockItem, Loss, Mutex, Semaphore, exceptions
from pynamodb_mutex._lock.runtime.clock import local_clock
from pynamodb_mutex.testing import held_elsewhere


class Kind:
    """A kind of lock: `make` returns one, which holds all of `several` keys of a model, or one of the keys."""

    def __init__(self, make, model, *keys, several=False):
        self.make = partial(make, poll=(0.02, 0.1))
        self.model, self.keys, self.several = model, keys, several
        self.is_of_rows = model is not LockItem
        self.is_alternative = not several and len(keys) > 1

    def singles(self):
        """Return a lock of each key alone."""
        return [(self.model.locked if self.is_of_rows else Mutex.for_key)(key) for key in self.keys]

    def is_free(self):
        """Return whether nobody holds any of the keys."""
        return not any(lock.locked() for lock in self.singles())

    def force(self):
        """Force the release of the last of the keys that are held; return the key of that lock."""
        return next(lock.key for lock in reversed(self.singles()) if lock.force_release())

    def held_elsewhere(self, **options):
        """Let others hold the last of several keys, or each of the alternatives."""
        stack = ExitStack()
        for key in self.keys[-1:] if self.several else self.keys:
            stack.enter_context(held_elsewhere(key, model=self.model, **options))
        return stack


PERMITS = [f"s#permit-{number}" for number in (1, 2)]
KINDS = {
    "one lock": Kind(partial(Mutex.for_key, "a"), LockItem, "a"),
    "several": Kind(partial(Mutex.for_keys, ["b", "c"]), LockItem, "b", "c", several=True),
    "any of": Kind(partial(Mutex.any_of, ["d", "e"]), LockItem, "d", "e"),
    "semaphore": Kind(partial(Semaphore.for_key, "s", permits=2), LockItem, *PERMITS),
    "row": Kind(partial(Account.locked, "a"), Account, "a"),
    "row and lock table": Kind(partial(Ledger.locked, "a"), Ledger, "a"),
    "rows": Kind(partial(Account.locked_all, ["b", "c"]), Account, "b", "c", several=True),
    "rows and lock table": Kind(
        partial(Ledger.locked_all, ["b", "c"]), Ledger, "b", "c", several=True
    ),
}


@pytest.fixture(params=KINDS)
def kind(table, accounts, ledger, request):
    """Each kind of lock in turn, in fresh tables with the rows a, b and c."""
    for model in (accounts, ledger):
        for name in "bc":
            model(name).save()
    return KINDS[request.param]


def assert_released(lock, kind):
    assert (lock.held, lock.remaining, lock.lost) == (False, 0.0, False)
    assert lock.deadline == -math.inf
    assert "not held" in repr(lock)
    assert kind.is_free()


def test_lock_before_while_and_after_it_is_held(kind, sent):
    lock = kind.make(lease=20, owner="me", timeout=5)

    def assert_refused(match):
        for name in ("release", "renew", "ensure_held", "transaction"):
            with pytest.raises(exceptions.MutexNotHeldError, match=f"{name}.* {match}") as caught:
                getattr(lock, name)()
            assert not isinstance(caught.value, exceptions.MutexLostError)
            assert caught.value.key in str(caught.value)

    sent.clear()
    assert (lock.held, lock.remaining, lock.lost, lock.loss) == (False, 0.0, False, None)
    assert "not held" in repr(lock)
    assert_refused("not held")
    with pytest.raises(exceptions.MutexNotHeldError, match="deadline"):
        _ = lock.deadline
    with pytest.raises(TypeError, match=r"\.held"):
        bool(lock)
    for copying in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled: make it where it is used"):
            copying(lock)
    assert sent == []
    with lock as entered:
        assert kind.is_of_rows or entered is lock
        sent.clear()
        assert (lock.held, lock.lost, lock.loss) == (True, False, None)
        assert 15 < lock.remaining <= 20
        assert 15 < lock.deadline - local_clock().now() <= 20
        assert "held, " in repr(lock)
        assert "left>" in repr(lock)
        for call in (lock.acquire, lock.__enter__, lambda: lock.acquire(blocking=False)):
            with pytest.raises(exceptions.MutexAlreadyHeldError) as caught:
                call()
            assert caught.value.owner == "me"
            keys = [single.key for single in kind.singles()]
            assert kind.is_alternative or caught.value.key in keys
        assert sent == []
        assert lock.held
        assert not kind.is_free()
        assert lock.locked() is not kind.is_alternative
    assert not lock.locked()
    assert_released(lock, kind)
    sent.clear()
    assert_refused("not held" if kind.several else "is not held: it was released")
    assert sent == []
    # as with threading.Lock
    assert lock.acquire(False, -1) is True
    lock.release()
    assert_released(lock, kind)


def test_timeout_that_does_not_fit_is_refused(kind, silence):
    lock = kind.make(timeout=5)
    for timeouts, blocking, error, match in (
        ((-2, -0.5, -1.0001, math.nan, math.inf, -math.inf), True, ValueError, "timeout"),
        ((0, 0.0, 1, 0.5, 3600), False, ValueError, "non-blocking"),
        ((True, False, "1", b"1", [1], 1j), True, TypeError, "timeout"),
    ):
        for timeout in timeouts:
            with pytest.raises(error, match=match):
                lock.acquire(blocking, timeout)


def test_lock_that_others_hold(kind, pool, sent):
    lock = kind.make(timeout=0.2)
    with kind.held_elsewhere(owner="job-7"):
        sent.clear()
        assert lock.acquire(timeout=0) is False
        assert lock.acquire(blocking=False) is False
        assert len(sent) <= 4
        for options, waits in (({"timeout": 0.4}, 0.4), ({}, 0.2)):
            began = time.monotonic()
            assert lock.acquire(**options) is False
            assert time.monotonic() - began == pytest.approx(waits)
        with (
            pytest.raises(exceptions.MutexTimeoutError, match="held by 'job-7' until") as caught,
            lock,
        ):
            pass
        error = caught.value
        assert (error.owner, error.key in str(error)) == ("job-7", True)
        assert error.expires_at.timestamp() > time.time()
        if kind.several:
            *others, held = kind.singles()
            assert error.key == held.key
            # none is taken unless all are
            assert not any(other.locked() for other in others)
        waiting = pool.submit(kind.make(timeout=0).acquire, timeout=-1)
        time.sleep(20)
        assert not waiting.done()
    assert waiting.result(60) is True


def test_lock_that_a_thread_holds_is_renewed_and_handed_on_at_release(kind, pool):
    lost = []
    lock = kind.make(on_lost=lost.append)
    # of alternatives the other one is held too
    with lock, kind.make() if kind.is_alternative else nullcontext():
        end = lock.deadline
        waiter = kind.make(timeout=0.2)
        failed = pool.submit(waiter.__enter__).exception(60)
        assert isinstance(failed, exceptions.MutexTimeoutError)
        waiting = pool.submit(waiter.acquire, timeout=200)
        time.sleep(100)
        assert not waiting.done()
        assert lock.held
        assert lock.deadline > end + 60
        released = time.monotonic()
    assert waiting.result(60)
    assert time.monotonic() - released <= 0.1
    # any thread may release it
    waiter.release()
    time.sleep(100)
    assert lost == []
    assert_released(lock, kind)


def test_threads_that_share_a_lock_exclude_each_other(kind, pool):
    lock = kind.make()
    most = len(kind.keys) if kind.is_alternative else 1
    inside, seen = [], []

    def work():
        for _ in range(4):
            with lock:
                inside.append(1)
                time.sleep(0.01)
                seen.append(len(inside))
                assert lock.held
                inside.pop()

    for done in [pool.submit(work) for _ in range(4)]:
        done.result(60)
    assert (len(seen), max(seen)) == (16, most)
    assert kind.is_free()


def outcome(call, *arguments):
    """Return what a call returns or, as text, the error that it raises."""
    try:
        return call(*arguments)
    except exceptions.MutexError as error:
        return repr(error)


def seen_of(lock):
    """Return what the calling thread sees of a lock, and of its members, and how it is refused to work under it."""
    values = ["held", "remaining", "deadline", "lost", "loss", "key", "permit", "data", "row"]
    values += ["token", "fencing_token", "fencing_tokens", "owner", "abandoned_by"]
    calls = [("release",), ("renew",), ("ensure_held",), ("transaction",), ("detach",)]
    calls += [("save_data", 1), ("__repr__",)]
    seen = [outcome(getattr, lock, name, None) for name in values]
    seen += [outcome(getattr(lock, name), *rest) for name, *rest in calls if hasattr(lock, name)]
    return seen, [seen_of(member) for member in getattr(lock, "_locks", ())]


def test_refused_thread_sees_nothing_of_what_another_holds(kind, pool, sent):
    lock, nothing = kind.make(timeout=0.2), seen_of(kind.make())
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with lock, kind.make() if kind.is_alternative else nullcontext():
            entered.set()
            leave.wait(60)
            return lock.held

    with lock:
        pass
    holding = pool.submit(hold)
    entered.wait(60)
    # its own, which it has released
    assert (lock.held, lock.lost, lock.deadline) == (False, False, -math.inf)
    # a helper of the holder has asked for nothing itself
    assert pool.submit(lambda: lock.held).result(60)
    attempt = waiting(lock)
    assert seen_of(lock) == nothing
    for refused, *arguments in (
        (attempt.interrupt,),
        (lock.acquire, False),
        (lock.acquire, True, 0.2),
        (lock.__enter__,),
    ):
        assert outcome(refused, *arguments) != True  # noqa: E712 - it is False, None or an error
        sent.clear()
        assert seen_of(lock) == nothing
        assert sent == []
    leave.set()
    assert holding.result(60)


def test_release_of_a_refused_thread_releases_nothing(kind, pool):
    lock = kind.make()

    def work():
        acquired = lock.acquire(timeout=0.2)
        try:
            assert lock.held is acquired
            time.sleep(1)
            assert lock.held is acquired
        finally:
            lock.release()

    working = [pool.submit(work) for _ in range(3)]
    errors = [error for each in working if (error := each.exception(60)) is not None]
    assert len(errors) == (1 if kind.is_alternative else 2)
    assert {type(error) for error in errors} == {exceptions.MutexNotHeldError}


def test_refused_thread_sees_nothing_of_what_it_has_lost(kind):
    lock = kind.make()
    with pytest.raises(exceptions.MutexLostError), lock:  # noqa: PT012 - the block is what is left
        kind.force()
        with kind.held_elsewhere():
            assert (lock.lost, lock.acquire(timeout=0)) == (True, False)
            assert seen_of(lock) == seen_of(kind.make())


def test_lock_keeps_nothing_of_threads_that_have_ended(kind):
    outer, inner = kind.make(reentrant=True), kind.make(reentrant=True, auto_renew=False)

    def come_and_go():
        with outer, inner:
            pass
        with kind.held_elsewhere():
            assert not inner.acquire(timeout=0)
        inner.acquire()  # and never release it

    for _ in range(3):
        thread = threading.Thread(target=come_and_go)
        thread.start()
        thread.join()
    gc.collect()
    locks = [outer, inner, *getattr(outer, "_locks", ()), *getattr(inner, "_locks", ())]
    assert [len(lock._acquired) for lock in locks] == [0] * len(locks)


@pytest.mark.parametrize("sharing", [True, False])
def test_reentrant_lock_is_entered_again_by_its_thread_alone(kind, pool, sent, sharing):
    outer = kind.make(reentrant=True)
    inner = outer if sharing else kind.make(reentrant=True)
    with outer:
        end = outer.deadline
        with inner:
            assert (inner.held, inner.deadline) == (True, end)
            assert inner.acquire(blocking=False)
            inner.release()
            assert inner.held
        assert outer.held
        # a decorated function enters it as well
        sent.clear()
        assert outer(lambda: 7)() == 7
        assert kind.is_alternative or sent == []
        if not kind.is_alternative:
            assert pool.submit(inner.acquire, blocking=False).result(60) is False
            # nor by its thread, if only one of the two is reentrant
            assert kind.make().acquire(blocking=False) is False
    assert_released(outer, kind)
    outer.acquire()
    inner.acquire()
    # the last that is released releases the lock
    outer.release()
    assert inner.held
    assert not kind.is_free()
    inner.release()
    assert_released(inner, kind)
    with pytest.raises(exceptions.MutexNotHeldError):
        outer.release()


@pytest.mark.parametrize("lost", [False, True])
def test_exception_of_the_body_passes_and_the_lock_is_released(kind, lost):
    lock = kind.make()
    with pytest.raises(KeyError, match="mine") as caught, lock:  # noqa: PT012 - the block is what is left
        if lost:
            kind.force()
        raise KeyError("mine")
    if lost and hasattr(caught.value, "add_note"):  # since Python 3.11
        assert "could not be released" in caught.value.__notes__[0]
    assert lock.lost == lost
    assert kind.is_free()


def test_loss_is_raised_at_the_end_of_the_block(kind):
    lock = kind.make()
    with pytest.raises(exceptions.MutexLostError) as caught, lock:  # noqa: PT012 - the block is what is left
        key = kind.force()
        # this process broke the claim itself, so it knows of the loss
        assert (lock.held, lock.lost, lock.loss) == (False, True, Loss.FORCED)
        assert lock.deadline == -math.inf
        assert Loss.FORCED.value in repr(lock)
        for call in (lock.ensure_held, lambda: lock.ensure_held(20), lock.transaction):
            with pytest.raises(exceptions.MutexLostError) as raised:
                call()
            assert (raised.value.loss, raised.value.key) == (Loss.FORCED, key)
    assert (caught.value.loss, caught.value.key) == (Loss.FORCED, key)
    assert kind.is_free()
    with lock:
        assert (lock.held, lock.lost) == (True, False)


def test_block_may_be_left_without_the_lock_or_by_another_thread(kind, pool):
    lock, other = kind.make(), kind.make(timeout=0)
    with lock:
        lock.release()
        assert not lock.held
        pool.submit(other.acquire).result(60)
    # leaving the block released nothing of the other's
    assert other.held
    other.release()
    with lock:
        lock.release()
        lock.acquire()
    assert_released(lock, kind)
    lock.__enter__()
    pool.submit(lock.__exit__, None, None, None).result(60)
    assert_released(lock, kind)
    lock.acquire()
    pool.submit(lock.release).result(60)
    assert_released(lock, kind)


def test_decorated_function_runs_under_a_lock_of_its_own(kind):
    decorating = kind.make(timeout=0.2)

    @decorating
    def add(a, b=1, *rest, c):
        """Add up."""
        assert not decorating.held
        assert not kind.is_free()
        if c is None:
            raise LookupError("mine")
        return a + b + sum(rest) + c

    assert (add(1, 2, 3, c=4), add(1, c=4)) == (10, 6)
    assert (add.__name__, add.__doc__) == ("add", "Add up.")
    assert list(inspect.signature(add).parameters) == ["a", "b", "rest", "c"]
    assert kind.is_free()
    with kind.held_elsewhere(), pytest.raises(exceptions.MutexTimeoutError):
        add(1, c=4)
    with pytest.raises(LookupError, match="mine"):
        add(1, c=None)
    assert kind.is_free()


@pytest.mark.parametrize("options", [{"auto_renew": False}, {"max_hold": 5}], ids=["", "max_hold"])
def test_lease_ends_at_the_deadline(kind, options):
    lost = []
    lock = kind.make(on_lost=lost.append, **options)
    lock.acquire()
    end = lock.deadline
    time.sleep(lock.remaining - 0.001)
    assert (lock.held, lock.deadline) == (True, pytest.approx(end, abs=0.01))
    time.sleep(0.002)
    assert (lock.held, lock.loss, lock.lost) == (False, Loss.EXPIRED, True)
    time.sleep(1)
    # of several it is given the lock of the first key
    assert lost == (lock._locks[:1] if kind.several else [lock])
    # nobody took it meanwhile
    lock.renew()
    assert (lock.held, lock.loss) == (True, None)
    lock.release()


def test_renewal_counts_from_now_and_never_shortens(kind, sent):
    lock = kind.make(lease=20, auto_renew=False)
    with lock:
        end = lock.deadline
        sent.clear()
        lock.ensure_held()
        lock.ensure_held(at_least=1)
        assert (sent, lock.deadline) == ([], end)
        time.sleep(5)
        lock.ensure_held(at_least=18)
        assert 18 < lock.remaining <= 20
        for _ in range(3):
            lock.renew()
        assert lock.remaining <= 20
        lock.renew(lease=100)
        assert 95 < lock.remaining <= 100
        lock.renew(lease=1)
        lock.renew()
        assert 95 < lock.remaining <= 100
        # of several as of one, each is a single request
        assert len(sent) == 7
        for refused, call, arguments in (
            (ValueError, lock.renew, [0, 0.4, -1, math.nan, math.inf, 10**10, 10**400]),
            (TypeError, lock.renew, ["1", True]),
            (ValueError, lock.ensure_held, [-1, 20, 31, math.nan, math.inf]),
            (TypeError, lock.ensure_held, ["1", True, None]),
        ):
            for argument in arguments:
                with pytest.raises(refused, match="lease" if call == lock.renew else "at_least"):
                    call(argument)
        assert len(sent) == 7


@pytest.mark.real("simulated", "embedded")
def test_waiter_is_interrupted_when_the_engine_is_left(kind, pool):
    with kind.held_elsewhere():
        waiting = pool.submit(kind.make(poll=(0.1, 0.1)).acquire)
        time.sleep(1)
        forget_everything()
        with pytest.raises(exceptions.MutexError, match="forked, or its engine left"):
            waiting.result(60)
