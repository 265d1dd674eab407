"""``release``: the claim that was shown is broken, and no later one."""

from __future__ import annotations

import json
import os

import click
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from cli import answered, run_cli, terminal
from lock_items import Elsewhere, Wire

from pynamodb_mutex import LockItem, Loss, Mutex, MutexLostError
from pynamodb_mutex.cli import _claims
from pynamodb_mutex.testing import expire, held_elsewhere

pytestmark = pytest.mark.real


@pytest.fixture
def wire(monkeypatch):
    return Wire(monkeypatch)


def read(done):
    return json.loads(done.stdout)


def test_without_force_it_names_the_holder_and_does_nothing(table):
    with held_elsewhere("a", owner="worker-7"):
        done = run_cli("release", "a")
        assert done.exit_code == 1
        assert "owner:          worker-7" in done.stderr
        assert "only its holder gives a lock back" in done.stderr
        expire("a")
        done = run_cli("release", "a")
        assert "The next taker gets this lock at once" in done.stderr
        assert LockItem.get("a").expires_at is not None


def test_without_a_terminal_or_yes_nothing_is_done(table):
    with held_elsewhere("a") as item:
        for args in (("a", "--force"), ("--all-abandoned",)):
            expire("a")
            done = run_cli("release", *args)
            assert done.exit_code == 1
            assert "there is no terminal to ask on: nothing was done; see --yes" in done.stderr
        assert LockItem.get("a").token == item.token


def test_what_is_confirmed_is_broken(table):
    mutex = Mutex.for_key("a", owner="me", data=1)
    mutex.acquire()
    for text in ("n\n", "\n"):
        done = answered(text, "release", "a", "--force")
        assert (done.exit_code, mutex.held) == (1, True)
        assert "not confirmed: nothing was done" in done.stderr
    done = answered("y\n", "release", "a", "--force")
    assert done.exit_code == 0
    assert f"fencing token:  {mutex.fencing_token}" in done.stderr
    assert f"Break this claim in table {table.Meta.table_name} in us-east-1 at http" in done.output
    assert done.stderr.endswith("'a' is free\n")
    assert (mutex.held, mutex.loss) == (False, Loss.FORCED)
    item = LockItem.get("a")
    assert (item.expires_at, item.version, item.data) == (None, mutex.fencing_token + 1, 1)


def test_for_scripts(table):
    with held_elsewhere("a", owner="they") as item:
        done = run_cli("release", "a", "--force", "--yes", "--json")
        assert done.exit_code == 0
        result = read(done)
        assert (result["freed"], result["now"]) == (True, None)
        assert (result["lock"]["owner"], result["lock"]["fencing_token"]) == ("they", item.version)
    done = run_cli("release", "a", "--force", "--yes", "--json")
    assert done.exit_code == 0
    assert read(done)["freed"] is False
    assert read(done)["lock"]["state"] == "free"
    assert done.stderr == "'a' is free: nothing to release\n"
    assert run_cli("release", "never").exit_code == 0


def while_it_asks(meanwhile, *args):
    """Run a command; when it asks, do something, and only then say yes."""
    asks = click.confirm
    with terminal() as (ours, theirs), pytest.MonkeyPatch.context() as patch:

        def confirm(*question, **more):
            meanwhile()
            os.write(ours, b"y\n")
            return asks(*question, **more)

        patch.setattr(click, "confirm", confirm)
        return run_cli(*args, keyboard=theirs)


def test_changed_hands_while_the_question_stood(table):
    first = Mutex.for_key("a", owner="first", model=Elsewhere)
    second = Mutex.for_key("a", owner="second")
    first.acquire()

    def hands_over():
        first.release()
        second.acquire()

    done = while_it_asks(hands_over, "release", "a", "--force")
    assert done.exit_code == 1
    assert (
        "that claim is over, and nothing else was broken: 'a' is now held, by 'second'"
        in done.stderr
    )
    assert str(second.fencing_token) in done.stderr
    second.renew()
    second.release()


def test_renewed_while_the_question_stood_is_the_same_claim(table):
    mutex = Mutex.for_key("a", model=Elsewhere)
    mutex.acquire()
    done = while_it_asks(mutex.renew, "release", "a", "--force")
    assert done.exit_code == 0
    with pytest.raises(MutexLostError, match="force"):
        mutex.renew()


def test_released_while_the_question_stood(table):
    mutex = Mutex.for_key("a", model=Elsewhere)
    mutex.acquire()
    done = while_it_asks(mutex.release, "release", "a", "--force", "--json")
    assert done.exit_code == 0
    assert "'a' is free: that claim had ended meanwhile" in done.stderr
    assert LockItem.get("a").version == mutex.fencing_token


