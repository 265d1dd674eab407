"""Several processes move money between accounts, one of them is killed in the middle, and no cent is lost.

Run it: python examples/moving_money.py
"""

import multiprocessing
import random
import signal
import sys
import time
from multiprocessing.connection import Connection, wait

from playground import dynamodb
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamodb_mutex import MutexLostError, RowLockMixin

NAMES = ["alice", "bob", "carol", "dave", "erin"]
BALANCE = 100
WORKERS = 4
TRANSFERS = 8  # of each worker
LEASE = 1.5  # seconds: short, so that nobody waits long for the dead


class Account(RowLockMixin, Model):
    class Meta:
        table_name = "example-accounts"
        billing_mode = "PAY_PER_REQUEST"

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute()


def transfer(payer: str, payee: str, amount: int, hook: Connection | None = None) -> str:
    """Move the money, if there is enough, and say what was done."""
    with Account.locked_all([payer, payee], lease=LEASE, timeout=30) as rows:
        one, other = rows  # locked, and read
        if one.balance < amount:
            return f"{payer} has no {amount} for {payee}"
        one.balance -= amount
        other.balance += amount
        if hook is not None:
            hook.send("both accounts are locked, and nothing is written")
            time.sleep(60)  # to be killed here
        # writes both or none, under both locks, and unlocks them
        with rows.transaction() as transaction:
            transaction.save(one)
            transaction.save(other)
    return f"{payer} pays {payee} {amount}"


def worker(number: int, out: Connection, *, doomed: bool) -> None:
    dice = random.Random(number)
    for count in range(TRANSFERS):
        payer, payee = dice.sample(NAMES, 2)
        hook = out if doomed and count > 0 else None
        try:
            out.send(transfer(payer, payee, dice.randint(1, 60), hook))
        except MutexLostError as error:  # the machine was so slow that the lease ended
            out.send(f"{error}; written: {error.applied}")


def main() -> int:
    with dynamodb():
        Account.create_table(wait=True)
        try:
            return play()
        finally:
            Account.delete_table()


def play() -> int:
    with Account.batch_write() as batch:
        for name in NAMES:
            batch.save(Account(name, balance=BALANCE))
    processes, talks = {}, {}
    spawn = multiprocessing.get_context("spawn")
    for number in range(WORKERS):
        here, there = spawn.Pipe(duplex=False)
        process = spawn.Process(
            target=worker, args=(number, there), kwargs={"doomed": number == 0}, daemon=True
        )
        process.start()
        there.close()
        processes[here], talks[here] = process, number
    moved = 0
    while talks:
        for talk in wait(list(talks)):
            assert isinstance(talk, Connection)
            number = talks[talk]
            try:
                said = talk.recv()
            except EOFError:
                del talks[talk]
                continue
            print(f"worker {number}: {said}")
            moved += " pays " in said
            if "nothing is written" in said:
                processes[talk].kill()
                print(f"worker {number} is killed")
    for process in processes.values():
        process.join()
    exits = sorted(process.exitcode or 0 for process in processes.values())
    rows = Account.scan(consistent_read=True)
    accounts = {row.name: int(row.balance) for row in rows}
    total = sum(accounts.values())
    print(f"{moved} transfers; {accounts}, {total} in all")
    kept = total == BALANCE * len(NAMES) and min(accounts.values()) >= 0
    if kept and exits == [-signal.SIGKILL, 0, 0, 0]:
        print("The sum is what it was, and nobody owes.")
        return 0
    print(f"BROKEN: money was lost, or a worker failed: exits {exits}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
