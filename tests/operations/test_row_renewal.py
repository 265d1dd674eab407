"""Renewals beside guarded writes: a save carries the claim, and neither undoes the other."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from driving import send_renewal
from row_scene import RowScene, Write, arrives_in_vain, delete, every_write, save, update
from scene import Lose, lost_in_two_ways

from dev.faultproxy import Fault, after, drop_answer, drop_request, late, stall
from pynamodb_mutex.testing import FakeClock


def end_of(any_scene: RowScene) -> float:
    return float(any_scene.claim["expires_at"]["N"])


def ends_written(any_scene: RowScene) -> list[float]:
    """The ends of the claim in the requests that were applied, in the engine's order."""
    ends = []
    for seen in any_scene.proxy.of("acquire", "renew", "PutItem"):
        if not seen.applied:
            continue
        if seen.op == "PutItem":
            ends.append(float(seen.body["Item"]["lock_expires_at"]["N"]))
        else:
            names = {name: short for short, name in seen.body["ExpressionAttributeNames"].items()}
            _, _, rest = seen.body["UpdateExpression"].partition(names["lock_expires_at"] + " = ")
            value = rest.split(",")[0].split()[0]
            ends.append(float(seen.body["ExpressionAttributeValues"][value]["N"]))
    return ends


def test_saves_never_move_the_end_back(row_scene: RowScene) -> None:
    row = row_scene.locked()
    lock, stop = row.row_lock, threading.Event()
    errors: list[BaseException] = []

    def renew() -> None:
        try:
            while not stop.is_set():
                lock.renew()
        except BaseException as error:
            errors.append(error)

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        for n in range(30):
            save(row, str(n))
    finally:
        stop.set()
        renewing.join(60)
    assert errors == []
    ends = ends_written(row_scene)
    assert ends == sorted(set(ends))
    assert end_of(row_scene) == ends[-1]
    assert (row_scene.row.balance, row_scene.row.last) == (30, "29")
    assert len(row_scene.proxy.of("renew")) > 3
    lock.release()


def save_that_meets_a_renewal(any_scene: RowScene, row: Any, *faults: Fault) -> list[float]:
    """Save, while a renewal that was sent later comes first; return the end that it wrote."""
    ends: list[float] = []

    def renew() -> None:
        row.row_lock.renew()
        ends.append(end_of(any_scene))

    any_scene.proxy.next(*faults, after(renew), op="PutItem")
    save(row)
    return ends


def test_save_that_meets_a_renewal_sent_later_is_repeated(row_scene: RowScene) -> None:
    with row_scene.lock() as row:
        (renewed_to,) = save_that_meets_a_renewal(row_scene, row)
        assert row_scene.applied("PutItem") == [False, True]
        assert (row_scene.row.balance, row_scene.writes) == (1, 1)
        assert end_of(row_scene) > renewed_to
        assert row.is_locked


def test_save_of_unknown_outcome_that_meets_a_renewal_is_applied_once(
    row_scene: RowScene,
) -> None:
    with row_scene.lock() as row:
        save_that_meets_a_renewal(row_scene, row, drop_request())
        assert (row_scene.row.balance, row_scene.writes) == (1, 1)


@lost_in_two_ways
def test_save_whose_answer_is_lost_and_that_is_renewed_after_is_recognised(
    row_scene: RowScene, lose: Lose
) -> None:
    with row_scene.lock() as row:
        row_scene.proxy.next(lose(then=row.row_lock.renew), op="PutItem")
        save(row)
        assert row_scene.applied("PutItem") == [True, False]
        assert (row_scene.row.balance, row_scene.writes) == (1, 1)


def test_save_that_the_network_kept_while_it_was_renewed_does_not_land(
    row_scene: RowScene,
) -> None:
    kept = late()
    row = row_scene.locked()
    row_scene.proxy.next(kept, after(row.row_lock.renew), op="PutItem")
    save(row)
    arrives_in_vain(row_scene, kept)
    row.row_lock.release()


def test_renewal_that_meets_a_save_sent_later_is_no_loss(row_scene: RowScene) -> None:
    lost: list[object] = []
    with row_scene.lock(on_lost=lost.append) as row:
        row_scene.proxy.next(after(lambda: save(row)), op="renew")
        row.row_lock.renew()
        assert row_scene.row.balance == 1
        ends = ends_written(row_scene)
        assert ends == sorted(set(ends))
        assert row.is_locked
    assert lost == []


@pytest.mark.parametrize("write", [update, delete])
def test_other_writes_do_not_mind_a_renewal(row_scene: RowScene, write: Write) -> None:
    with row_scene.lock() as row:
        op = row_scene.op(write.__name__)
        row_scene.proxy.next(after(row.row_lock.renew), op=op)
        write(row)
        assert row_scene.applied(op) == [True]


