"""Fork while threads are at work: a script of test_one_holder.py, which fails if a child hangs."""

from __future__ import annotations

import threading
import uuid

from processes import Fork
from this_process import store_for

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex._lock.dynamodb.layout import Layout
from pynamodb_mutex._lock.dynamodb.requests import Requests


def take_and_release():
    with Mutex.for_key(uuid.uuid4().hex, lease=5.0, on_lost=print):
        pass
    return True


def build_requests():
    """What a thread does for its process's first lock."""
    requests = Requests(Layout(LockItem), store_for(LockItem).connection.table)
    requests.acquire({}, watched=False)
    assert requests.renew
    assert requests.end[False, False]


def fork_at(work):
    # a fork while another thread imports leaves a child that cannot: that is Python's to solve
    take_and_release()
    work()
    until = threading.Event()

    def keep_at_it():
        while not until.is_set():
            work()

    threads = [threading.Thread(target=keep_at_it) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            children = [Fork(take_and_release), Fork(take_and_release)]
            assert [child.value(20) for child in children] == [True, True]
    finally:
        until.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    fork_at(take_and_release)
    fork_at(build_requests)
