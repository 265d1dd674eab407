"""``release``: breaks the claim that it printed and no other, and frees abandoned locks."""

import json
from contextlib import ExitStack
from functools import partial

import pytest
from cli_scene import BROKEN, cli, put, refuse_request, stored, while_it_asks
from lock_items import Elsewhere

from pynamodb_mutex import LockItem, Loss, Mutex, MutexLostError
from pynamodb_mutex.cli import _claims
from pynamodb_mutex.testing import expire, held_elsewhere


def result_of(done):
    return json.loads(done.stdout[done.stdout.index("{") :])


def keys(locks):
    return sorted(lock["key"] for lock in locks)


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
    with held_elsewhere("a", owner="worker-7"):
        held = stored("a")
        # --force and --yes do not come from the environment
        env = {"PYNAMODB_MUTEX_RELEASE_YES": "1", "PYNAMODB_MUTEX_RELEASE_FORCE": "1"}
        error = cli("release", "a", env=env, code=1).stderr
        assert "owner:          worker-7" in error
        assert "only the holder releases a lock" in error
        abandoned("b")
        polls = "the next process that polls acquires this lock"
        assert polls in cli("release", "b", code=1).stderr
        for args in (("a", "--force"), ("--all-abandoned",)):
            error = cli("release", *args, env=env, code=1).stderr
            assert "nothing was done: there is no terminal to ask on; see --yes" in error
        for args in (("a", "--force"), ("--all-abandoned",)):
            for typed in ("n\n", "\n"):
                error = cli("release", *args, typed=typed, code=1).stderr
                assert "nothing was done: not confirmed" in error
        assert stored("a") == held
        assert LockItem.get("b").expires_at is not None


def test_a_confirmed_claim_is_broken(table):
    mutex = Mutex.for_key("a", owner="me", data=1)
    mutex.acquire()
    done = cli("release", "a", "--force", "--json", typed="y\n")
    assert f"fencing token:  {mutex.fencing_token}" in done.stderr
    assert f"Break this claim in table {table.Meta.table_name} in us-east-1 at http" in done.output
    assert done.stderr.endswith("'a' is free\n")
    result = result_of(done)
    assert (result["freed"], result["now"], result["lock"]["owner"]) == (True, None, "me")
    assert result["lock"]["fencing_token"] == mutex.fencing_token
    assert (mutex.held, mutex.loss) == (False, Loss.FORCED)
    item = LockItem.get("a")
    assert (item.expires_at, item.version, item.data) == (None, mutex.fencing_token + 1, 1)
    done = cli("release", "a", "--force", "--yes", "--json")
    assert (result_of(done)["freed"], result_of(done)["lock"]["state"]) == (False, "free")
    assert done.stderr == "'a' is free: nothing to release\n"
    cli("release", "never")


def test_a_lock_that_changes_hands_during_the_question_is_not_broken(table):
    first = Mutex.for_key("a", owner="first", model=Elsewhere)
    second = Mutex.for_key("a", owner="second")
    first.acquire()
    args = ("release", "a", "--force")
    done = while_it_asks(lambda: (first.release(), second.acquire()), *args, code=1)
    holder = "nothing was broken: that claim has ended meanwhile, and 'a' is now held by 'second'"
    assert holder in done.stderr
    assert str(second.fencing_token) in done.stderr
    second.renew()
    second.release()


def test_a_claim_that_is_renewed_or_released_during_the_question(table, wire):
    def lose(_answer):
        wire.after.clear()
        raise ConnectionResetError

    mutex = Mutex.for_key("a", model=Elsewhere)
    mutex.acquire()
    # a lost answer to the force is no change of hands
    meanwhile = partial(wire.after.update, UpdateItem=lose)
    while_it_asks(lambda: (mutex.renew(), meanwhile()), "release", "a", "--force")
    assert wire.sent[-2:] == ["UpdateItem"] * 2
    with pytest.raises(MutexLostError, match="force"):
        mutex.renew()
    mutex.acquire()
    done = while_it_asks(mutex.release, "release", "a", "--force", "--json")
    assert "'a' is free: that claim has ended meanwhile" in done.stderr
    assert LockItem.get("a").version == mutex.fencing_token