def test_save_renews(row_scene: RowScene) -> None:
    with FakeClock() as clock:
        row = row_scene.locked(auto_renew=False)
        clock.advance(20)
        assert row.row_lock.remaining < 10
        before = end_of(row_scene)
        save(row)
        assert row.row_lock.remaining > 28
        assert end_of(row_scene) > before
        clock.advance(20)
        assert row.is_locked
        row.row_lock.release()


@pytest.mark.parametrize("fault", [drop_answer, drop_request])
def test_save_that_is_repeated_renews_no_further_than_what_was_applied(
    row_scene: RowScene, fault: Lose
) -> None:
    with FakeClock() as clock:
        row = row_scene.locked(auto_renew=False)

        def wait() -> None:
            clock.advance(20)

        row_scene.proxy.next(fault(then=wait), op="PutItem")
        saving = threading.Thread(target=save, args=(row,))
        saving.start()
        while saving.is_alive():
            clock.advance(0.05)  # for the pause before the repeat
            time.sleep(0.02)
        if fault is drop_answer:
            # its repeat was refused, so it brought nothing
            assert row.row_lock.remaining < 10
        else:
            assert row.row_lock.remaining > 25
        row.row_lock.release()


def test_update_does_not_renew(row_scene: RowScene) -> None:
    with FakeClock() as clock:
        row = row_scene.locked(auto_renew=False)
        clock.advance(20)
        update(row)
        assert row.row_lock.remaining < 10
        row.row_lock.release()


def test_no_renewal_is_sent_while_saves_come_often(row_scene: RowScene) -> None:
    with FakeClock() as clock, row_scene.lock() as row:
        for _ in range(5):  # more than two renewals' time
            clock.advance(5)
            save(row)
        assert row_scene.proxy.of("renew") == []


def test_renewal_is_sent_while_updates_come_often(row_scene: RowScene) -> None:
    with FakeClock() as clock, row_scene.lock() as row:
        for _ in range(3):
            clock.advance(5)
            update(row)
        row_scene.proxy.wait(1, "renew")


def test_save_beyond_max_hold_does_not_renew(row_scene: RowScene) -> None:
    with FakeClock() as clock:
        row = row_scene.locked(max_hold=5, auto_renew=False)
        clock.advance(10)
        left = row.row_lock.remaining
        save(row)
        assert row.row_lock.remaining <= left
        assert row_scene.row.balance == 1
        row.row_lock.release()


@every_write
def test_renewal_refused_because_a_write_unlocked_is_no_loss(
    row_scene: RowScene, write: Write
) -> None:
    lost: list[object] = []
    lock = row_scene.lock(on_lost=lost.append)
    assert lock.acquire()
    row, op = lock.row, row_scene.op(write.__name__)
    # after the write was applied, and before its answer comes
    row_scene.proxy.next(drop_answer(then=lambda: send_renewal(lock._latest)), op=op)
    write(row, **({} if write is delete else {"unlock": True}))
    assert row_scene.applied("renew") == [False]
    assert not lock.lost
    time.sleep(0.2)
    assert lost == []


def test_renewal_under_way_when_a_write_unlocks_is_no_loss(row_scene: RowScene) -> None:
    lost: list[object] = []
    lock = row_scene.lock(on_lost=lost.append, auto_renew=False)
    assert lock.acquire()
    row = lock.row
    row_scene.proxy.next(after(lambda: save(row, unlock=True)), op="renew")
    renewing = threading.Thread(target=send_renewal, args=(lock._latest,))
    # the renewer's own call, whose time would else be a third of the lease away
    renewing.start()
    renewing.join(60)
    assert row_scene.applied("renew") == [False]
    assert row_scene.is_free
    assert not lock.lost
    assert lost == []


def test_refused_renewal_shows_the_loss_if_the_write_that_unlocks_is_refused_too(
    row_scene: RowScene,
) -> None:
    lost = threading.Event()
    lock = row_scene.lock(on_lost=lambda _: lost.set(), auto_renew=False)
    assert lock.acquire()
    row = lock.row
    row_scene.forced_and_taken()
    with pytest.raises(Exception, match="another holder has taken it"):
        save(row, unlock=True)
    assert lost.wait(60)
    assert lock.lost


def test_hung_renewal_delays_no_save(row_scene: RowScene) -> None:
    until = threading.Event()
    with FakeClock() as clock, row_scene.lock() as row:
        row_scene.proxy.next(stall(until), op="renew")
        clock.advance(11)
        row_scene.proxy.wait(1, "renew")
        save(row)
        assert row.row_lock._latest.together.renewals_under_way
        until.set()
    assert row_scene.row.balance == 1
