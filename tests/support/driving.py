"""Operations that a test drives by hand, effect by effect, and what the library would do in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb_mutex._operations.effects import Open, Send, Wait
from pynamodb_mutex._operations.renew import _batch_of, renew_in_background
from pynamodb_mutex._runtime.callers import caller
from pynamodb_mutex._runtime.notifications import deliver
from pynamodb_mutex._runtime.process import Process, current_process
from pynamodb_mutex._runtime.run_on_thread import run

if TYPE_CHECKING:
    from pynamodb_mutex._handles import ThreadHandle
    from pynamodb_mutex._operations.effects import Operation


class Driven:
    """An operation that is driven by hand.

    Attributes:
        effect: What it asks for, and has not got yet; None before it began, and after its end.
        result: What it returned.
    """

    def __init__(self, operation: Operation[Any], process: Process | None = None) -> None:
        self.process = process or current_process()
        self.operation = operation
        self.effect: Any = None
        self.result: Any = None
        self._sent = 0.0

    def step(self, value: Any = None, *, error: BaseException | None = None) -> Any:
        """Run it to its next effect, which is not performed; return that."""
        resume = self.operation.send if error is None else self.operation.throw
        request = self.effect.request if isinstance(self.effect, Send) and error is None else None
        events: list[Any] = []
        self.effect = None
        try:
            given = value if error is None else error
            self.effect, self._sent = self.process.step(resume, given, request, self._sent, events)
        except StopIteration as done:
            self.result = done.value
        finally:
            deliver(self.process, events)
        return self.effect

    def go_on(self) -> Any:
        """Perform the effect, and run it to its next one."""
        if isinstance(self.effect, Send):
            return self.step(self.effect.request.send())
        if isinstance(self.effect, Open):
            self.effect.store.connection.open()
        return self.step()

    def until_it_waits(self) -> Any:
        """Perform its effects until it waits, or has ended; return the wait."""
        if self.effect is None and self.result is None:
            self.step()
        while self.effect is not None and not isinstance(self.effect, Wait):
            self.go_on()
        return self.effect

    def wake(self) -> Any:
        """End its wait, and perform its effects until the next one; return that, None if it has ended."""
        self.step()
        return self.until_it_waits()

    def interrupt(self) -> None:
        """Interrupt it where it is, and let it do what it does about that."""
        try:
            self.step(error=KeyboardInterrupt())
            while self.effect is not None:
                self.go_on()
        except KeyboardInterrupt:
            pass


def acquiring(
    lock: ThreadHandle[Any],
    blocking: bool = True,
    timeout: float | None = None,
    *,
    blocks: bool = True,
) -> Driven:
    """Return the acquisition of a lock, to be driven by hand."""
    who = caller()
    attempt = lock._attempt(who, lock._options.patience(blocking, timeout), blocks=blocks)
    return Driven(lock._acquiring(attempt, who.number))


def waiting(lock: ThreadHandle[Any], timeout: float = 60.0) -> Driven:
    """Let somebody wait for a lock, driven by hand."""
    driven = acquiring(lock, True, timeout)
    driven.until_it_waits()
    return driven


def send_renewal(*several: Any) -> None:
    """Send a renewal of locks, or of what is held together, as the library does in the background."""
    process = current_process()
    held = [getattr(each, "together", each) for each in several]
    run(process, renew_in_background(process, held))


def scheduled() -> list[Any]:
    """Return what is scheduled to be renewed."""
    return list(current_process().schedule._due)


def batch_of(held: Any) -> Any:
    """Return the store by which a lock would be renewed together with others; None if by itself."""
    return _batch_of(held.together)


def handle(held: Any, ahead: float = 0.0) -> bool:
    """Do what the renewal loop does with a member; say whether it is to be renewed."""
    process = current_process()

    def handling() -> Operation[bool]:
        yield Wait(0.0)
        return held.together.is_to_be_renewed(ahead)

    return run(process, handling())
