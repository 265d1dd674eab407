"""What users write, under ``mypy --strict``: the public API with the types that it has.

Never run. What must not type-check stands under a ``type: ignore`` with its code, and an ignore
that nothing needs is an error.
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import PynamoDBException
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite
from typing_extensions import Unpack, assert_type

from pynamodb_mutex import (
    InvalidKeyError,
    InvalidRowError,
    InvalidTicketError,
    LockItem,
    Loss,
    Mutex,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
    MutexTimeoutError,
    RowLock,
    RowLockedError,
    RowLockMixin,
    Semaphore,
    signals,
    synchronized,
)
from pynamodb_mutex.aio import (
    AsyncMutex,
    AsyncMutexGroup,
    AsyncRowLock,
    AsyncSemaphore,
    locked,
    locked_all,
)
from pynamodb_mutex.groups import AnyOf, LockedRows, MutexGroup, RowLocks
from pynamodb_mutex.receivers import cloudwatch, opentelemetry, prometheus
from pynamodb_mutex.testing import (
    Engine,
    FakeClock,
    dynamodb_local,
    embedded_dynamodb,
    environment,
    expire,
    held_elsewhere,
    use,
    why_no_dynamodb_local,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator


class Account(Model):
    class Meta:
        table_name = "accounts"

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)


class Wallet(RowLockMixin, Model):
    class Meta:
        table_name = "wallets"

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)


class Ledger(RowLockMixin, Model):
    class Meta:
        table_name = "ledgers"

    lock_model = LockItem
    lock_enforced = False

    name = UnicodeAttribute(hash_key=True)
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


def options() -> None:
    assert_type(Mutex.for_key("a"), Mutex)
    mutex = Mutex.for_key(
        "a",
        model=TeamLock,
        lease=10,
        timeout=2.5,
        auto_renew=False,
        max_hold=3600,
        owner="me",
        on_lost=lambda lost: print(lost.loss),
        data={"page": [1, None]},
        poll=(0.1, 2),
        reentrant=True,
        delete_on_release=True,
        fair=True,
    )
    assert_type(mutex, Mutex)
    assert_type(mutex.position, "int | None")
    assert_type(TeamLock.get("a").waiters, "list[str]")
    Mutex.for_key("a", max_hold=None, owner=None, on_lost=None, data=None, timeout=-1)
    Mutex.for_key("a", timeout=None).acquire(timeout=None)


def told(mutex: Mutex) -> None:
    print(mutex.key)


def as_a_lock(mutex: Mutex) -> None:
    Mutex.for_key("a", on_lost=told)
    assert_type(mutex.acquire(), bool)
    assert_type(mutex.acquire(False), bool)
    assert_type(mutex.acquire(True, 3), bool)
    assert_type(mutex.acquire(blocking=True, timeout=0.5), bool)
    mutex.release()
    mutex.renew()
    mutex.renew(60)
    mutex.ensure_held()
    mutex.ensure_held(at_least=5)
    mutex.save_data(["any", {"json": None}])
    assert_type(mutex.force_release(), bool)
    assert_type(mutex.locked(), bool)


def what_it_says(mutex: Mutex) -> None:
    assert_type(mutex.key, str)
    assert_type(mutex.held, bool)
    assert_type(mutex.remaining, float)
    assert_type(mutex.deadline, float)
    assert_type(mutex.lost, bool)
    assert_type(mutex.loss, Loss | None)
    assert_type(mutex.token, str)
    assert_type(mutex.fencing_token, int)
    assert_type(mutex.owner, str)
    assert_type(mutex.abandoned, bool)
    assert_type(mutex.abandoned_by, str | None)
    assert_type(mutex.data, Any)


def as_a_context_manager(account: Account) -> None:
    with Mutex.for_key("a") as mutex:
        assert_type(mutex, Mutex)
        transaction = mutex.transaction()
        assert_type(transaction, TransactWrite)
        with transaction as writing:
            assert_type(writing, TransactWrite)
            writing.save(account)
            writing.update(account, actions=[Account.balance.add(1)])


def never_swallows() -> int:
    # no "missing return": mypy knows that __exit__ does not swallow exceptions
    with Mutex.for_key("a"):
        return 1


@Mutex.for_key("nightly")
def nightly(day: str, *, dry: bool = False) -> int:
    return len(day) + dry


def whichever_is_free() -> None:
    assert_type(Mutex.any_of(["a", "b"], model=TeamLock, lease=10, on_lost=told), AnyOf)
    with Mutex.any_of(f"printer-{number}" for number in range(3)) as mutex:
        assert_type(mutex, AnyOf)
        assert_type(mutex.key, str)
        assert_type(mutex.keys, tuple[str, ...])
        assert_type(mutex.fencing_token, int)
    with Semaphore.for_key("gpu", permits=2, timeout=3) as semaphore:
        assert_type(semaphore, Semaphore)
        assert_type(semaphore.permit, int | None)
    Mutex.any_of([7])  # type: ignore[list-item]
    Mutex.any_of(["a"], leese=3)  # type: ignore[call-arg]
    Semaphore.for_key("gpu")  # type: ignore[call-arg]
    Semaphore.for_key("gpu", permits="2")  # type: ignore[arg-type]


@Semaphore.for_key("gpu", permits=2)
def trained(epochs: int) -> str:
    return str(epochs)


class Till:
    @Mutex.for_key("till")
    def put(self, amount: float) -> Till:
        return self


def as_a_decorator() -> None:
    assert_type(nightly("monday"), int)
    assert_type(nightly("monday", dry=True), int)
    assert_type(Till().put(1.5), Till)
    nightly()  # type: ignore[call-arg]
    nightly(1)  # type: ignore[arg-type]
    nightly("monday", wet=True)  # type: ignore[call-arg]
    Till().put("much")  # type: ignore[arg-type]


def decorated_before(function: Callable[[int], str]) -> Callable[[int], str]:
    return Mutex.for_key("a")(function)


@synchronized("order-{order_id}", timeout=3, lease=10)
def ship(order_id: int, *, express: bool = False) -> str:
    return str(order_id) + str(express)


@synchronized("order-{order_id}", on_locked="skip")
def ship_once(order_id: int) -> str:
    return str(order_id)


@synchronized("order-{order_id}", on_locked="wait", model=TeamLock)
async def ship_soon(order_id: int) -> str:
    return str(order_id)


@synchronized("order-{order_id}", on_locked="skip")
async def ship_soon_once(order_id: int) -> str:
    return str(order_id)


class Orders:
    @synchronized("{self}-{order_id}")
    def ship(self, order_id: int) -> Orders:
        return self


async def by_arguments() -> None:
    assert_type(ship(7), str)
    assert_type(ship(7, express=True), str)
    assert_type(ship_once(7), str | None)
    soon: Coroutine[Any, Any, str] = ship_soon(7)
    assert_type(await soon, str)
    assert_type(await ship_soon_once(7), str | None)
    assert_type(Orders().ship(7), Orders)
    ship("seven")  # type: ignore[arg-type]
    ship_once()  # type: ignore[call-arg]
    await ship_soon("seven")  # type: ignore[arg-type]
    synchronized("a", on_locked="maybe")  # type: ignore[call-overload]
    synchronized("a", leese=3)  # type: ignore[call-overload]


def handed_over(mutex: Mutex, lock: RowLock[Wallet]) -> None:
    assert_type(mutex.detach(), str)
    ticket = lock.detach(lease=3600)
    with Mutex.attach(ticket, model=TeamLock, owner="me", lease=60) as attached:
        assert_type(attached, Mutex)
    assert_type(RowLock.attach(ticket, model=Wallet), RowLock[Wallet])
    with RowLock.attach(ticket, model=Wallet, timeout=3) as wallet:
        assert_type(wallet, Wallet)
    Mutex.attach(7)  # type: ignore[arg-type]
    RowLock.attach(ticket)  # type: ignore[call-arg]
    mutex.deadline = 3.0  # type: ignore[misc]


def table() -> None:
    LockItem.create_table()
    LockItem.create_table(wait=False, TableClass="STANDARD", Tags=[{"Key": "a", "Value": "b"}])
    assert_type(LockItem.force_release("a"), bool)
    for item in LockItem.held():
        assert_type(item, LockItem)
    held: Iterator[LockItem] = LockItem.held()
    print(held)


def item(lock: LockItem, team: TeamLock) -> None:
    assert_type(lock.is_held, bool)
    assert_type(lock.remaining, float)
    assert_type(lock.expires, datetime | None)
    assert_type(lock.since, datetime | None)
    assert_type(lock.key, str)
    assert_type(lock.owner, str)
    assert_type(lock.retention, float)
    assert_type(team.team, str)
    assert_type(LockItem.get("a"), LockItem)
    assert_type(TeamLock.get("a"), TeamLock)


def rows() -> None:
    with Wallet.locked("a") as wallet:
        assert_type(wallet, Wallet)
        assert_type(wallet.balance, float)
        wallet.balance -= 1
        wallet.save()
        wallet.save(Wallet.balance > 0, add_version_condition=False)
        wallet.update(actions=[Wallet.balance.add(1)])
        wallet.update([Wallet.balance.add(1)], Wallet.balance > 0, unlock=True)
        wallet.save(unlock=True)
        wallet.delete()
        wallet.delete(Wallet.balance == 0)
        assert_type(wallet.is_locked, bool)
        assert_type(wallet.row_lock, RowLock[Any])
        assert_type(wallet.row_lock.fencing_token, int)
        assert_type(wallet.lock_owner, str)
    with Ledger.locked("a", 7, lease=10, timeout=0, owner="me", reentrant=True) as line:
        assert_type(line, Ledger)
    assert_type(Wallet.get("a"), Wallet)
    for found in Wallet.query("a"):
        assert_type(found, Wallet)
    with Wallet.batch_write() as batch:
        batch.save(wallet)


def row_lock(lock: RowLock[Wallet]) -> None:
    assert_type(Wallet.locked("a"), RowLock[Wallet])
    assert_type(lock.row, Wallet)
    Wallet.locked("a", on_lost=told)
    mutex: Mutex = lock
    print(mutex)


def rows_together(wallets: list[Wallet]) -> None:
    assert_type(Wallet.locked_all(["a", "b"]), RowLocks[Wallet])
    Ledger.locked_all([("a", 1), ("a", 2)], lease=10)
    Wallet.locked_all(["a", Ledger.locked("a", 1)])
    with Wallet.locked_all(wallet.name for wallet in wallets) as locked:
        assert_type(locked, LockedRows[Wallet])
        assert_type(locked[0], Wallet)
        one, other = locked
        assert_type(one, Wallet)
        with locked.transaction(unlock=True) as transaction:
            assert_type(transaction.save(one), None)
            transaction.update(other, actions=[Wallet.balance.add(1)])


def keys_together(mutex: Mutex) -> None:
    group = Mutex.for_keys(["a", mutex], model=TeamLock, lease=10, timeout=5, on_lost=told)
    assert_type(group, MutexGroup)
    Mutex.for_keys(key for key in "ab")
    assert_type(group.acquire(blocking=False), bool)
    group.renew(60)
    group.ensure_held(at_least=5)
    group.release()
    with group as entered:
        assert_type(entered, MutexGroup)
    assert_type(group.held, bool)
    assert_type(group.remaining, float)
    assert_type(group.deadline, float)
    assert_type(group.lost, bool)
    assert_type(group.loss, Loss | None)
    assert_type(group.keys, tuple[str, ...])
    assert_type(group.members, tuple[Mutex, ...])
    assert_type(group.fencing_tokens, dict[str, int])
    assert_type(group.locked(), bool)
    assert_type(group.transaction(), TransactWrite)
    assert_type(under_two_keys("monday"), int)
    Mutex.for_keys(7)  # type: ignore[arg-type]
    Mutex.for_keys(["a"], leese=3)  # type: ignore[call-arg]


@Mutex.for_keys(["nightly", "weekly"])
def under_two_keys(day: str) -> int:
    return len(day)


@Wallet.locked("nightly")
def under_a_row(day: str) -> int:
    return len(day)


def rows_that_need_not_exist() -> None:
    assert_type(Mutex.for_row(Account, "a"), Mutex)
    assert_type(Mutex.for_row(Ledger, "a", 7, lock_model=TeamLock, data=[1]), Mutex)
    assert_type(under_a_row("monday"), int)


def what_goes_wrong(mutex: Mutex) -> None:
    try:
        with mutex:
            pass
    except MutexTimeoutError as timeout:
        assert_type(timeout.key, str | None)
        assert_type(timeout.owner, str | None)
        assert_type(timeout.expires_at, float | None)
        waited: TimeoutError = timeout
        print(waited)
    except MutexLostError as lost:
        assert_type(lost.loss, Loss)
        assert_type(lost.applied, bool | None)
        not_held: MutexNotHeldError = lost
        print(not_held, lost.loss is Loss.TAKEN, lost.loss.value)
    except InvalidRowError as invalid:
        assert_type(invalid.attribute, str | None)
    except (
        MutexAlreadyHeldError,
        RowLockedError,
        InvalidKeyError,
        InvalidTicketError,
    ) as error:
        base: MutexError = error
        print(base)
    except PynamoDBException as error:
        print(error.cause_response_code)


async def awaited() -> None:
    async with AsyncMutex.for_key("a", lease=5, cancel_on_loss=True, on_lost=print) as mutex:
        assert_type(mutex, AsyncMutex)
        assert_type(mutex.fencing_token, int)
        assert_type(mutex.loss, Loss | None)
        async with mutex.transaction() as transaction:
            assert_type(transaction, TransactWrite)
    assert_type(await mutex.acquire(timeout=3), bool)
    assert_type(await mutex.locked(), bool)
    await mutex.renew(lease=3)
    async with locked(Wallet, "a", timeout=3) as wallet:
        assert_type(wallet, Wallet)
    async with locked_all(Wallet, ["a", "b"]) as wallets:
        assert_type(wallets, LockedRows[Wallet])
    async with AsyncMutex.for_keys(["a", "b"], timeout=3) as group:
        assert_type(group, AsyncMutexGroup)
        assert_type(group.fencing_tokens, dict[str, int])
    async with AsyncSemaphore.for_key("a", permits=3) as semaphore:
        assert_type(semaphore, AsyncSemaphore)
        assert_type(semaphore.permit, int | None)
    async with AsyncMutex.any_of(["a", "b"]) as one:
        assert_type(one.key, str)
        ticket = await one.detach()
    assert_type(ticket, str)
    assert_type(await AsyncMutex.attach(ticket), AsyncMutex)
    assert_type(await AsyncRowLock.attach(ticket, model=Wallet), AsyncRowLock[Wallet])


@AsyncMutex.for_key("a")
async def awaited_nightly(number: int) -> str:
    return str(number)


async def what_must_not_type_check_of_tasks(mutex: AsyncMutex) -> None:
    assert_type(await awaited_nightly(7), str)
    AsyncMutex.for_key("a", leese=3)  # type: ignore[call-arg]
    AsyncMutex.for_key("a", cancel_on_loss=3)  # type: ignore[arg-type]
    AsyncMutex.for_key("a")(nightly)  # type: ignore[arg-type]
    await awaited_nightly("7")  # type: ignore[arg-type]
    with mutex:  # type: ignore[attr-defined]
        pass


def hears_a_loss(sender: type[Model], **event: Unpack[signals.Lost]) -> None:
    assert_type(event["loss"], Loss)
    assert_type(event["fencing_token"], int | None)
    assert_type(event["held_for"], float)
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
    with embedded_dynamodb(port=0) as engine, use(engine) as used:
        assert_type(engine, Engine)
        assert_type(used, Engine)
        assert_type(environment(engine), dict[str, str])
    with dynamodb_local() as local:
        assert_type(local.endpoint_url, str)
    assert_type(why_no_dynamodb_local(), str | None)
    with FakeClock() as clock:
        assert_type(clock, FakeClock)
        clock.advance(2.5)
    with held_elsewhere("a", owner="cron", lease=5, model=TeamLock) as held:
        assert_type(held, TeamLock)
    expire("a", TeamLock)


def what_must_not_type_check(mutex: Mutex) -> None:
    Mutex.for_key(7)  # type: ignore[arg-type]
    Mutex.for_key("a", LockItem)  # type: ignore[call-arg]
    Mutex.for_key("a", leese=3)  # type: ignore[call-arg]
    Mutex.for_key("a", lease="30")  # type: ignore[arg-type]
    Mutex("a")  # type: ignore[arg-type]
    Semaphore("a", 3)  # type: ignore[arg-type]
    MutexGroup("a")  # type: ignore[arg-type]
    AsyncMutex("a")  # type: ignore[call-arg, arg-type]
    Mutex.for_key("a", model=Account)  # type: ignore[arg-type]
    Mutex.for_key("a", poll=0.1)  # type: ignore[arg-type]
    Mutex.for_key("a", on_lost=nightly)  # type: ignore[arg-type]
    Mutex.for_key("a", reentrant="yes")  # type: ignore[arg-type]
    Mutex.for_key("a", fair="yes")  # type: ignore[arg-type]
    mutex.acquire(timeout="1")  # type: ignore[arg-type]
    mutex.renew("1")  # type: ignore[arg-type]
    mutex.held = True  # type: ignore[misc]
    mutex.fencing_token = 7  # type: ignore[misc]
    mutex.unlock()  # type: ignore[attr-defined]
    LockItem.force_release(7)  # type: ignore[arg-type]
    LockItem.create_table("yes")  # type: ignore[arg-type]
    mutex.loss = Loss.TAKEN  # type: ignore[misc]
    MutexLostError(loss="taken")  # type: ignore[arg-type]


def what_must_not_type_check_of_rows(wallet: Wallet, lock: RowLock[Wallet]) -> None:
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
    under_a_row(7)  # type: ignore[arg-type]
    with lock as row:
        row.acquire()  # type: ignore[attr-defined]