def test_a_lost_answer_to_the_force_is_no_change_of_hands(table, wire):
    with held_elsewhere("a"):

        def lose(_answer):
            wire.after.clear()
            raise ConnectionResetError

        wire.after["UpdateItem"] = lose
        wire.sent.clear()
        done = run_cli("release", "a", "--force", "--yes")
        assert done.exit_code == 0, done.stderr
        assert wire.sent.count("UpdateItem") == 2


# -- rows that cannot be a lock's ----------------------------------------------------------------


def put(key, **attributes):
    row = {"key": {"S": key}, **attributes}
    client = LockItem._get_connection().connection.client
    client.put_item(TableName=LockItem.Meta.table_name, Item=row)
    return row


def stands(key):
    where = {"TableName": LockItem.Meta.table_name, "Key": {"key": {"S": key}}}
    client = LockItem._get_connection().connection.client
    return client.get_item(**where, ConsistentRead=True)["Item"]


BROKEN = {"token": {"S": "t"}, "version": {"N": "7"}, "expires_at": {"S": "soon"}}


def test_broken_row_is_put_right(table):
    row = put("a", **BROKEN)
    done = run_cli("release", "a")
    assert done.exit_code == 1
    assert "state:          invalid" in done.stderr
    assert "'expires_at' is not a number of seconds" in done.stderr
    assert "--force puts the row right" in done.stderr
    assert stands("a") == row
    done = answered("y\n", "release", "a", "--force", "--json")
    assert done.exit_code == 0
    assert "Put this row right in table" in done.output
    result = json.loads(done.stdout[done.stdout.index("{") :])
    assert (result["freed"], result["lock"]["state"]) == (True, "invalid")
    with Mutex.for_key("a", timeout=0) as mutex:
        assert mutex.fencing_token == 9


def test_broken_row_that_changes_meanwhile_is_left_alone(table):
    put("a", **BROKEN)
    later = {**BROKEN, "version": {"N": "8"}}
    done = while_it_asks(lambda: put("a", **later), "release", "a", "--force")
    assert done.exit_code == 1
    assert "nothing was broken, for it has changed meanwhile: the row of 'a'" in done.stderr
    assert stands("a") == {"key": {"S": "a"}, **later}


def test_row_that_is_no_locks_is_never_changed(table):
    row = put("a", email={"S": "a@example.com"})
    for args in ((), ("--force", "--yes")):
        done = run_cli("release", "a", *args)
        assert done.exit_code == 1
        assert "nothing was done: the row is not a lock's" in done.stderr
        assert "'token' is missing" in done.stderr
        assert stands("a") == row


def test_all_abandoned_leaves_out_rows_that_cannot_be_a_locks(table):
    foreign = put("foreign", user={"S": "Ann"}, expires_at={"N": "1"})
    broken = put("broken", **BROKEN)
    with held_elsewhere("a"):
        expire("a")
        done = run_cli("release", "--all-abandoned", "--yes", "--json")
        assert done.exit_code == 0, done.stderr
        assert [lock["key"] for lock in read(done)["freed"]] == ["a"]
        assert done.stderr.count("left out: the row of ") == 2
    assert stands("foreign") == foreign
    assert stands("broken") == broken


def test_all_abandoned_goes_on_after_a_row_that_dynamodb_refuses_to_write(table, monkeypatch):
    with held_elsewhere("a"), held_elsewhere("b"), held_elsewhere("c"):
        for key in ("a", "b", "c"):
            expire(key)
        original = BaseClient._make_api_call

        def refuse(client, operation, kwargs):
            if operation == "UpdateItem" and kwargs["Key"]["key"]["S"] == "b":
                code = {"Code": "AccessDeniedException", "Message": "not this key"}
                raise ClientError({"Error": code, "ResponseMetadata": {}}, operation)
            return original(client, operation, kwargs)

        monkeypatch.setattr(BaseClient, "_make_api_call", refuse)
        done = run_cli("release", "--all-abandoned", "--yes", "--json")
        assert done.exit_code == 1
        result = read(done)
        assert sorted(lock["key"] for lock in result["freed"]) == ["a", "c"]
        assert [lock["key"] for lock in result["skipped"]] == ["b"]
        assert "'b'  skipped: UpdateItem failed: " in done.stderr
        assert done.stderr.endswith("DynamoDB refused to free 1 of 3\n")
        monkeypatch.undo()


