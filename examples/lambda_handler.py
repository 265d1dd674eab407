"""A Lambda function sends invoices. Events come twice, an invocation is killed, and each invoice goes out once.

Environments are processes here: frozen between invocations and killed at the timeout, as Lambda does it. An
event that failed comes again, as from a queue. Run it: python examples/lambda_handler.py
"""

import multiprocessing
import os
import signal
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import TypedDict

from playground import dynamodb
from pynamodb.attributes import NumberAttribute
from pynamodb.models import Model

from pynamodb_mutex import LockItem, Mutex

TIMEOUT = 4.0  # seconds: the function's timeout
WORK = 1.0  # for which the work may last
RESERVED = 1.0  # kept back to release the lock and to answer
PAUSE = 1.0  # before a failed event comes again
TRIES = 8
HANGS = 2  # the invoice whose answer never comes


class Event(TypedDict):
    run: str
    invoice: int


class Provider(Model):
    """Who sends the letters, also twice if asked to, and can say what was sent."""

    class Meta:
        table_name = "example-letters"
        billing_mode = "PAY_PER_REQUEST"

    invoice = NumberAttribute(hash_key=True)
    copies = NumberAttribute(default=0)

    @classmethod
    def send(cls, invoice: int) -> None:
        cls(invoice).update([cls.copies.add(1)])
        if invoice == HANGS:
            time.sleep(60)  # it has the order, and its answer does not come

    @classmethod
    def has_sent(cls, invoice: int) -> bool:
        return cls.count(invoice, consistent_read=True) > 0


class Context:
    """What Lambda hands to a function, as far as it is needed."""

    def __init__(self, request: str) -> None:
        self.aws_request_id = request
        self._ends = time.monotonic() + TIMEOUT

    def get_remaining_time_in_millis(self) -> int:
        return int(1000 * (self._ends - time.monotonic()))


def handler(event: Event, context: Context) -> str:
    left = context.get_remaining_time_in_millis() / 1000
    wait = left - WORK - RESERVED
    if wait < 0:
        raise TimeoutError("too late to begin")
    invoice = event["invoice"]
    with Mutex.for_key(
        f"{event['run']}-{invoice}",
        timeout=wait,
        lease=left + 0.5,  # longer than this invocation can live
        auto_renew=False,
        owner=context.aws_request_id,
    ) as mutex:
        if mutex.data == "sent":
            return "was sent before"
        if mutex.data == "sending" and Provider.has_sent(invoice):
            mutex.save_data("sent")
            return f"was sent by {mutex.abandoned_by}, which died"
        mutex.save_data("sending")
        Provider.send(invoice)
        mutex.save_data("sent")
        return "is sent"


# -- what Lambda does -----------------------------------------------------------------------------


def serve(pipe: Connection) -> None:
    """Connect, in the time that Lambda gives to start; then run one invocation after another."""
    Mutex.for_key("example").locked()
    Provider.has_sent(0)
    pipe.send("ready")
    while True:
        event, request = pipe.recv()
        try:
            answer = handler(event, Context(request))
        except Exception as error:
            answer = f"failed: {error!r}"
        pipe.send(answer)


class Environment:
    """A process for invocations, frozen in between."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, other = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(other,), daemon=True)
        self._process.start()
        other.close()
        self._pipe.recv()
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid or 0, number)

    def invoke(self, event: Event, request: str) -> str:
        self._signal(signal.SIGCONT)
        self._pipe.send((event, request))
        answer = str(self._pipe.recv()) if self._pipe.poll(TIMEOUT) else "failed: timed out"
        if "timed out" in answer:
            self.end()
        else:
            self._signal(signal.SIGSTOP)
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def deliver(event: Event, request: str) -> str:
    """Run an event until it does not fail, in a new environment after a timeout, and once more."""
    environment = Environment()
    try:
        for attempt in range(1, 1 + TRIES):
            answer = environment.invoke(event, f"{request}, attempt {attempt}")
            print(f"{request}, attempt {attempt}: invoice {event['invoice']} {answer}", flush=True)
            if "failed" not in answer:
                break
            if "timed out" in answer:
                environment = Environment()
            time.sleep(PAUSE)
        again = environment.invoke(event, f"{request}, once more")  # frozen until now
    finally:
        environment.end()  # also a frozen one, which would not end by itself
    print(f"{request}, once more: invoice {event['invoice']} {again}", flush=True)
    return again


def main() -> int:
    with dynamodb():
        LockItem.create_table()
        Provider.create_table(wait=True)
        try:
            return play()
        finally:
            Provider.delete_table()


def play() -> int:
    run = f"example-{uuid.uuid4().hex[:8]}"  # what is noted under the locks is kept for days
    invoices = (1, 1, HANGS)  # the first comes twice, at once
    with ThreadPoolExecutor() as pool:
        answers = [
            pool.submit(deliver, Event(run=run, invoice=invoice), f"event {number}")
            for number, invoice in enumerate(invoices, 1)
        ]
    ends = [answer.result() for answer in answers]
    letters = {
        int(letter.invoice): int(letter.copies) for letter in Provider.scan(consistent_read=True)
    }
    print("letters:", letters)
    if letters == dict.fromkeys(invoices, 1) and all("was sent" in end for end in ends):
        print("Each invoice was sent once.")
        return 0
    print(f"BROKEN: {letters}, {ends}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
