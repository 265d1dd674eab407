"""Workers send invoices from a queue that delivers everything twice. One is killed, and each invoice goes out once.

The worker dies at the worst moment: the invoice is sent, and the note that says so is not written. Run it:
python examples/worker.py
"""

import multiprocessing
import signal
import sys
import time
import uuid
from collections import Counter
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import SimpleQueue
from typing import NamedTuple

from playground import dynamodb
from pynamodb.attributes import NumberAttribute
from pynamodb.models import Model

from pynamodb_mutex import LockItem, Mutex, MutexLostError, MutexTimeoutError

INVOICES = range(1, 11)
FATAL = 7  # who sends this one is killed
WORKERS = 4
LEASE = 2.0  # seconds: short, so that nobody waits long for the dead
COUNTDOWN = 0.2  # seconds until a job that met a lock is tried again
PATIENCE = 30.0


class Mail(Model):
    """The mail server: it sends whatever it gets, also twice, and can say what it sent."""

    class Meta:
        table_name = "example-mail"
        billing_mode = "PAY_PER_REQUEST"

    invoice = NumberAttribute(hash_key=True)
    copies = NumberAttribute(default=0)

    @classmethod
    def send(cls, invoice: int) -> None:
        cls(invoice).update([cls.copies.add(1)])

    @classmethod
    def has_sent(cls, invoice: int) -> bool:
        return cls.count(invoice, consistent_read=True) > 0


class News(NamedTuple):
    invoice: int
    what: str


def send_invoice(key: str, invoice: int, owner: str, out: Connection) -> str:
    """Send an invoice, unless it was sent, and say what was done."""
    with Mutex.for_key(key, lease=LEASE, timeout=0, owner=owner) as mutex:
        if mutex.data == "sent":
            return "was sent before"
        if mutex.data == "sending" and Mail.has_sent(invoice):
            mutex.save_data("sent")
            return f"was sent by {mutex.abandoned_by}, who could not note it"
        mutex.save_data("sending")
        Mail.send(invoice)
        if invoice == FATAL:
            out.send(News(invoice, "is about to be noted as sent"))
            time.sleep(60)  # to be killed here
        mutex.save_data("sent")
        return "is sent"


def worker(run: str, name: str, jobs: "SimpleQueue[int | None]", out: Connection) -> None:
    while (invoice := jobs.get()) is not None:
        try:
            done = send_invoice(f"{run}-{invoice}", invoice, name, out)
        except (MutexTimeoutError, MutexLostError) as error:
            # another has it; or the machine was so slow that the lease ended, and another may have it
            out.send(News(invoice, f"is to be tried again: {error}"))
            time.sleep(COUNTDOWN)
            jobs.put(invoice)
        else:
            out.send(News(invoice, done))


def main() -> int:
    with dynamodb():
        LockItem.create_table()
        Mail.create_table(wait=True)
        try:
            return play()
        finally:
            Mail.delete_table()


def watch(
    processes: dict[str, SpawnProcess],
    talks: dict[Connection, str],
    jobs: "SimpleQueue[int | None]",
) -> Counter[int]:
    """Print what the workers say, kill one, and end them; return how often each invoice was done."""
    done: Counter[int] = Counter()
    while talks and (ready := wait(list(talks), timeout=PATIENCE)):
        for talk in ready:
            assert isinstance(talk, Connection)
            name = talks[talk]
            try:
                news: News = talk.recv()
            except EOFError:
                del talks[talk]
                continue
            print(f"{name}: invoice {news.invoice} {news.what}")
            if "about to be" in news.what:
                processes[name].kill()
                print(f"{name} is killed; its job was not acknowledged, and comes again")
                jobs.put(news.invoice)
            elif "tried again" not in news.what:
                done[news.invoice] += 1
                if len(done) == len(INVOICES) and done[news.invoice] == 1:
                    for _ in processes:
                        jobs.put(None)  # the end, after all that is in the queue
    for process in processes.values():
        process.join(PATIENCE)
    return done


def play() -> int:
    spawn = multiprocessing.get_context("spawn")
    run = f"example-{uuid.uuid4().hex[:8]}"  # what is noted under the locks is kept for days
    jobs: SimpleQueue[int | None] = spawn.SimpleQueue()
    for invoice in INVOICES:
        jobs.put(invoice)
        jobs.put(invoice)
    names = [f"worker-{number}" for number in range(WORKERS)]
    pipes = {name: spawn.Pipe(duplex=False) for name in names}
    processes = {
        name: spawn.Process(target=worker, args=(run, name, jobs, out), daemon=True)
        for name, (_, out) in pipes.items()
    }
    for name, (_, out) in pipes.items():
        processes[name].start()
        out.close()
    done = watch(processes, {here: name for name, (here, _) in pipes.items()}, jobs)
    copies = {int(mail.invoice): int(mail.copies) for mail in Mail.scan(consistent_read=True)}
    exits = sorted(process.exitcode or 0 for process in processes.values())
    print(f"{sum(done.values())} deliveries, {sum(copies.values())} letters")
    if copies == dict.fromkeys(INVOICES, 1) and exits == [-signal.SIGKILL, 0, 0, 0]:
        print("Each invoice was sent once.")
        return 0
    print(f"BROKEN: copies of each invoice {copies}, exits {exits}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
