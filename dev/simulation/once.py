"""Calls of `once` in random schedules: clients call, complete by hand or in transactions, and decide about the same keys.

`OnceCalls` has the ways, which `client.Client` inherits; a schedule whose ways are these is judged by `once_judge`. What a
caller gets, and what the library says of its run, is reported to that judge as a `Call`.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import PynamoDBException
from pynamodb.models import Model

import pynamodb_mutex
from dev.simulation.calls import done, finish, read_some
from dev.simulation.once_judge import Call, OnceJudge
from pynamodb_mutex import (
    MutexError,
    MutexLostError,
    MutexTimeoutError,
    NotRecordedError,
    Once,
    OnceItem,
    OutcomeUnknownError,
    PayloadMismatchError,
    ResultUnavailableError,
)
from pynamodb_mutex.aio import AsyncOnce

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from dev.simulation.world import Process, World
    from pynamodb_mutex.runs import Run

O = TypeVar("O", bound=Once)  # noqa: E741 - a kind of `Once`

_PAYLOADS: tuple[tuple[Any, Any, Any], ...] = (
    (1, 1, 2),
    ({"to": "é", "cents": [5, None]}, {"cents": [5, None], "to": "é"}, {"to": "e", "cents": [5]}),
    ("", "", "1"),
    ([True, {"a": 1.5, "b": {}}], [True, {"b": {}, "a": 1.5}], [False]),
    (False, False, 0),
)
"""Payloads, of which a schedule has three: two forms of one, and another one."""

PREFIX = "once#"
"""What stored keys of `once` begin with."""


class Receipt(OnceItem):
    """The rows of `once` of the simulated processes."""

    class Meta:
        """An endpoint that only the simulated network knows."""

        region = "simulated"
        host = "http://simulated"
        table_name = "receipts"

    retention = 0.0


class Effect(Model):
    """What runs have done, in the transactions that record their results."""

    class Meta:
        """An endpoint that only the simulated network knows."""

        region = "simulated"
        host = "http://simulated"
        table_name = "effects"

    name = UnicodeAttribute(hash_key=True)
    count = NumberAttribute(default=0)
    data = UnicodeAttribute(null=True)


class WorkError(Exception):
    """What work raises that fails."""


class OnceCalls:
    """Ways in which a client calls `once`. Each method ``once_...`` makes one call in one way."""

    _schedule: Any
    _process: Process
    _world: World
    _rng: random.Random

    @property
    def _judge(self) -> OnceJudge:
        judge: OnceJudge = self._schedule.judge
        return judge

    # -- ways to call -------------------------------------------------------------------------------

    def once_call(self) -> None:
        """Call a function."""
        with self._calling() as call:
            call.got(self._once(Once, call).call(self._do, call))
        finish(self._ask_or_decide(call.key))

    def once_in_a_block(self) -> None:
        """Record the result by hand; sometimes none, and sometimes another one after a failure."""
        with self._calling() as call, self._once(Once, call) as run:
            self._judge.watch(run, {})
            if run.done:
                call.got(run.result)
                return
            if self._rng.random() < 0.1:
                call.fails()  # without a result
                return
            value = self._do(call)
            try:
                call.got(run.complete(value))
            except NotRecordedError as error:
                call.was_lost(error)
                if self._rng.random() < 0.5:
                    raise
                self._pause()
                call.got(run.complete(self._value(call, "again")))
        finish(self._ask_or_decide(call.key))

    def once_in_a_transaction(self) -> None:
        """Record the result together with its effect."""
        with self._calling() as call, self._once(Once, call) as run:
            self._judge.watch(run, {})
            if not run.done:
                result = self._do(call, in_transaction=True)
                with call.transacting(), run.transaction(result=result) as transaction:
                    transaction.update(Effect(call.key), actions=self._effect(call))
            call.got(run.result)
        finish(self._ask_or_decide(call.key))

    async def _task_once(self) -> None:
        """Call as a task, in a random one of the same ways."""
        if "once_otherwise" in self._schedule.size.ways and self._rng.random() < 0.5:
            await self._task_otherwise()
            return
        with self._calling() as call:
            once = self._once(AsyncOnce, call)
            if self._rng.random() < 0.7:
                call.got(await once.call(self._do_as_task, call))
                return
            async with once as run:
                self._judge.watch(run, {})
                if not run.done:
                    result = await self._do_as_task(call, in_transaction=True)
                    with call.transacting():
                        async with run.transaction(result=result) as transaction:
                            transaction.update(Effect(call.key), actions=self._effect(call))
                call.got(run.result)

    def once_otherwise(self) -> None:
        """Call a decorated function; or read what is public of a run, and record its result by hand."""
        with self._calling() as call:
            if self._rng.random() < 0.5:
                name, options = call.key.removeprefix(PREFIX), self._terms(call)
                payload = options.pop("payload")
                decorate = pynamodb_mutex.once(lambda _: name, payload=lambda _: payload, **options)
                call.got(decorate(self._do)(call))
                return
            once = self._once(Once, call)
            with once as run:
                self._read_both(once, run)
                if not run.done:
                    run.complete(self._do(call))
                call.got(run.result)
        finish(self._ask_or_decide(call.key))
        for item in Receipt.held() if self._rng.random() < 0.1 else ():
            read_some(self._rng, item)

    async def _task_otherwise(self) -> None:
        """Do the same as a task."""
        with self._calling() as call:
            once = self._once(AsyncOnce, call)
            async with once as run:
                self._read_both(once, run)
                if not run.done:
                    await run.complete(await self._do_as_task(call))
                call.got(run.result)
        await self._ask_or_decide(call.key, AsyncOnce)

    def _read_both(self, once: Once, run: Run) -> None:
        """Read a few properties of a run, and of what it was made by."""
        for thing in (once, run):
            read_some(self._rng, thing)

    # -- a call, and its work -----------------------------------------------------------------------

    def _new_call(self) -> Call:
        rng = self._rng
        kind = rng.choice(("run", "run", "raise"))
        call = Call(self._judge, self._process, f"{kind}-{self._number()}", self._key())
        call.is_decided = kind == "raise"
        chance = self._schedule.chance
        one, same, another = _PAYLOADS[self._world.seed % len(_PAYLOADS)]
        one = chance.choice((one, same))
        call.payload = another if rng.random() < 0.05 else rng.choice((None, one, one))
        call.keep = rng.choice((0.5, 2.0, 2.0, 5.0, 20.0, 100.0, math.inf))
        return call

    @contextmanager
    def _calling(self) -> Iterator[Call]:
        """Make a call, and report to the judge what its caller learns."""
        call = self._new_call()
        try:
            yield call
        except WorkError:
            self._schedule._count("work failed")
        except MutexTimeoutError:
            call.got_nothing()
            raise
        except PayloadMismatchError:
            call.mismatched()
        except OutcomeUnknownError as error:
            call.is_unknown(error)
            self._perhaps_decide(call.key)
        except MutexLostError as error:
            call.was_lost(error)
            raise
        except ResultUnavailableError as error:
            call.got_reason(error)
            self._perhaps_decide(call.key)
        except MutexError as error:
            if "without complete" not in str(error):
                raise
            self._schedule._count("without complete")
        finally:
            call.is_over = True

    def _once(self, kind: type[O], call: Call) -> O:
        return kind.for_key(call.key.removeprefix(PREFIX), **self._terms(call))

    def _terms(self, call: Call) -> dict[str, Any]:
        rng = self._rng
        call.lease = rng.choice((1.0, 3.0, 10.0))
        return {
            "payload": call.payload,
            "keep": call.keep,
            "on_abandoned": "raise" if call.is_decided else "run",
            "timeout": rng.choice((0, 2.0, 30.0, 300.0)),
            "model": Receipt,
            "lease": call.lease,
            "auto_renew": rng.random() < 0.7,
            "max_hold": rng.choice((None, None, None, 40.0)),
            "owner": call.owner,
            "poll": rng.choice(((0.05, 1.0), (0.2, 5.0))),
        }

    def _do(self, call: Call, *, in_transaction: bool = False) -> Any:
        call.begins()
        self._world.sleep(self._works_for(call))
        return self._outcome(call, in_transaction=in_transaction)

    async def _do_as_task(self, call: Call, *, in_transaction: bool = False) -> Any:
        call.begins()
        await asyncio.sleep(self._works_for(call))
        return self._outcome(call, in_transaction=in_transaction)

    def _works_for(self, call: Call) -> float:
        longest = self._rng.choice((0.0, 0.05, 1.0, call.lease))
        return longest * self._rng.random() * 1.5

    def _outcome(self, call: Call, *, in_transaction: bool) -> Any:
        """Return what work returns that ends now, or raise what it raises."""
        if self._rng.random() < 0.15:
            call.fails()
            raise WorkError
        if in_transaction:
            return self._value(call, "moved")
        call.has_returned = True
        if self._rng.random() < 0.1:
            call.unstorable = {call.owner}  # a set, which is not JSON
            return call.unstorable
        return self._value(call, "done")

    def _value(self, call: Call, word: str) -> tuple[str, str]:
        """Return a result, which nobody else has."""
        call.values.append([word, call.owner])
        return word, call.owner

    @staticmethod
    def _effect(call: Call) -> list[Any]:
        return [Effect.count.add(1), Effect.data.set(call.owner)]

    # -- by people ----------------------------------------------------------------------------------

    async def _ask_or_decide(self, key: str, kind: type[Once] = Once) -> None:
        """Ask what is known of a key, or decide about it, as a person does; as a rule do nothing."""
        what = self._rng.random()
        if what < 0.1:
            await self._decide(key, kind)
        elif what < 0.12:
            self._process.start_thread("forced", lambda: finish(self._decide(key, forces=True)))
        elif what < 0.14:
            self._process.start_thread("handler", self._release_all)
        elif what < 0.2:
            call = Call(self._judge, self._process, f"peek-{self._number()}", key)
            known = await done(kind.peek(key.removeprefix(PREFIX), model=Receipt))
            if known.state == "recorded":
                call.got(known.unstored or known.result)
            else:
                call.got_nothing()

    def _perhaps_decide(self, key: str) -> None:
        if self._rng.random() < 0.5:
            finish(self._decide(key))

    async def _decide(self, key: str, kind: type[Once] = Once, *, forces: bool = False) -> None:
        """Forget what is known of a key, or record a result; a refusal is no violation."""
        if not self._world.seed % 4:
            return  # in some schedules nobody decides, until the TTL could
        call = Call(self._judge, self._process, f"person-{self._number()}", key)
        call.is_awaited = kind is AsyncOnce
        name = key.removeprefix(PREFIX)
        with suppress(PynamoDBException):
            if forces or self._rng.random() < 0.5:
                is_done = await done(kind.forget(name, force=forces, model=Receipt))
            else:
                call.keep = self._rng.choice((5.0, 20.0, math.inf))
                told = self._value(call, "told")
                is_done = await done(kind.record(name, told, keep=call.keep, model=Receipt))
            call.decided(is_done=is_done)

    # of the client

    def _key(self) -> str:
        raise NotImplementedError

    def _number(self) -> str:
        raise NotImplementedError

    def _pause(self) -> None:
        raise NotImplementedError


ONCE_WAYS = [name for name in vars(OnceCalls) if name.startswith("once_")]
"""Names of the methods by which a client calls `once`."""
