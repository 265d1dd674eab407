"""``release``: breaks the claim that it printed and no other."""

import json
import re
from functools import partial

import pytest
from command_line import BROKEN, change, cli, put, stored
from two_clients import Elsewhere

from pynamodb_mutex import LockItem, Loss, Mutex, MutexLostError
from pynamodb_mutex.testing import expire, held_elsewhere


def released(*args, **more):
    """Release; return what is said, and the document that is printed."""
    done = cli("release", *args, "--json", **more)
    return done.stderr, json.loads(done.stdout[done.stdout.index("{") :])


def test_without_force_or_confirmation_nothing_is_done(table):
    # --force and --yes do not come from the environment
    env = {"PYNAMODB_MUTEX_RELEASE_YES": "1", "PYNAMODB_MUTEX_RELEASE_FORCE": "1"}
    with held_elsewhere("a", owner="worker-7"), held_elsewhere("b"):
        expire("b")
        rows = stored("a"), stored("b")
        error = cli("release", "a", env=env, code=1).stderr
        assert "owner:          worker-7" in error
        assert "only the holder releases a lock" in error
        error = cli("release", "b", code=1).stderr
        assert "the next process that polls acquires this lock" in error
        for typed, why in (
            (None, "there is no terminal to ask on; see --yes"),
            ("n\n", "not confirmed"),
            ("\n", "not confirmed"),
        ):
            error = cli("release", "a", "--force", env=env, typed=typed, code=1).stderr
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