@pytest.mark.parametrize("patience", [5.0, 0.0])
def test_all_abandoned_retries_a_write_that_is_throttled(table, monkeypatch, patience):
    monkeypatch.setattr(_claims, "PATIENCE", patience)
    with held_elsewhere("a"):
        expire("a")
        original, throttled = BaseClient._make_api_call, []

        def throttle(client, operation, kwargs):
            if operation == "UpdateItem" and not throttled:
                throttled.append(kwargs)
                code = {"Code": "ThrottlingException", "Message": "slow down"}
                raise ClientError({"Error": code, "ResponseMetadata": {}}, operation)
            return original(client, operation, kwargs)

        monkeypatch.setattr(BaseClient, "_make_api_call", throttle)
        done = run_cli("release", "--all-abandoned", "--yes", "--json")
        monkeypatch.undo()
        assert throttled
        if patience:
            assert done.exit_code == 0
            assert [lock["key"] for lock in read(done)["freed"]] == ["a"]
        else:
            assert done.exit_code == 1
            assert "slow down" in done.stderr


def test_abandoned_lock_whose_row_is_overwritten_meanwhile_is_not_reported_as_freed(table):
    with held_elsewhere("a"):
        expire("a")
        args = ("release", "--all-abandoned", "--json")
        done = while_it_asks(lambda: put("a", **BROKEN), *args)
        assert done.exit_code == 0
        assert "'a'  skipped: the row of 'a' in table" in done.stderr
        assert stands("a") == {"key": {"S": "a"}, **BROKEN}


# -- all that are abandoned ---------------------------------------------------------------------


def test_all_abandoned_are_freed_and_nothing_else(table):
    with held_elsewhere("a", owner="one"), held_elsewhere("b"), held_elsewhere("c") as held:
        expire("a")
        expire("b")
        assert answered("n\n", "release", "--all-abandoned").exit_code == 1
        assert LockItem.get("a").expires_at is not None
        done = answered("y\n", "release", "--all-abandoned", "--json")
        assert done.exit_code == 0
        assert "'a'  abandoned by 'one'\n" in done.stderr
        assert "Free these 2 in table " in done.output
        assert done.stderr.count("  freed\n") == 2
        assert LockItem.get("c").expires_at == held.expires_at
        assert LockItem.get("a").expires_at is None
    done = run_cli("release", "--all-abandoned", "--json", "--yes")
    assert (done.exit_code, read(done)) == (0, {"freed": [], "skipped": []})
    assert "no lock is abandoned in table" in done.stderr


def test_one_that_is_renewed_or_taken_meanwhile_is_left_alone(table):
    late = Mutex.for_key("late", model=Elsewhere, auto_renew=False)
    late.acquire()
    taker = Mutex.for_key("taken", owner="taker")
    freed = Mutex.for_key("freed", model=Elsewhere)
    with held_elsewhere("taken"), held_elsewhere("dead"):
        freed.acquire()
        for key in ("late", "taken", "dead", "freed"):
            expire(key)

        def meanwhile():
            late.renew()
            taker.acquire()
            LockItem.force_release("freed")

        done = while_it_asks(meanwhile, "release", "--all-abandoned", "--json")
        assert done.exit_code == 0
        result = json.loads(done.stdout[done.stdout.index("{") :])
        assert sorted(lock["key"] for lock in result["freed"]) == ["dead", "freed"]
        assert sorted(lock["key"] for lock in result["skipped"]) == ["late", "taken"]
        assert "'taken'  skipped: renewed or taken meanwhile\n" in done.stderr
        late.renew()
        taker.renew()
        taker.release()


def test_what_was_done_before_ctrl_c_is_reported(table, wire):
    with held_elsewhere("a"), held_elsewhere("b"):
        expire("a")
        expire("b")

        def interrupt(_answer):
            raise KeyboardInterrupt

        def first(_answer):
            wire.after["UpdateItem"] = interrupt

        wire.after["UpdateItem"] = first
        done = run_cli("release", "--all-abandoned", "--yes", "--json")
        wire.after.clear()
        assert done.exit_code == 130
        (freed,) = read(done)["freed"]
        assert LockItem.get(freed["key"]).expires_at is None
        assert done.stderr.endswith("interrupted\n")


def test_wrong_usage():
    for args in ((), ("a", "--all-abandoned")):
        done = run_cli("release", *args)
        assert done.exit_code == 2
        assert "give KEY, or --all-abandoned" in done.stderr


def test_force_and_yes_do_not_come_from_the_environment(table):
    env = {"PYNAMODB_MUTEX_RELEASE_YES": "1", "PYNAMODB_MUTEX_RELEASE_FORCE": "1"}
    with held_elsewhere("a") as item:
        assert run_cli("release", "a", env=env).exit_code == 1
        assert run_cli("release", "a", "--force", env=env).exit_code == 1
        assert LockItem.get("a").token == item.token
