"""What users write, under ``mypy --strict``: the public API with the types that it has.

Never run. What must not type-check stands under a ``type: ignore`` with its code, and an ignore
that nothing needs is an error.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Coroutine, Iterator
from datetime import datetime, timedelta
from typing import Any

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import PynamoDBException
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite
from typing_extensions import Unpack, assert_type

import pynamodb_mutex.aio
from pynamodb_mutex import (
    LockItem,
    Loss,
    Mutex,
    Once,
    OnceItem,
    RowLock,
    Semaphore,
    once,
    signals,
    synchronized,
    testing,
)
from pynamodb_mutex.aio import (
    AsyncLockedRows,
    AsyncMutex,
    AsyncOnce,
    AsyncRowLock,
    AsyncRowLocks,
    AsyncSemaphore,
)
from pynamodb_mutex.groups import AnyOf, LockedRows, MutexGroup, RowLocks
from pynamodb_mutex.receivers import cloudwatch, opentelemetry, prometheus
from pynamodb_mutex.runs import Known, Run


class Account(Model):
    class Meta:
        table_name = "accounts"

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)


class Wallet(pynamodb_mutex.RowLockMixin, Account):
    class Meta:
        table_name = "wallets"


class Ledger(pynamodb_mutex.RowLockMixin, Account):
    lock_model = LockItem
    lock_enforced = False

    line = NumberAttribute(range_key=True)


class TeamLock(LockItem):
    class Meta(LockItem.Meta):
        table_name = "team-locks"
        region = "eu-central-1"

    retention = 86400.0

    team = UnicodeAttribute(default="core")


class PlainLock(LockItem):
    class Meta:
        table_name = "plain-locks"


def told(mutex: Mutex) -> None: ...
async def told_later(lock: AsyncRowLock[Wallet]) -> None: ...


def a_lock(mutex: Mutex, lock: RowLock[Wallet]) -> None:
    assert_type(Mutex.for_key("a"), Mutex)
    Mutex.for_key("a", model=TeamLock, lease=10, timeout=2.5, auto_renew=False, max_hold=3600)
    Mutex.for_key("a", owner="me", on_lost=lambda lost: print(lost.loss), data={"page": [1, None]})
    Mutex.for_key("a", poll=(0.1, 2), reentrant=True, delete_on_release=True, fair=True)
    Mutex.for_key("a", max_hold=None, owner=None, on_lost=None, data=None, timeout=-1)
    Mutex.for_key("a", timeout=None, on_lost=told).acquire(timeout=None)
    Mutex.for_key("a", on_danger=told)
    assert_type((mutex.acquire(), mutex.acquire(False)), tuple[bool, bool])
    assert_type(mutex.acquire(True, 3), bool)
    assert_type(mutex.acquire(blocking=True, timeout=0.5), bool)
    mutex.release()
    mutex.renew()
    mutex.renew(60)
    mutex.ensure_held()
    mutex.ensure_held(at_least=5)
    mutex.save_data(["any", {"json": None}])
    assert_type((mutex.force_release(), mutex.locked()), tuple[bool, bool])
    assert_type((mutex.key, mutex.owner, mutex.token), tuple[str, str, str])
    assert_type((mutex.held, mutex.lost, mutex.abandoned), tuple[bool, bool, bool])
    assert_type((mutex.remaining, mutex.deadline, mutex.data), tuple[float, float, Any])
    assert_type((mutex.fencing_token, mutex.position), tuple[int, int | None])
    assert_type((mutex.loss, mutex.abandoned_by), tuple[Loss | None, str | None])
    # handed over
    ticket = lock.detach(lease=3600)
    assert_type((mutex.detach(), ticket), tuple[str, str])
    with Mutex.attach(ticket, model=TeamLock, owner="me", lease=60) as attached:
        assert_type(attached, Mutex)
    assert_type(RowLock.attach(ticket, model=Wallet), RowLock[Wallet])
    with RowLock.attach(ticket, model=Wallet, timeout=3) as wallet:
        assert_type(wallet, Wallet)


def never_swallows(account: Account) -> int:
    # no "missing return": mypy knows that __exit__ does not swallow exceptions
    with Mutex.for_key("a") as mutex:
        assert_type(mutex, Mutex)
        transaction = mutex.transaction()
        assert_type(transaction, TransactWrite)
        with transaction as writing:
            assert_type(writing, TransactWrite)
            writing.save(account)
            writing.update(account, actions=[Account.balance.add(1)])
        return 1


def several_keys(mutex: Mutex) -> None:
    assert_type(Mutex.any_of(["a", "b"], model=TeamLock, lease=10, on_lost=told), AnyOf)
    with Mutex.any_of(f"printer-{number}" for number in range(3)) as printer:
        assert_type((printer, printer.keys), tuple[AnyOf, tuple[str, ...]])
        assert_type((printer.key, printer.fencing_token), tuple[str, int])
    with Semaphore.for_key("gpu", permits=2, timeout=3) as semaphore:
        assert_type((semaphore, semaphore.permit), tuple[Semaphore, int | None])
    group = Mutex.for_keys(["a", mutex], model=TeamLock, lease=10, timeout=5, on_lost=told)
    with group as entered:
        assert_type((group, entered), tuple[MutexGroup, MutexGroup])
    Mutex.for_keys(key for key in "ab")
    group.renew(60)
    group.ensure_held(at_least=5)
    group.release()
    assert_type((group.acquire(blocking=False), group.held), tuple[bool, bool])
    assert_type((group.locked(), group.lost, group.loss), tuple[bool, bool, Loss | None])
    assert_type((group.remaining, group.deadline), tuple[float, float])
    assert_type((group.keys, group.members), tuple[tuple[str, ...], tuple[Mutex, ...]])
    assert_type((group.fencing_tokens, group.transaction()), tuple[dict[str, int], TransactWrite])


def table(lock: LockItem, team: TeamLock) -> None:
    LockItem.create_table()
    LockItem.create_table(wait=False, TableClass="STANDARD", Tags=[{"Key": "a", "Value": "b"}])
    held: Iterator[LockItem] = LockItem.held()
    assert_type((next(TeamLock.held()), next(Wallet.held())), tuple[TeamLock, Wallet])
    assert_type((next(held), LockItem.force_release("a")), tuple[LockItem, bool])
    assert_type((LockItem.get("a"), TeamLock.get("a")), tuple[LockItem, TeamLock])
    assert_type((lock.is_held, lock.remaining, lock.retention), tuple[bool, float, float])
    assert_type((lock.expires, lock.since), tuple[datetime | None, datetime | None])
    assert_type((lock.key, lock.owner, team.team), tuple[str, str, str])
    assert_type(team.waiters, list[str])


@Mutex.for_key("nightly")
def nightly(day: str, *, dry: bool = False) -> int:
    return len(day) + dry


@synchronized("{day}", timeout=3, lease=10)
async def soon(day: str) -> int:
    return len(day)


class Till:
    @Mutex.for_key("till")
    def put(self, amount: float) -> Till:
        return self

    @synchronized("{self}-{order_id}")
    def ship(self, order_id: int) -> Till:
        return self


async def decorated(
    plain: Callable[[str], int], awaited: Callable[[str], Coroutine[Any, Any, int]]
) -> None:
    assert_type((nightly("monday"), nightly("monday", dry=True)), tuple[int, int])
    assert_type((Till().put(1.5), Till().ship(7)), tuple[Till, Till])
    before: Callable[[str], int] = Mutex.for_key("a")(plain)
    after: Coroutine[Any, Any, int] = soon("monday")
    assert_type((before("monday"), await after), tuple[int, int])
    assert_type(Mutex.for_keys(["nightly", "weekly"])(plain)("monday"), int)
    assert_type(Semaphore.for_key("gpu", permits=2)(plain)("monday"), int)
    assert_type(Wallet.locked("nightly")(plain)("monday"), int)
    assert_type(await AsyncMutex.for_key("a")(awaited)("monday"), int)
    assert_type(synchronized("{day}", model=TeamLock)(nightly)("monday", dry=True), int)
    assert_type(synchronized("{day}", on_locked="skip")(plain)("monday"), int | None)
    assert_type(await synchronized("{day}", on_locked="wait")(awaited)("monday"), int)
    assert_type(await synchronized("{day}", on_locked="skip")(awaited)("monday"), int | None)
    nightly()  # type: ignore[call-arg]
    nightly(1)  # type: ignore[arg-type]
    nightly("monday", wet=True)  # type: ignore[call-arg]
    Till().put("much")  # type: ignore[arg-type]
    Wallet.locked("nightly")(plain)(7)  # type: ignore[arg-type]
    synchronized("{day}")(plain)(7)  # type: ignore[arg-type]
    synchronized("{day}", on_locked="skip")(nightly)()  # type: ignore[call-arg]
    await soon(7)  # type: ignore[arg-type]
    await AsyncMutex.for_key("a")(awaited)(7)  # type: ignore[arg-type]
    AsyncMutex.for_key("a")(plain)  # type: ignore[arg-type]
    synchronized("a", on_locked="maybe")  # type: ignore[call-overload]
    synchronized("a", leese=3)  # type: ignore[call-overload]


def rows(wallets: list[Wallet]) -> None:
    with Wallet.locked("a") as wallet:
        assert_type((wallet, wallet.balance), tuple[Wallet, float])
        wallet.balance -= 1
        wallet.save()
        wallet.save(Wallet.balance > 0, add_version_condition=False)
        wallet.update(actions=[Wallet.balance.add(1)])
        wallet.update([Wallet.balance.add(1)], Wallet.balance > 0, unlock=True)
        wallet.save(unlock=True)
        wallet.delete()
        wallet.delete(Wallet.balance == 0)
        assert_type((wallet.is_locked, wallet.lock_owner), tuple[bool, str])
        assert_type((wallet.row_lock, wallet.row_lock.fencing_token), tuple[RowLock[Any], int])
    with Ledger.locked("a", 7, lease=10, timeout=0, owner="me", reentrant=True) as line:
        assert_type(line, Ledger)
    assert_type((Wallet.get("a"), next(Wallet.query("a"))), tuple[Wallet, Wallet])
    with Wallet.batch_write() as batch:
        batch.save(wallet)
    lock = Wallet.locked("a", on_lost=told)
    assert_type((lock, lock.row), tuple[RowLock[Wallet], Wallet])
    told(lock)
    # rows that need not exist
    assert_type(Mutex.for_row(Account, "a"), Mutex)
    assert_type(Mutex.for_row(Ledger, "a", 7, lock_model=TeamLock, data=[1]), Mutex)
    assert_type(rows := Wallet.locked_all(["a", "b"]), RowLocks[Wallet])
    assert_type(rows.locked(), bool)
    Ledger.locked_all([("a", 1), ("a", 2)], lease=10)
    Wallet.locked_all(["a", Ledger.locked("a", 1)])
    with Wallet.locked_all(wallet.name for wallet in wallets) as both:
        one, other = both
        assert_type((both, both[0], one), tuple[LockedRows[Wallet], Wallet, Wallet])
        with both.transaction(unlock=True) as transaction:
            assert_type(transaction.save(one), None)
            transaction.update(other, actions=[Wallet.balance.add(1)])


async def awaited() -> None:
    async with AsyncMutex.for_key("a", lease=5, cancel_on_loss=True, on_lost=print) as mutex:
        assert_type(mutex, AsyncMutex)
        assert_type((mutex.fencing_token, mutex.loss), tuple[int, Loss | None])
        async with mutex.transaction() as transaction:
            assert_type(transaction, TransactWrite)
    assert_type((await mutex.acquire(timeout=3), await mutex.locked()), tuple[bool, bool])
    await mutex.renew(lease=3)
    lock = Wallet.alocked("a", timeout=3, cancel_on_loss=True, on_lost=told_later)
    assert_type(lock, AsyncRowLock[Wallet])
    async with lock as wallet, lock.transaction() as transaction:
        assert_type((wallet, transaction), tuple[Wallet, TransactWrite])
    assert_type(await wallet.asave(unlock=True), dict[str, Any])
    await wallet.asave(Wallet.balance.exists(), add_version_condition=False)
    await wallet.aupdate([Wallet.balance.add(1)], unlock=True)
    await wallet.aupdate("balance")  # type: ignore[arg-type]
    await wallet.adelete(Wallet.balance == 0)
    await wallet.adelete(unlock=True)  # type: ignore[call-arg]
    assert_type(await wallet.arefresh(consistent_read=True), None)
    assert_type(Wallet.alocked_all(["a", "b"]), AsyncRowLocks[Wallet])
    async with Wallet.alocked_all(["a", "b"]) as wallets, wallets.transaction() as transaction:
        assert_type((wallets, wallets[0]), tuple[AsyncLockedRows[Wallet], Wallet])
        first, _ = wallets
        transaction.save(first)
    assert_type([row async for row in Wallet.aheld()], list[Wallet])
    assert_type([item async for item in TeamLock.aheld("a")], list[TeamLock])
    assert_type(await AsyncOnce.peek("a"), Known)
    assert_type((await AsyncOnce.forget("a"), await AsyncOnce.record("a", 1)), tuple[bool, bool])
    async with AsyncMutex.for_keys(["a", "b"], timeout=3) as group:
        assert_type(group, pynamodb_mutex.aio.AsyncMutexGroup)
        assert_type(group.fencing_tokens, dict[str, int])
    async with AsyncSemaphore.for_key("a", permits=3) as semaphore:
        assert_type((semaphore, semaphore.permit), tuple[AsyncSemaphore, int | None])
    async with AsyncMutex.any_of(["a", "b"]) as one:
        assert_type((one.key, ticket := await one.detach()), tuple[str, str])
    assert_type(await AsyncMutex.attach(ticket), AsyncMutex)
    assert_type(await AsyncRowLock.attach(ticket, model=Wallet), AsyncRowLock[Wallet])


def what_goes_wrong(
    timeout: pynamodb_mutex.MutexTimeoutError,
    lost: pynamodb_mutex.MutexLostError,
    invalid: pynamodb_mutex.InvalidRowError | pynamodb_mutex.InvalidKeyError,
    other: pynamodb_mutex.MutexAlreadyHeldError | pynamodb_mutex.RowLockedError,
    ticket: pynamodb_mutex.InvalidTicketError,
) -> None:
    assert_type((timeout.key, timeout.owner), tuple[str | None, str | None])
    assert_type(timeout.expires_at, datetime | None)
    assert_type((lost.loss, lost.applied), tuple[Loss, bool | None])
    if isinstance(invalid, pynamodb_mutex.InvalidRowError):
        assert_type(invalid.attribute, str | None)
    waited: TimeoutError = timeout
    not_held: pynamodb_mutex.MutexNotHeldError = lost
    errors: list[pynamodb_mutex.MutexError] = [invalid, other, ticket, timeout, not_held]
    cause: PynamoDBException = errors[0]
    print(waited, cause.cause_response_code, lost.loss is Loss.TAKEN, lost.loss.value)


def hears_a_loss(sender: type[Model], **event: Unpack[signals.Lost]) -> None:
    assert_type((event["loss"], event["held_for"]), tuple[Loss, float])
    assert_type(event["fencing_token"], int | None)
    event["waited"]  # type: ignore[typeddict-item]


@signals.acquired.connect
def hears_of_all(sender: type[Model], *, key: str, waited: float, **_: object) -> None:
    print(sender.__name__, key, waited)


def listening() -> None:
    signals.lost.connect(hears_a_loss, sender=TeamLock, weak=False)
    with signals.released.connected_to(hears_of_all, sender=TeamLock):
        pass
    signals.lost.disconnect(hears_a_loss)
    if signals.signals_available:
        receiver = prometheus.install(key_label=lambda key: key[:3])
        assert_type(receiver, prometheus.PrometheusReceiver)
        receiver.uninstall()
    with cloudwatch.install("Shop/Locks", stream=sys.stderr) as lines:
        assert_type(lines, cloudwatch.CloudWatchReceiver)
    with opentelemetry.install(tracer_provider=None) as spans:
        assert_type(spans, opentelemetry.OpenTelemetryReceiver)
    prometheus.install("registry")  # type: ignore[arg-type]
    cloudwatch.install(key_label=3)  # type: ignore[arg-type]


def in_tests() -> None:
    with testing.embedded_dynamodb(port=0) as engine, testing.use(engine) as used:
        assert_type((engine, used), tuple[testing.Engine, testing.Engine])
        assert_type(testing.environment(engine), dict[str, str])
    with testing.use(testing.Engine("external", "http://localhost:8000")) as external:
        assert_type(external.endpoint_url, str)
    with testing.FakeClock() as clock:
        assert_type(clock, testing.FakeClock)
        clock.advance(2.5)
    with testing.held_elsewhere("a", owner="cron", lease=5, model=TeamLock) as held:
        assert_type(held, TeamLock)
    testing.expire("a", TeamLock)


def wrong_with_keys(mutex: Mutex, asynchronous: AsyncMutex) -> None:
    Mutex.for_key(7)  # type: ignore[arg-type]
    Mutex.for_key("a", LockItem)  # type: ignore[call-arg]
    Mutex.for_key("a", leese=3)  # type: ignore[call-arg]
    Mutex.for_key("a", lease="30")  # type: ignore[arg-type]
    Mutex.for_key("a", model=Account)  # type: ignore[arg-type]
    Mutex.for_key("a", poll=0.1)  # type: ignore[arg-type]
    Mutex.for_key("a", on_lost=nightly)  # type: ignore[arg-type]
    Mutex.for_key("a", on_danger=nightly)  # type: ignore[arg-type]
    Mutex.for_key("a", reentrant="yes")  # type: ignore[arg-type]
    Mutex.for_key("a", fair="yes")  # type: ignore[arg-type]
    Mutex.for_keys(7)  # type: ignore[arg-type]
    Mutex.for_keys(["a"], leese=3)  # type: ignore[call-arg]
    Mutex.any_of([7])  # type: ignore[list-item]
    Mutex.any_of(["a"], leese=3)  # type: ignore[call-arg]
    Semaphore.for_key("gpu")  # type: ignore[call-arg]
    Semaphore.for_key("gpu", permits="2")  # type: ignore[arg-type]
    AsyncMutex.for_key("a", leese=3)  # type: ignore[call-arg]
    AsyncMutex.for_key("a", cancel_on_loss=3)  # type: ignore[arg-type]
    Mutex("a")  # type: ignore[arg-type]
    Semaphore("a", 3)  # type: ignore[arg-type]
    MutexGroup("a")  # type: ignore[arg-type]
    AsyncMutex("a")  # type: ignore[call-arg, arg-type]
    Mutex.attach(7)  # type: ignore[arg-type]
    RowLock.attach("ticket")  # type: ignore[call-arg]
    mutex.acquire(timeout="1")  # type: ignore[arg-type]
    mutex.renew("1")  # type: ignore[arg-type]
    mutex.unlock()  # type: ignore[attr-defined]
    mutex.deadline = 3.0  # type: ignore[misc]
    mutex.held = True  # type: ignore[misc]
    mutex.fencing_token = 7  # type: ignore[misc]
    mutex.loss = Loss.TAKEN  # type: ignore[misc]
    LockItem.force_release(7)  # type: ignore[arg-type]
    LockItem.create_table("yes")  # type: ignore[arg-type]
    pynamodb_mutex.MutexLostError(loss="taken")  # type: ignore[arg-type]
    with asynchronous:  # type: ignore[attr-defined]
        pass


def wrong_with_rows(wallet: Wallet, lock: RowLock[Wallet]) -> None:
    Wallet.locked()  # type: ignore[call-arg]
    Wallet.locked("a", leese=3)  # type: ignore[call-arg]
    Wallet.locked("a", lease="30")  # type: ignore[arg-type]
    Wallet.locked("a", on_lost=nightly)  # type: ignore[arg-type]
    Wallet.locked_all("a", lease="30")  # type: ignore[arg-type]
    Wallet.locked_all(7)  # type: ignore[arg-type]
    wallet.save(None, True)  # type: ignore[call-arg]
    wallet.save(unlock="yes")  # type: ignore[arg-type]
    wallet.delete(unlock=True)  # type: ignore[call-arg]
    wallet.update(Wallet.balance.add(1))  # type: ignore[arg-type]
    wallet.is_locked = True  # type: ignore[misc]
    wallet.row_lock = lock  # type: ignore[misc]
    lock.row = wallet  # type: ignore[misc]
    Account.locked("a")  # type: ignore[attr-defined]
    Mutex.for_row(Wallet)  # type: ignore[call-arg]
    Mutex.for_row("a", "a")  # type: ignore[arg-type]
    Mutex.for_row(Wallet, "a", lock_model=Wallet)  # type: ignore[arg-type]
    with lock as row:
        row.acquire()  # type: ignore[attr-defined]


class Results(OnceItem):
    class Meta:
        table_name = "results"


@once("nightly-{day}", keep=timedelta(days=2), payload="{dry}", timeout=0, on_abandoned="raise")
def report(day: str, *, dry: bool = False) -> int:
    return len(day) + dry


@once(lambda day: f"awaited-{day}", payload=lambda day: {"day": day}, model=Results)
async def awaited_report(day: str) -> str:
    return day


async def work_once() -> None:
    assert_type(report("monday", dry=True), int)
    assert_type(await awaited_report("monday"), str)
    one = Once.for_key("a", payload={"amount": 5}, keep=math.inf, lease=10, model=Results)
    assert_type(one.call(report, "monday", dry=True), int)
    with one as run:
        assert_type(run, Run)
        if not run.done:
            run.complete(5)
        with run.transaction(result=5) as transaction:
            assert_type(transaction, TransactWrite)
        assert_type(run.fencing_token, int)
        assert_type(run.abandoned_by, str | None)
    tasks = AsyncOnce.for_key("a")
    assert_type(await tasks.call(awaited_report, "monday"), str)
    async with tasks as began:
        await began.complete(5)
    assert_type(Once.peek("a", model=Results), Known)
    assert_type(Once.forget("a", force=True), bool)
    assert_type(Once.record("a", 5), bool)
    report(7)  # type: ignore[arg-type]
    one.call(report)  # type: ignore[call-arg]
    Once.for_key("a", fair=True)  # type: ignore[call-arg]
    Once.for_key("a", on_abandoned="skip")  # type: ignore[arg-type]
    once("a", keep=None)  # type: ignore[arg-type]
