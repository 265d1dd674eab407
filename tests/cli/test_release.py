"""``release``: breaks the claim that it printed and no other, and frees abandoned locks."""

from __future__ import annotations

import json
from functools import partial

import pytest
from cli import answered, run_cli
from cli_scene import BROKEN, json_of, put, refuse_request, stored, while_it_asks, wrong_usage
from lock_items import Elsewhere

from pynamodb_mutex import LockItem, Loss, Mutex, MutexLostError
from pynamodb_mutex.cli import _claims
from pynamodb_mutex.testing import expire, held_elsewhere


def document(done):
    return json.loads(done.stdout[done.stdout.index("{") :])


def keys(locks):
    return sorted(lock["key"] for lock in locks)


def test_without_force_or_confirmation_nothing_is_done(table):
    with held_elsewhere("a", owner="worker-7") as item:
        done = run_cli("release", "a")
        assert done.exit_code == 1
        assert "owner:          worker-7" in done.stderr
        assert "only the holder releases a lock" in done.stderr
        # --force and --yes do not come from the environment
        env = {"PYNAMODB_MUTEX_RELEASE_YES": "1", "PYNAMODB_MUTEX_RELEASE_FORCE": "1"}
        assert run_cli("release", "a", env=env).exit_code == 1
        assert run_cli("release", "a", "--force", env=env).exit_code == 1
        expire("a")
        done = run_cli("release", "a")
        assert "the next process that polls acquires this lock" in done.stderr
        for args in (("a", "--force"), ("--all-abandoned",)):
            done = run_cli("release", *args)
            assert done.exit_code == 1
            assert "nothing was done: there is no terminal to ask on; see --yes" in done.stderr
        assert LockItem.get("a").token == item.token
        assert LockItem.get("a").expires_at is not None
    for args in ((), ("a", "--all-abandoned")):
        assert "give KEY, or --all-abandoned" in wrong_usage("release", *args)


def test_a_confirmed_claim_is_broken(table):
    mutex = Mutex.for_key("a", owner="me", data=1)
    mutex.acquire()
    for text in ("n\n", "\n"):
        done = answered(text, "release", "a", "--force")
        assert (done.exit_code, mutex.held) == (1, True)
        assert "nothing was done: not confirmed" in done.stderr
    done = answered("y\n", "release", "a", "--force")
    assert done.exit_code == 0
    assert f"fencing token:  {mutex.fencing_token}" in done.stderr
    assert f"Break this claim in table {table.Meta.table_name} in us-east-1 at http" in done.output
    assert done.stderr.endswith("'a' is free\n")
    assert (mutex.held, mutex.loss) == (False, Loss.FORCED)
    item = LockItem.get("a")
    assert (item.expires_at, item.version, item.data) == (None, mutex.fencing_token + 1, 1)


def test_json(table):
    with held_elsewhere("a", owner="they") as item:
        result = json_of("release", "a", "--force", "--yes")
        lock = result["lock"]
        assert (result["freed"], result["now"]) == (True, None)
        assert (lock["owner"], lock["fencing_token"]) == ("they", item.version)
    done = run_cli("release", "a", "--force", "--yes", "--json")
    assert done.exit_code == 0
    assert (document(done)["freed"], document(done)["lock"]["state"]) == (False, "free")
    assert done.stderr == "'a' is free: nothing to release\n"
    assert run_cli("release", "never").exit_code == 0


def test_a_lock_that_changes_hands_during_the_question_is_not_broken(table):
    first = Mutex.for_key("a", owner="first", model=Elsewhere)
    second = Mutex.for_key("a", owner="second")
    first.acquire()
    done = while_it_asks(lambda: (first.release(), second.acquire()), "release", "a", "--force")
    assert done.exit_code == 1
    holder = "nothing was broken: that claim has ended meanwhile, and 'a' is now held by 'second'"
    assert holder in done.stderr
    assert str(second.fencing_token) in done.stderr
    second.renew()
    second.release()


def test_a_claim_that_is_renewed_or_released_during_the_question(table):
    mutex = Mutex.for_key("a", model=Elsewhere)
    mutex.acquire()
    assert while_it_asks(mutex.renew, "release", "a", "--force").exit_code == 0
    with pytest.raises(MutexLostError, match="force"):
        mutex.renew()
    mutex = Mutex.for_key("a", model=Elsewhere)
    mutex.acquire()
    done = while_it_asks(mutex.release, "release", "a", "--force", "--json")
    assert done.exit_code == 0
    assert "'a' is free: that claim has ended meanwhile" in done.stderr
    assert LockItem.get("a").version == mutex.fencing_token


def test_a_lost_answer_to_the_force_is_not_a_change_of_hands(table, wire):
    with held_elsewhere("a"):

        def lose(_answer):
            wire.after.clear()
            raise ConnectionResetError

        wire.after["UpdateItem"] = lose
        wire.sent.clear()
        done = run_cli("release", "a", "--force", "--yes")
        assert done.exit_code == 0, done.stderr
        assert wire.sent.count("UpdateItem") == 2


# -- invalid rows ----------------------------------------------------------------------------------


def test_a_broken_row_is_repaired(table):
    row = put("a", **BROKEN)
    done = run_cli("release", "a")
    assert done.exit_code == 1
    assert "state:          invalid" in done.stderr
    assert "'expires_at' is not a number of seconds" in done.stderr
    assert "--force repairs it" in done.stderr
    assert stored("a") == row
    later = BROKEN | {"version": {"N": "8"}}
    done = while_it_asks(lambda: put("a", **later), "release", "a", "--force")
    assert done.exit_code == 1
    changed = "nothing was broken: the row has changed meanwhile: the row of 'a'"
    assert changed in done.stderr
    assert stored("a") == {"key": {"S": "a"}, **later}
    done = answered("y\n", "release", "a", "--force", "--json")
    assert done.exit_code == 0
    assert "Repair this row in table" in done.output
    assert (document(done)["freed"], document(done)["lock"]["state"]) == (True, "invalid")
    with Mutex.for_key("a", timeout=0) as mutex:
        assert mutex.fencing_token == 10


