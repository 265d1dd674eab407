"""``close`` and ``open``, and what the other commands say of a closed key."""

from command_line import cli, json_of

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.testing import expire, held_elsewhere

WHY = "migration"


def test_close_and_open(table):
    done = cli("close", "a", "--reason", WHY, "--yes")
    assert (done.stdout, done.stderr.splitlines()[-1]) == ("", f"'a' is closed: {WHY}")
    assert table.get("a").closed == WHY
    with held_elsewhere("b", owner="they"):
        document = json_of("close", "b", "--reason", WHY, "--yes")
        assert (document["state"], document["closed"], document["owner"]) == ("held", WHY, "they")
        done = cli("close", "b", "--reason", "more", "-y")
        assert done.stderr.splitlines()[-1] == "'b' is closed: more (held by 'they')"
        expire("b")
        done = cli("open", "b", "-y")
        assert done.stderr.splitlines()[-1] == "'b' is open (abandoned by 'they')"
    assert json_of("open", "a", "--yes")["closed"] is None
    with Mutex.for_key("a", must_exist=True):
        pass


def test_what_is_refused_or_not_confirmed_changes_nothing(table):
    for command in (("close", "a", "--reason", WHY), ("open", "a")):
        cli(*command, code=1)
        cli(*command, code=1, typed="n\n")
    assert "reason must be a label" in cli("close", "a", "--reason", "", "-y", code=2).stderr
    assert "shorten it" in cli("close", "a", "--reason", "x" * 1001, "-y", code=2).stderr
    assert "--reason" in cli("close", "a", "-y", code=2).stderr
    assert list(table.scan()) == []


def test_closed_keys_are_listed_and_shown(table):
    LockItem.close("a", "one\n two")
    with held_elsewhere("b", owner="they"):
        LockItem.close("b", WHY)
        lines = cli("ls").stdout.splitlines()[1:]
        assert [line.split("\t")[6] for line in lines] == ["closed", "held, closed"]
        first, second = json_of("ls")
        assert (first["state"], first["closed"], first["remaining"]) == (
            "closed",
            "one\n two",
            None,
        )
        assert (second["state"], second["closed"]) == ("held", WHY)
        shown = cli("show", "b").stdout
        assert "state:          held\nclosed:         migration\nowner:          they\n" in shown
        shown = cli("show", "a").stdout
        assert (
            "state:          closed: nobody acquires it until it is opened\nclosed:         one\\n two\n"
            in shown
        )
        assert json_of("ls", "a") == [first]


def test_closed_key_whose_claim_is_kept(table):
    with Mutex.for_key("a", hold_at_least=3600):
        pass
    done = cli("close", "a", "--reason", WHY, "-y")
    said, nobody = f"'a' is closed: {WHY} (held by ", "nobody (released, and kept until "
    assert done.stderr.splitlines()[-1].startswith(said + nobody)
    assert cli("ls").stdout.splitlines()[1].split("\t")[6] == "held, closed"
    shown = cli("show", "a").stdout
    assert f"state:          held\nclosed:         {WHY}\nowner:          {nobody}" in shown
    expire("a")
    (lock,) = json_of("ls")
    assert (lock["state"], lock["closed"]) == ("closed", WHY)
    assert json_of("open", "a", "-y")["state"] == "free"
    assert json_of("ls") == []


def test_release_and_wait_of_a_closed_key(table):
    with held_elsewhere("a"):
        LockItem.close("a", WHY)
        done = cli("wait", "a", code=75)
        assert done.stderr == f"'a' is closed: {WHY}\n"
        done = cli("release", "a", "--force", "--yes")
        assert done.stderr.endswith("'a' is closed: nobody acquires it until it is opened\n")
    assert json_of("wait", "a", code=75)["closed"] == WHY
    done = cli("release", "a", "--force", "--yes")
    assert done.stderr.endswith("'a' is closed: nothing to release\n")
    assert table.get("a").closed == WHY
