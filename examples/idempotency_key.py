"""An API takes payments with an Idempotency-Key. Its client repeats everything, a worker is killed, and each payment is charged once.

The worker dies at the worst moment: the provider has charged, and the result is not recorded. Run it:
python examples/idempotency_key.py
"""

import asyncio
import multiprocessing
import sys
import time
import uuid
from multiprocessing.connection import Connection
from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse
from playground import dynamodb
from pydantic import BaseModel
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamodb_mutex import InvalidKeyError, MutexTimeoutError, OnceItem, PayloadMismatchError
from pynamodb_mutex.aio import AsyncOnce

LEASE = 2.0  # seconds: short, so that nobody waits long for the dead
LIMIT = 1000  # from which on the provider declines
PATIENCE = 30.0


# -- the payment provider ---------------------------------------------------------------------------


class Charge(Model):
    """What the provider has charged. It knows idempotency keys, and counts how often it was asked."""

    class Meta:
        table_name = "example-charges"
        billing_mode = "PAY_PER_REQUEST"

    key = UnicodeAttribute(hash_key=True)
    amount = NumberAttribute()
    asked = NumberAttribute(default=0)


class ProviderDownError(Exception):
    """The provider does not answer."""


class Provider:
    def __init__(self) -> None:
        self.is_down = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def charge(self, key: str, amount: int) -> bool:
        """Charge once for each key, and return whether the card was accepted."""
        if self.is_down:
            raise ProviderDownError
        await asyncio.to_thread(
            Charge(key).update, [Charge.amount.set(amount), Charge.asked.add(1)]
        )
        await self.may_answer.wait()
        return amount < LIMIT


provider = Provider()


# -- the API ----------------------------------------------------------------------------------------


class Order(BaseModel):
    amount: int


app = FastAPI()
FAULTS: dict[type[Exception], tuple[int, str]] = {
    InvalidKeyError: (400, "Idempotency-Key is missing or too long"),
    MutexTimeoutError: (409, "The first request with this key is still being processed"),
    PayloadMismatchError: (422, "This key was used for another request"),
    ProviderDownError: (503, "Try again with the same key"),
}


async def answer_fault(request: Request, error: Exception) -> JSONResponse:
    status, title = FAULTS[type(error)]
    return JSONResponse({"title": title}, status, media_type="application/problem+json")


for kind in FAULTS:
    app.add_exception_handler(kind, answer_fault)


async def customer(authorization: Annotated[str, Header()]) -> str:
    return authorization.removeprefix("Bearer ")  # stands for a real authentication


async def charge(key: str, amount: int) -> dict[str, Any]:
    """Charge, and return the answer that every attempt is to get: a refusal is one, a failure is not."""
    if not await provider.charge(key, amount):
        return {"status": 402, "body": {"title": "The card was declined"}}
    return {"status": 201, "body": {"receipt": uuid.uuid4().hex, "charged": amount}}


@app.post("/payments")
async def pay(
    order: Order,
    customer: Annotated[str, Depends(customer)],
    idempotency_key: Annotated[str, Header()] = "",
) -> JSONResponse:
    if not idempotency_key:
        raise InvalidKeyError("Idempotency-Key is required")
    key = f"example/{customer}/{idempotency_key}"
    payment = AsyncOnce.for_key(key, payload=order.model_dump(), timeout=0, lease=LEASE)
    answer = await payment.call(charge, key, order.amount)
    return JSONResponse(answer["body"], answer["status"])


# -- its clients ------------------------------------------------------------------------------------


async def post(who: str, key: str | None, amount: int = 20) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {who}"} | ({"Idempotency-Key": key} if key else {})
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        request = client.post("/payments", json={"amount": amount}, headers=headers)
        answer = await asyncio.wait_for(request, PATIENCE)
    print(f"{who} pays {amount} with key {key}: {answer.status_code} {answer.json()}", flush=True)
    return answer.status_code, answer.json()


async def charged(who: str, key: str) -> None:
    """Wait until the provider has charged."""
    until = time.monotonic() + PATIENCE
    while not await asyncio.to_thread(Charge.count, f"example/{who}/{key}", consistent_read=True):
        assert time.monotonic() < until, "the provider was not asked"
        await asyncio.sleep(0.05)


def be_killed(who: str, key: str, out: Connection) -> None:
    """Serve one request, and get no further than the charge."""

    async def serve() -> None:
        provider.may_answer.clear()
        request = asyncio.create_task(post(who, key))
        await charged(who, key)
        out.send("charged")
        await request

    asyncio.run(serve())


def kill_a_worker(who: str, key: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    worker = spawn.Process(target=be_killed, args=(who, key, there), daemon=True)
    worker.start()
    there.close()
    here.recv()
    worker.kill()
    worker.join()
    print(
        "A worker is killed: the provider has charged, and the result is not recorded.", flush=True
    )


async def play(ann: str, ben: str) -> list[str]:
    """Pay, and return what is broken."""
    broken = []

    def expect(what: str, seen: object, *expected: object) -> None:
        if seen not in expected:
            broken.append(f"{what}: {seen}")

    expect("no key", (await post(ann, None))[0], 400)
    provider.may_answer.clear()
    first = asyncio.create_task(post(ann, "k-1"))
    await charged(ann, "k-1")
    expect("two at once", (await post(ann, "k-1"))[0], 409)
    expect("two at once, with other amounts", (await post(ann, "k-1", 30))[0], 422)
    provider.may_answer.set()
    paid = await first
    expect("a payment", paid[0], 201)
    expect("its repetition", await post(ann, "k-1"), paid)
    expect("another amount", (await post(ann, "k-1", 30))[0], 422)
    other = await post(ben, "k-1")
    expect("another customer", other[0], 201)
    expect("a receipt of one's own", other[1]["receipt"] == paid[1]["receipt"], False)
    for _ in range(2):
        expect("a declined card", (await post(ann, "k-2", LIMIT))[0], 402)
    provider.is_down = True
    expect("provider down", (await post(ann, "k-3"))[0], 503)
    provider.is_down = False
    expect("provider up", (await post(ann, "k-3"))[0], 201)
    await asyncio.to_thread(kill_a_worker, ann, "k-4")
    until = time.monotonic() + PATIENCE
    while (after := await post(ann, "k-4"))[0] == 409 and time.monotonic() < until:
        await asyncio.sleep(0.5)  # until the lease of the dead has ended
    expect("after a death", after[0], 201)
    expect("after a death, once more", await post(ann, "k-4"), after)
    charges = {row.key: int(row.asked) for row in Charge.scan(consistent_read=True)}
    asked = {f"example/{ann}/k-{number}": 1 for number in (1, 2, 3)} | {f"example/{ben}/k-1": 1}
    # the provider is asked again after the death, with the same key, by which it knows the payment
    expect("what the provider was asked", charges, asked | {f"example/{ann}/k-4": 2})
    return broken


def main() -> int:
    with dynamodb():
        OnceItem.create_table()
        Charge.create_table(wait=True)
        try:
            run = uuid.uuid4().hex[:8]  # results are kept for a day
            broken = asyncio.run(play(f"ann-{run}", f"ben-{run}"))
        finally:
            Charge.delete_table()
    print("BROKEN: " + "; ".join(broken) if broken else "Each payment was charged once.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