def test_a_row_that_does_not_belong_to_a_lock_is_never_changed(table):
    row = put("a", email={"S": "a@example.com"})
    for args in ((), ("--force", "--yes")):
        done = run_cli("release", "a", *args)
        assert done.exit_code == 1
        assert "nothing was done: this row does not belong to a lock" in done.stderr
        assert "'token' is missing" in done.stderr
        assert stored("a") == row


# -- all abandoned locks ---------------------------------------------------------------------------


def test_all_abandoned_frees_abandoned_locks_only(table):
    foreign = put("foreign", user={"S": "Ann"}, expires_at={"N": "1"})
    broken = put("broken", **BROKEN)
    with held_elsewhere("a", owner="one"), held_elsewhere("b"), held_elsewhere("c") as held:
        expire("a")
        expire("b")
        assert answered("n\n", "release", "--all-abandoned").exit_code == 1
        assert LockItem.get("a").expires_at is not None
        done = answered("y\n", "release", "--all-abandoned", "--json")
        assert (done.exit_code, keys(document(done)["freed"])) == (0, ["a", "b"])
        assert "'a'  abandoned by 'one'\n" in done.stderr
        assert "Free these 2 in table " in done.output
        assert done.stderr.count("  freed\n") == 2
        assert done.stderr.count("left out: the row of ") == 2
        assert LockItem.get("c").expires_at == held.expires_at
        assert LockItem.get("a").expires_at is None
    assert (stored("foreign"), stored("broken")) == (foreign, broken)
    done = run_cli("release", "--all-abandoned", "--json", "--yes")
    assert (done.exit_code, document(done)) == (0, {"freed": [], "skipped": []})
    assert "no lock is abandoned in table" in done.stderr


def test_all_abandoned_skips_locks_that_change_during_the_question(table):
    late = Mutex.for_key("late", model=Elsewhere, auto_renew=False)
    late.acquire()
    taker = Mutex.for_key("taken", owner="taker")
    freed = Mutex.for_key("freed", model=Elsewhere)
    with held_elsewhere("taken"), held_elsewhere("dead"), held_elsewhere("overwritten"):
        freed.acquire()
        for key in ("late", "taken", "dead", "freed", "overwritten"):
            expire(key)

        def meanwhile():
            late.renew()
            taker.acquire()
            LockItem.force_release("freed")
            put("overwritten", **BROKEN)

        done = while_it_asks(meanwhile, "release", "--all-abandoned", "--json")
        assert (done.exit_code, keys(document(done)["freed"])) == (0, ["dead", "freed"])
        assert keys(document(done)["skipped"]) == ["late", "overwritten", "taken"]
        assert "'taken'  skipped: renewed or acquired meanwhile\n" in done.stderr
        assert "'overwritten'  skipped: the row of 'overwritten' in table" in done.stderr
        assert stored("overwritten") == {"key": {"S": "overwritten"}, **BROKEN}
        late.renew()
        taker.renew()
        taker.release()


def test_all_abandoned_continues_after_a_refused_write(table, wire):
    with held_elsewhere("a"), held_elsewhere("b"), held_elsewhere("c"):
        for key in ("a", "b", "c"):
            expire(key)
        denied = partial(refuse_request, "UpdateItem", "AccessDeniedException", "not this key")
        wire.before["UpdateItem"] = lambda: wire.before.update(UpdateItem=denied)
        done = run_cli("release", "--all-abandoned", "--yes", "--json")
    freed, (skipped,) = (keys(document(done)[which]) for which in ("freed", "skipped"))
    assert (done.exit_code, sorted([*freed, skipped])) == (1, ["a", "b", "c"])
    assert f"'{skipped}'  skipped: UpdateItem failed: " in done.stderr
    assert done.stderr.endswith("DynamoDB refused to free 1 of 3\n")


@pytest.mark.parametrize("patience", [5.0, 0.0])
def test_all_abandoned_retries_a_throttled_write(table, monkeypatch, wire, patience):
    monkeypatch.setattr(_claims, "PATIENCE", patience)
    monkeypatch.setattr(_claims, "_PAUSE", 0.0)
    with held_elsewhere("a"):
        expire("a")
        wire.before["UpdateItem"] = partial(
            refuse_request, "UpdateItem", "ThrottlingException", "slow down"
        )
        done = run_cli("release", "--all-abandoned", "--yes", "--json")
    assert done.exit_code == (0 if patience else 1)
    assert keys(document(done)["freed"]) == (["a"] if patience else [])
    assert ("slow down" in done.stderr) == (not patience)


def test_all_abandoned_reports_what_was_done_before_ctrl_c(table, wire):
    with held_elsewhere("a"), held_elsewhere("b"):
        expire("a")
        expire("b")

        def interrupt(_answer):
            raise KeyboardInterrupt

        wire.after["UpdateItem"] = lambda _answer: wire.after.update(UpdateItem=interrupt)
        done = run_cli("release", "--all-abandoned", "--yes", "--json")
        wire.after.clear()
        assert done.exit_code == 130
        (freed,) = document(done)["freed"]
        assert LockItem.get(freed["key"]).expires_at is None
        assert done.stderr.endswith("interrupted\n")
