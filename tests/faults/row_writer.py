"""A process that adds its numbers to shared rows, and keeps a journal of what was reported to it.

    python row_writer.py TABLE ENDPOINT JOURNAL SEED FIRST_NUMBER

Runs until it is killed. The journal has a line for each number: ``try`` before a write of it was sent,
``ok`` or ``no`` once the write was reported as applied or as not applied. A number without either is of unknown
outcome. ``unguarded`` stands for a number that was added to a row which nothing guards.
"""

import itertools
import random
import sys
import time
from contextlib import suppress

from pynamodb import attributes
from pynamodb.exceptions import PynamoDBException
from pynamodb.models import Model

from pynamodb_mutex import MutexLostError, MutexTimeoutError, RowLockMixin

ROWS = ("a", "b", "c")
LEASE = 1.0
OPTIONS = {"lease": LEASE, "timeout": 20, "poll": (0.01, 0.1)}


def models(table, endpoint):
    """Return the model of the shared rows, and that of a row in the same table that nothing guards."""

    class Account(RowLockMixin, Model):
        class Meta:
            table_name, host = table, endpoint
            billing_mode = "PAY_PER_REQUEST"

        name = attributes.UnicodeAttribute(hash_key=True)
        numbers = attributes.NumberSetAttribute(default=set)
        count = attributes.NumberAttribute(default=0)
        revision = attributes.VersionAttribute()

    class Unguarded(Model):
        class Meta:
            table_name, host = table, endpoint

        name = attributes.UnicodeAttribute(hash_key=True)
        numbers = attributes.NumberSetAttribute(default=set)

    return Account, Unguarded


def write(row, number, way):
    """Add a number to a locked row, which had been read before, in one of four ways."""
    account = type(row)
    numbers, count = row.numbers | {number}, row.count + 1
    if way == 0:
        actions = [account.numbers.set(numbers), account.count.set(count)]
        row.update(actions, add_version_condition=False)
        return
    row.numbers, row.count = numbers, count
    if way == 3:
        with row.row_lock.transaction() as transaction:
            transaction.save(row)
    else:
        row.save(add_version_condition=False, unlock=way == 2)


def main(table, endpoint, journal, seed, first):
    account, unguarded = models(table, endpoint)
    chance, numbers = random.Random(int(seed)), itertools.count(int(first))
    with open(journal, "a", buffering=1) as log:  # noqa: PTH123 - it stays open until the end
        for number in numbers:
            pause = chance.choice([0, 0, 0.002, 0.01, 0.15])
            reported = True
            try:
                with account.locked(chance.choice(ROWS), **OPTIONS) as row:
                    for number in itertools.islice(numbers, chance.randrange(1, 4)):  # noqa: PLW2901 - it goes on
                        time.sleep(pause)
                        reported = False
                        log.write(f"try {number}\n")
                        write(row, number, way=chance.randrange(4))
                        reported = True
                        log.write(f"ok {number}\n")
                        if not row.is_locked:
                            break
            except MutexLostError as error:
                if not reported and error.applied is False:
                    log.write(f"no {number}\n")
            except (MutexTimeoutError, PynamoDBException):
                pass  # the answer never came: unknown, or it was not even locked
            with suppress(PynamoDBException):
                row = unguarded.get("unguarded", consistent_read=True)
                time.sleep(pause)
                row.numbers = row.numbers | {number}
                row.save()
                log.write(f"unguarded {number}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
