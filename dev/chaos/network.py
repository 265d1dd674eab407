"""The network of a run: one proxy for each client, and the faults of requests."""

from __future__ import annotations

import random

from dev import faultproxy as net
from dev.chaos.history import Recorder
from dev.faultproxy import Exchange, Fault, FaultProxy, Reply


class Wire(FaultProxy):
    """The proxy of one client, which records the requests.

    Attributes:
        partitioned: Whether the client is cut off.
    """

    def __init__(self, engine_url: str, client: str, record: Recorder) -> None:
        super().__init__(engine_url)
        self.partitioned = False
        self._client, self._record = client, record

    def note(self, exchange: Exchange, fault: str | None, reply: Reply | None) -> None:
        # The library learns server time from the answers to its own requests, and not from those of plain models.
        own = exchange.kind != exchange.op or b"-locks" in exchange.raw
        self._record(
            "wire", proc=self._client, kind=exchange.kind,
            fault="partition" if self.partitioned and reply is None else fault,
            shows=own and fault is None and reply is not None,
        )  # fmt: skip


def trouble(seed: int, lease: float, rate: float) -> Fault:
    """Return a fault that drops all requests of a client that is cut off, and gives others a random fault at a rate."""
    chance = random.Random(seed)

    def seconds() -> float:
        return chance.uniform(0, chance.choice([0.1, 0.1, lease, 3 * lease]))

    def answer_and_repeat(exchange: Exchange) -> None:
        exchange.answer(exchange.apply(None))
        net.apply_after(exchange, seconds(), "late_duplicate")

    repeat = Fault("late_duplicate", answer_and_repeat)
    kinds = [
        *[net.drop_request()] * 2,
        *[net.drop_answer()] * 3,
        *[net.apply_then_500()] * 2,
        net.server_error(),
        *[net.throttle()] * 2,
        net.deny(),
        *[net.delay(lease / 3), net.delay_answer(lease / 3)],
        *[net.duplicate(), net.duplicate("second")],
        *[net.late_by(seconds)] * 2,
        *[repeat] * 3,
        net.stall(lease),
        net.stall(lease, apply=True),
    ]

    def meet(exchange: Exchange) -> None:
        fault = chance.choice(kinds) if chance.random() < rate else net.pass_on()
        is_write = exchange.kind == "update" or exchange.op in {"PutItem", "TransactWriteItems"}
        if is_write:
            # A write that comes late or twice is what guards are for; few requests are one.
            fault = chance.choice([*kinds, *[repeat] * 12]) if chance.random() < 4 * rate else fault
        if exchange.proxy.partitioned:
            fault = kinds[0]
        fault.meet(exchange)

    return Fault("trouble", meet)
