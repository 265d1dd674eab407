"""Operations that a test runs by hand from effect to effect, and what the library does in the background."""

from contextlib import suppress
from types import GeneratorType

from this_process import current_process

from pynamodb_mutex._lock.operations.effects import Outside, Send, Wait
from pynamodb_mutex._lock.operations.renew import renew_in_background
from pynamodb_mutex._lock.runtime.callers import caller
from pynamodb_mutex._lock.runtime.notifications import deliver
from pynamodb_mutex._lock.runtime.run_on_thread import execute


def interrupt_at(monkeypatch, owner, name, *, calls=True):
    """Let Ctrl-C come when a function is called next, within a step: just when it returns or, without ``calls``, begins."""
    call = getattr(owner, name)

    def interrupted(*args, **how):
        monkeypatch.setattr(owner, name, call)
        done = call(*args, **how) if calls else None
        if isinstance(done, GeneratorType):  # an operation that has nothing to wait for
            assert list(done) == []
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)


class Driven:
    """An operation that a test runs step by step.

    Attributes:
        effect: The effect that it yielded and that is not performed yet; None before its start and after its end.
        result: What it returned.
    """

    effect = result = None
    _sent = 0.0

    def __init__(self, operation):
        self.process, self.operation = current_process(), operation

    def step(self, value=None, *, error=None):
        """Run it to its next effect; return that, not performed."""
        resume = self.operation.send if error is None else self.operation.throw
        request = self.effect.request if isinstance(self.effect, Send) and error is None else None
        events, self.effect = [], None
        try:
            given = value if error is None else error
            self.effect, self._sent = self.process.step(resume, given, request, self._sent, events)
        except StopIteration as done:
            self.result = done.value
        finally:
            deliver(self.process, events)
        return self.effect

    def go_on(self):
        """Perform its effect, and run it to the next one."""
        if isinstance(self.effect, Send):
            return self.step(self.effect.request.send())
        if isinstance(self.effect, Outside):
            return self.step(self.effect.call())
        return self.step()

    def until_it_waits(self):
        """Perform its effects until it waits or ends; return the wait, None if it has ended."""
        if self.effect is None and self.result is None:
            self.step()
        while self.effect is not None and not isinstance(self.effect, Wait):
            self.go_on()
        return self.effect

    def wake(self):
        """End its wait, and perform its effects until the next wait, which is returned."""
        self.step()
        return self.until_it_waits()

    def interrupt(self):
        """Interrupt it at its effect, and perform what effects it yields before it ends."""
        with suppress(KeyboardInterrupt):
            self.step(error=KeyboardInterrupt())
            while self.effect is not None:
                self.go_on()


def acquiring(lock, blocking=True, timeout=None, *, blocks=True):
    """Return the acquisition of a lock, to be run by hand."""
    who = caller()
    attempt = lock._acquisition(
        who, lock._options.seconds_to_wait(blocking, timeout), blocks=blocks
    )
    return Driven(lock._acquiring(attempt, who))


def waiting(lock, timeout=60.0):
    """Return an acquisition of a lock that waits, to be run on by hand."""
    driven = acquiring(lock, True, timeout)
    driven.until_it_waits()
    return driven


def send_renewal(*several):
    """Renew locks as the library does in the background, each with those that are held together with it."""
    for each in several:
        execute(current_process(), renew_in_background(each.whole))
