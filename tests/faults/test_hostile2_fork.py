"""Scratch: a fork by a signal handler, as the child sees it."""

import threading
import time
from contextlib import suppress

import pytest
from test_simultaneous_calls import Calling, interrupted
from sent_requests import TRANSACT
from two_clients import held

from pynamodb_mutex import Mutex, MutexError
from pynamodb_mutex._runtime.process import forget_everything
from pynamodb_mutex._runtime import process as of_runtime


def fork():
    forget_everything()


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("kind", ["one", "fair", "group", "any"])
def test_child_that_ends_does_not_end_the_claim_of_the_parent(scene, kind, sent):
    makes = {
        "one": lambda: scene.mutex(),
        "fair": lambda: scene.mutex(fair=True),
        "group": lambda: Mutex.for_keys([scene.key, scene.key + "-b"], model=scene.here),
        "any": lambda: Mutex.any_of([scene.key], model=scene.here),
    }

    def act():
        fork()
        raise SystemExit

    mutex = makes[kind]()

    def work():
        with (
            interrupted("acquire" if kind != "group" else TRANSACT, act, sent=sent),
            suppress(SystemExit),
        ):
            mutex.acquire()
        assert scene.proxy.of("disown") == []

    Calling(work).end()


@pytest.mark.parametrize("kind", ["one", "group"])
def test_child_does_not_acquire(scene, kind):
    mutex = (
        scene.mutex()
        if kind == "one"
        else Mutex.for_keys([scene.key, scene.key + "-b"], model=scene.here)
    )

    def work():
        with interrupted("acquire" if kind != "group" else TRANSACT, fork, sent=True):
            with pytest.raises(MutexError):
                print(mutex.acquire(), mutex.held)

    Calling(work).end()
