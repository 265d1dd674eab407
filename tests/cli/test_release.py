"""``release``: breaks the claim that it printed and no other, and frees abandoned locks."""

import json
import re
from contextlib import ExitStack
from functools import partial

import pytest
from command_line import BROKEN, change, cli, put, refuse_request, stored
from two_clients import Elsewhere

from pynamodb_mutex import LockItem, Loss, Mutex, MutexLostError
from pynamodb_mutex.cli import _claims
from pynamodb_mutex.testing import expire, held_elsewhere


def released(*args, **more):
    """Release; return what is said, and the document that is printed."""
    done = cli("release", *args, "--json", **more)
    return done.stderr, json.loads(done.stdout[done.stdout.index("{") :])


def released_all(**more):
    """Release all abandoned locks; return what is said, and the keys of those that were freed and were not."""
    said, result = released("--all-abandoned", **more)
    return said, *(sorted(lock["key"] for lock in result[name]) for name in ("freed", "skipped"))


@pytest.fixture
def abandoned(table):
    """Leave locks whose leases have expired."""
    with ExitStack() as stack:

        def leave(*names):
            for key in names:
                stack.enter_context(held_elsewhere(key, owner=f"owner of {key}"))
                expire(key)

        yield leave


def test_without_force_or_confirmation_nothing_is_done(table, abandoned):
    # --force and --yes do not come from the environment
    env = {"PYNAMODB_MUTEX_RELEASE_YES": "1", "PYNAMODB_MUTEX_RELEASE_FORCE": "1"}
    abandoned("b")
    with held_elsewhere("a", owner="worker-7"):
        rows = stored("a"), stored("b")
        error = cli("release", "a", env=env, code=1).stderr
        assert "owner:          worker-7" in error
        assert "only the holder releases a lock" in error
        error = cli("release", "b", code=1).stderr
        assert "the next process that polls acquires this lock" in error
        for args in (("a", "--force"), ("--all-abandoned",)):
            for typed, why in (
                (None, "there is no terminal to ask on; see --yes"),
                ("n\n", "not confirmed"),
                ("\n", "not confirmed"),
            ):
                error = cli("release", *args, env=env, typed=typed, code=1).stderr
                assert f"nothing was done: {why}" in error
        assert (stored("a"), stored("b")) == rows


def test_a_confirmed_claim_is_broken(table):
    mutex = Mutex.for_key("a", owner="me", data=1)
    mutex.acquire()
    token = mutex.fencing_token
    said, result = released("a", "--force", typed="y\n")
    assert f"fencing token:  {token}" in said
    question = "A holder that is alive goes on until its next request. Break this claim in table"
    assert f"{question} {table.Meta.table_name} in us-east-1 at http" in said
    assert said.endswith("'a' is free\n")
    lock = result["lock"]
    assert (result["freed"], result["now"], lock["owner"]) == (True, None, "me")
    assert (lock["fencing_token"], mutex.held, mutex.loss) == (token, False, Loss.FORCED)
    item = LockItem.get("a")
    assert (item.expires_at, item.version, item.data) == (None, token + 1, 1)
    said, result = released("a", "--force", "--yes")
    assert (result["freed"], result["lock"]["state"]) == (False, "free")
    assert said == "'a' is free: nothing to release\n"
    cli("release", "never")


def test_a_holder_that_has_just_renewed_is_alive(table):
    def said_of(key):
        lines = cli("release", key, "--force", typed="n\n", code=1).stderr.splitlines()
        return [line for line in lines if "its holder is alive" in line]

    with held_elsewhere("a", lease=30) as item, Mutex.for_key("kept", hold_at_least=30):
        (said,) = said_of("a")
        assert re.fullmatch(
            r"its holder is alive: it acquired or renewed the lock \d.\ds ago", said
        )
        change("a", expires_at=item.expires_at - 15)
        assert said_of("a") == []
    assert said_of("kept") == []


def test_a_claim_that_changes_during_the_question(table, wire):
    def lose(_answer):
        wire.after.clear()
        raise ConnectionResetError

    first = Mutex.for_key("a", owner="first", model=Elsewhere)
    second = Mutex.for_key("a", owner="second")
    first.acquire()
    force = partial(cli, "release", "a", "--force")
    # another holder's is not broken
    said = force(meanwhile=lambda: (first.release(), second.acquire()), code=1).stderr
    holder = "nothing was broken: that claim has ended meanwhile, and 'a' is now held by 'second'"
    assert f"{holder}, fencing token {second.fencing_token}" in said
    second.renew()
    second.release()
    # one that was renewed is; a lost answer to the force is no change of hands
    first.acquire()
    force(meanwhile=lambda: (first.renew(), wire.after.update(UpdateItem=lose)))
    assert wire.sent[-2:] == ["UpdateItem"] * 2
    with pytest.raises(MutexLostError, match="force"):
        first.renew()
    # and one that was released is left alone
    first.acquire()
    said, _ = released("a", "--force", meanwhile=first.release)
    assert "'a' is free: that claim has ended meanwhile" in said
    assert LockItem.get("a").version == first.fencing_token


