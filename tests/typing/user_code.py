"""What users write, under ``mypy --strict``: the public API with the types that it has.

Never run. What must not type-check stands under a ``type: ignore`` with its code, and an ignore
that nothing needs is an error.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import PynamoDBException
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite
from typing_extensions import assert_type

from pynamodb_mutex import (
    InvalidKeyError,
    LockItem,
    Loss,
    Mutex,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
    MutexTimeoutError,
    RowLockedError,
)
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
    from collections.abc import Callable, Iterator


class Account(Model):
    class Meta:
        table_name = "accounts"

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)


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
    )
    assert_type(mutex, Mutex)
    Mutex.for_key("a", max_hold=None, owner=None, on_lost=None, data=None, timeout=-1)


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
    assert_type(lock.key, str)
    assert_type(lock.owner, str)
    assert_type(lock.retention, float)
    assert_type(team.team, str)
    assert_type(LockItem.get("a"), LockItem)
    assert_type(TeamLock.get("a"), TeamLock)


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
    except (MutexAlreadyHeldError, RowLockedError, InvalidKeyError) as error:
        base: MutexError = error
        print(base)
    except PynamoDBException as error:
        print(error.cause_response_code)


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
        assert_type(held, LockItem)
    expire("a", TeamLock)


def what_must_not_type_check(mutex: Mutex) -> None:
    Mutex.for_key(7)  # type: ignore[arg-type]
    Mutex.for_key("a", LockItem)  # type: ignore[call-arg]
    Mutex.for_key("a", leese=3)  # type: ignore[call-arg]
    Mutex.for_key("a", lease="30")  # type: ignore[arg-type]
    Mutex.for_key("a", timeout=None)  # type: ignore[arg-type]
    Mutex.for_key("a", model=Account)  # type: ignore[arg-type]
    Mutex.for_key("a", poll=0.1)  # type: ignore[arg-type]
    Mutex.for_key("a", on_lost=nightly)  # type: ignore[arg-type]
    Mutex.for_key("a", reentrant="yes")  # type: ignore[arg-type]
    mutex.acquire(timeout="1")  # type: ignore[arg-type]
    mutex.renew("1")  # type: ignore[arg-type]
    mutex.held = True  # type: ignore[misc]
    mutex.fencing_token = 7  # type: ignore[misc]
    mutex.unlock()  # type: ignore[attr-defined]
    LockItem.force_release(7)  # type: ignore[arg-type]
    expire("a", Account)  # type: ignore[arg-type]
    LockItem.create_table("yes")  # type: ignore[arg-type]
    mutex.loss = Loss.TAKEN  # type: ignore[misc]
    MutexLostError(loss="taken")  # type: ignore[arg-type]
