"""A process that adds its numbers to shared rows, and keeps a journal of what it was told.

    python teller.py TABLE ENDPOINT JOURNAL SEED FIRST_NUMBER

Runs until it is killed. The journal has a line for each number: ``try`` before a write of it was sent,
``ok`` or ``no`` once it was told applied or not applied; one without either is of unknown outcome.
``twin`` stands for a number that was added to a row which nothing guards.
"""

from __future__ import annotations

import itertools
import random
import sys
import time

from pynamodb.attributes import (
    NumberAttribute,
    NumberSetAttribute,
    UnicodeAttribute,
    VersionAttribute,
)
from pynamodb.exceptions import PynamoDBException
from pynamodb.models import Model

from pynamodb_mutex import MutexLostError, MutexTimeoutError, RowLockMixin

ROWS = ("a", "b", "c")
LEASE = 1.0


def models(table: str, endpoint: str) -> tuple[type[Model], type[Model]]:
    """Return the model of the shared rows, and that of rows that nothing guards."""

    class Account(RowLockMixin, Model):
        class Meta:
            table_name = table
            host = endpoint
            billing_mode = "PAY_PER_REQUEST"

        name = UnicodeAttribute(hash_key=True)
        numbers = NumberSetAttribute(default=set)
        count = NumberAttribute(default=0)
        revision = VersionAttribute()

    class Twin(Model):
        class Meta:
            table_name = table
            host = endpoint

        name = UnicodeAttribute(hash_key=True)
        numbers = NumberSetAttribute(default=set)

    return Account, Twin


def write(row: Model, number: int, way: int) -> None:
    """Add a number to a locked row, which had been read before, in one of four ways."""
    account = type(row)
    numbers, count = row.numbers | {number}, row.count + 1
    if way == 0:
        row.update(
            [account.numbers.set(numbers), account.count.set(count)], add_version_condition=False
        )
        return
    row.numbers, row.count = numbers, count
    if way == 1:
        row.save(add_version_condition=False)
    elif way == 2:
        row.save(add_version_condition=False, unlock=True)
    else:
        with row.row_lock.transaction() as transaction:
            transaction.save(row)


def main(table: str, endpoint: str, journal: str, seed: str, first: str) -> None:
    account, twin = models(table, endpoint)
    chance = random.Random(int(seed))
    with open(journal, "a", buffering=1) as log:  # noqa: PTH123 - it stays open until the end
        numbers = itertools.count(int(first))
        for number in numbers:
            pause = chance.choice([0, 0, 0.002, 0.01, 0.15])
            told = True
            try:
                lock = account.locked(
                    chance.choice(ROWS), lease=LEASE, timeout=20, poll=(0.01, 0.1)
                )
                with lock as row:
                    for number in itertools.islice(numbers, chance.randrange(1, 4)):  # noqa: PLW2901 - it goes on
                        time.sleep(pause)
                        told = False
                        log.write(f"try {number}\n")
                        write(row, number, way=chance.randrange(4))
                        told = True
                        log.write(f"ok {number}\n")
                        if not row.is_locked:
                            break
            except MutexLostError as error:
                if not told and error.applied is False:
                    log.write(f"no {number}\n")
            except MutexTimeoutError:
                pass
            except PynamoDBException as error:
                # the answer never came: unknown, or it was not even locked
                log.write(f"# {type(error).__name__} {error}\n")
            try:
                row = twin.get("twin", consistent_read=True)
                time.sleep(pause)
                row.numbers = row.numbers | {number}
                row.save()
                log.write(f"twin {number}\n")
            except PynamoDBException as error:
                log.write(f"# {type(error).__name__}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