def test_a_broken_row_is_repaired_and_one_of_another_program_is_not(table):
    row = put("a", **BROKEN)
    error = cli("release", "a", code=1).stderr
    fault = "'expires_at' is not a number of seconds"
    for part in ("state:          invalid", fault, "--force repairs it"):
        assert part in error
    assert stored("a") == row
    later = BROKEN | {"version": {"N": "8"}}
    done = cli("release", "a", "--force", meanwhile=lambda: put("a", **later), code=1)
    assert "nothing was broken: the row has changed meanwhile: the row of 'a'" in done.stderr
    assert stored("a") == {"key": {"S": "a"}, **later}
    said, result = released("a", "--force", typed="y\n")
    assert "Repair this row in table" in said
    assert (result["freed"], result["lock"]["state"]) == (True, "invalid")
    with Mutex.for_key("a", timeout=0) as mutex:
        assert mutex.fencing_token == 10
    # one that does not belong to a lock is never changed
    row = put("b", email={"S": "a@example.com"})
    for args in ((), ("--force", "--yes")):
        error = cli("release", "b", *args, code=1).stderr
        assert "nothing was done: this row does not belong to a lock" in error
        assert "'token' is missing" in error
        assert stored("b") == row


def test_all_abandoned_frees_abandoned_locks_only(table, abandoned):
    foreign = put("foreign", user={"S": "Ann"}, expires_at={"N": "1"})
    broken = put("broken", **BROKEN)
    abandoned("a", "b")
    with held_elsewhere("c") as held:
        said, *keys = released_all(typed="y\n")
        assert keys == [["a", "b"], []]
        assert "'a'  abandoned by 'owner of a'\n" in said
        assert "Free these 2 in table " in said
        assert (said.count("  freed\n"), said.count("left out: the row of ")) == (2, 2)
        assert LockItem.get("c").expires_at == held.expires_at
        assert LockItem.get("a").expires_at is None
    assert (stored("foreign"), stored("broken")) == (foreign, broken)
    said, result = released("--all-abandoned", "--yes")
    assert result == {"freed": [], "skipped": []}
    assert "no lock is abandoned in table" in said


def test_all_abandoned_skips_locks_that_change_during_the_question(table, abandoned):
    late = Mutex.for_key("late", model=Elsewhere, auto_renew=False)
    taker = Mutex.for_key("taken", owner="taker")

    def meanwhile():
        late.renew()
        taker.acquire()
        LockItem.force_release("freed")
        put("overwritten", **BROKEN)

    late.acquire()
    expire("late")
    abandoned("taken", "dead", "freed", "overwritten")
    said, freed, skipped = released_all(meanwhile=meanwhile)
    assert (freed, skipped) == (["dead", "freed"], ["late", "overwritten", "taken"])
    assert "'taken'  skipped: renewed or acquired meanwhile\n" in said
    assert "'overwritten'  skipped: the row of 'overwritten' in table" in said
    assert stored("overwritten") == {"key": {"S": "overwritten"}, **BROKEN}
    late.renew()
    taker.renew()
    taker.release()


def test_all_abandoned_continues_after_a_refused_write(abandoned, wire):
    abandoned("a", "b", "c")
    denied = partial(refuse_request, "UpdateItem", "AccessDeniedException", "not this key")
    wire.before["UpdateItem"] = lambda: wire.before.update(UpdateItem=denied)  # the second one
    said, freed, (skipped,) = released_all(typed="y\n", code=1)
    assert sorted([*freed, skipped]) == ["a", "b", "c"]
    assert f"'{skipped}'  skipped: UpdateItem failed: " in said
    assert said.endswith("DynamoDB refused to free 1 of 3\n")


@pytest.mark.parametrize(("patience", "freed"), [(5.0, ["a"]), (0.0, [])])
def test_all_abandoned_retries_a_throttled_write(abandoned, monkeypatch, wire, patience, freed):
    monkeypatch.setattr(_claims, "PATIENCE", patience)
    monkeypatch.setattr(_claims, "_PAUSE", 0.0)
    abandoned("a")
    throttled = partial(refuse_request, "UpdateItem", "ThrottlingException", "slow down")
    wire.before["UpdateItem"] = throttled  # once
    said, *keys = released_all(typed="y\n", code=0 if patience else 1)
    assert keys == [freed, []]
    assert ("slow down" in said) == (not patience)


def test_all_abandoned_has_freed_a_lock_that_is_acquired_before_a_retry(abandoned, wire):
    taker = Mutex.for_key("a")

    def lose(_answer):
        wire.after.clear()
        taker.acquire()
        raise ConnectionResetError

    abandoned("a")
    wire.after["UpdateItem"] = lose
    _, *keys = released_all(typed="y\n")
    assert (keys, taker.abandoned) == ([["a"], []], False)
    taker.release()


def test_all_abandoned_reports_what_was_done_before_ctrl_c(abandoned, wire):
    def interrupt(_answer):
        wire.after.clear()
        raise KeyboardInterrupt

    abandoned("a", "b")
    wire.after["UpdateItem"] = lambda _answer: wire.after.update(UpdateItem=interrupt)
    said, (freed,), _ = released_all(typed="y\n", code=130)
    assert LockItem.get(freed).expires_at is None
    assert said.endswith("interrupted\n")