def test_a_broken_row_is_repaired_and_one_of_another_program_is_not(table):
    row = put("a", **BROKEN)
    error = cli("release", "a", code=1).stderr
    assert "state:          invalid" in error
    assert "'expires_at' is not a number of seconds" in error
    assert "--force repairs it" in error
    assert stored("a") == row
    later = BROKEN | {"version": {"N": "8"}}
    done = while_it_asks(lambda: put("a", **later), "release", "a", "--force", code=1)
    assert "nothing was broken: the row has changed meanwhile: the row of 'a'" in done.stderr
    assert stored("a") == {"key": {"S": "a"}, **later}
    done = cli("release", "a", "--force", "--json", typed="y\n")
    assert "Repair this row in table" in done.output
    assert (result_of(done)["freed"], result_of(done)["lock"]["state"]) == (True, "invalid")
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
        done = cli("release", "--all-abandoned", "--json", typed="y\n")
        assert keys(result_of(done)["freed"]) == ["a", "b"]
        assert "'a'  abandoned by 'owner of a'\n" in done.stderr
        assert "Free these 2 in table " in done.output
        assert done.stderr.count("  freed\n") == 2
        assert done.stderr.count("left out: the row of ") == 2
        assert LockItem.get("c").expires_at == held.expires_at
        assert LockItem.get("a").expires_at is None
    assert (stored("foreign"), stored("broken")) == (foreign, broken)
    done = cli("release", "--all-abandoned", "--json", "--yes")
    assert result_of(done) == {"freed": [], "skipped": []}
    assert "no lock is abandoned in table" in done.stderr


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
    done = while_it_asks(meanwhile, "release", "--all-abandoned", "--json")
    assert keys(result_of(done)["freed"]) == ["dead", "freed"]
    assert keys(result_of(done)["skipped"]) == ["late", "overwritten", "taken"]
    assert "'taken'  skipped: renewed or acquired meanwhile\n" in done.stderr
    assert "'overwritten'  skipped: the row of 'overwritten' in table" in done.stderr
    assert stored("overwritten") == {"key": {"S": "overwritten"}, **BROKEN}
    late.renew()
    taker.renew()
    taker.release()


def test_all_abandoned_continues_after_a_refused_write(abandoned, wire):
    abandoned("a", "b", "c")
    denied = partial(refuse_request, "UpdateItem", "AccessDeniedException", "not this key")
    wire.before["UpdateItem"] = lambda: wire.before.update(UpdateItem=denied)  # the second one
    done = cli("release", "--all-abandoned", "--yes", "--json", code=1)
    freed, (skipped,) = (keys(result_of(done)[which]) for which in ("freed", "skipped"))
    assert sorted([*freed, skipped]) == ["a", "b", "c"]
    assert f"'{skipped}'  skipped: UpdateItem failed: " in done.stderr
    assert done.stderr.endswith("DynamoDB refused to free 1 of 3\n")


@pytest.mark.parametrize("patience", [5.0, 0.0])
def test_all_abandoned_retries_a_throttled_write(abandoned, monkeypatch, wire, patience):
    monkeypatch.setattr(_claims, "PATIENCE", patience)
    monkeypatch.setattr(_claims, "_PAUSE", 0.0)
    abandoned("a")
    throttled = partial(refuse_request, "UpdateItem", "ThrottlingException", "slow down")
    wire.before["UpdateItem"] = throttled  # once
    done = cli("release", "--all-abandoned", "--yes", "--json", code=0 if patience else 1)
    assert keys(result_of(done)["freed"]) == (["a"] if patience else [])
    assert ("slow down" in done.stderr) == (not patience)


def test_all_abandoned_reports_what_was_done_before_ctrl_c(abandoned, wire):
    def interrupt(_answer):
        wire.after.clear()
        raise KeyboardInterrupt

    abandoned("a", "b")
    wire.after["UpdateItem"] = lambda _answer: wire.after.update(UpdateItem=interrupt)
    done = cli("release", "--all-abandoned", "--yes", "--json", code=130)
    (freed,) = result_of(done)["freed"]
    assert LockItem.get(freed["key"]).expires_at is None
    assert done.stderr.endswith("interrupted\n")
