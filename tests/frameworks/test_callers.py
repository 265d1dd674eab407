"""Who is the same caller where frameworks run the code: 30 requests each."""

import asyncio
import logging

import httpx
import pytest

from pynamodb_mutex import Mutex, MutexTimeoutError, Semaphore

REQUESTS = 30

pytestmark = pytest.mark.usefixtures("table")


def reentrant(timeout=None):
    return Mutex.for_key("a", reentrant=True, timeout=60 if timeout is None else timeout)


# -- FastAPI ---------------------------------------------------------------------------------------


def statuses_of(app, requests=REQUESTS):
    async def main():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

            async def get(number):
                # one after the other, so that threads of the pool are idle, and get the next ones
                await asyncio.sleep(0.01 * number)
                return (await client.get("/", timeout=120)).status_code

            return await asyncio.gather(*map(get, range(requests)))

    return asyncio.run(main())


def app_with(dependency, endpoint=lambda: None):
    from fastapi import Depends, FastAPI

    app = FastAPI()
    app.get("/", dependencies=[Depends(dependency)])(endpoint)
    return app


LOCKS = {
    "reentrant": (reentrant, 1),
    "not reentrant, no timeout": (lambda: Mutex.for_key("a"), 1),
    "semaphore": (lambda: Semaphore.for_key("a", permits=3), 3),
}


@pytest.mark.parametrize("is_shared", [False, True], ids=["an object each", "one object for all"])
@pytest.mark.parametrize("kind", LOCKS)
def test_dependency_of_fastapi_keeps_other_requests_out(kind, is_shared, inside, table):
    make, most = LOCKS[kind]
    lock = make()

    def locked():
        with lock if is_shared else make(), inside.section():
            yield

    async def endpoint():
        await asyncio.sleep(0.03)

    assert statuses_of(app_with(locked, endpoint)) == [200] * REQUESTS
    assert inside.most <= most
    assert not list(table.held())


def test_endpoint_of_fastapi_that_takes_the_lock_of_its_dependency_is_logged(caplog):
    waited = []

    def locked():
        with reentrant():
            yield

    def endpoint():
        with pytest.raises(MutexTimeoutError), reentrant(timeout=0.5):
            pass
        waited.append(True)

    with caplog.at_level(logging.WARNING, "pynamodb_mutex"):
        assert statuses_of(app_with(locked, endpoint), 1) == [200]
    assert waited
    (said,) = caplog.messages
    assert "another context" in said
    assert "AsyncMutex" in said


def test_async_dependency_of_fastapi_may_hold_what_its_endpoint_takes_again(inside):
    from pynamodb_mutex.aio import AsyncMutex

    def mutex():
        return AsyncMutex.for_key("a", reentrant=True, timeout=60)

    async def locked():
        async with mutex():
            with inside.section():
                yield

    async def endpoint():
        async with mutex():
            await asyncio.sleep(0.01)

    assert statuses_of(app_with(locked, endpoint)) == [200] * REQUESTS
    assert inside.most == 1


# -- Django ----------------------------------------------------------------------------------------


@pytest.fixture
def django_of(configured_django):
    """Runs requests of an asynchronous view at once."""
    from django.http import HttpResponse
    from django.test import AsyncClient, override_settings
    from django.urls import path

    def run(work):
        async def view(request):
            await work()
            return HttpResponse()

        async def main():
            client = AsyncClient()
            answers = await asyncio.gather(*(client.get("/") for _ in range(REQUESTS)))
            return [answer.status_code for answer in answers]

        with override_settings(ROOT_URLCONF=(path("", view),)):
            return asyncio.run(main())

    return run


def test_django_runs_all_requests_on_one_thread_and_each_is_a_caller(django_of, inside):
    from asgiref.sync import sync_to_async

    async def work():
        mutex, again = reentrant(), reentrant()
        while not await sync_to_async(mutex.acquire)(timeout=0):
            await asyncio.sleep(0.005)
        with inside.section():
            # in a copy of the context, of which Django takes the variables back
            assert await sync_to_async(again.acquire)(timeout=0)
            await asyncio.sleep(0.005)
            await sync_to_async(again.release)()
        await sync_to_async(mutex.release)()

    assert django_of(work) == [200] * REQUESTS
    assert (inside.most, inside.times) == (1, REQUESTS)


# -- trio, and greenlets ---------------------------------------------------------------------------


def test_tasks_of_trio_are_callers(inside):
    import trio

    async def work():
        mutex = reentrant()
        while not mutex.acquire(timeout=0):
            await trio.sleep(0.005)
        with inside.section(), reentrant():
            await trio.sleep(0.005)
        mutex.release()

    async def main():
        async with trio.open_nursery() as nursery:
            for _ in range(REQUESTS):
                nursery.start_soon(work)

    trio.run(main)
    assert (inside.most, inside.times) == (1, REQUESTS)


def test_threads_of_trio_serve_callers(inside):
    import trio

    def suspended():
        with reentrant(), inside.section():
            yield

    async def work():
        block = suspended()
        await trio.to_thread.run_sync(next, block)
        await trio.sleep(0.005)
        await trio.to_thread.run_sync(next, block, None)

    async def main():
        async with trio.open_nursery() as nursery:
            for _ in range(REQUESTS):
                nursery.start_soon(work)

    trio.run(main)
    assert (inside.most, inside.times) == (1, REQUESTS)


def test_greenlets_of_one_thread_are_callers(inside):
    from greenlet import getcurrent, greenlet

    main = getcurrent()

    def work():
        mutex = reentrant()
        while not mutex.acquire(timeout=0):
            main.switch()
        with inside.section(), reentrant():
            main.switch()
        mutex.release()

    several = [greenlet(work) for _ in range(REQUESTS)]
    while several:
        for each in several:
            each.switch()
        several = [each for each in several if not each.dead]
    assert (inside.most, inside.times) == (1, REQUESTS)
