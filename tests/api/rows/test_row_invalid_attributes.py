"""Rows of users whose lock attributes cannot be right, and what need not be a lock's in them."""

from itertools import product

import pytest
from accounts import Account, Ledger, balance, changed
from pynamodb.exceptions import UpdateError

from pynamodb_mutex import InvalidRowError, LockItem

FAR = {"N": "4102444800"}  # the year 2100
CLAIM = {
    "lock_token": {"S": "theirs"},
    "lock_version": {"N": "7"},
    "lock_owner": {"S": "they"},
    "lock_lease": {"N": "30"},
    "lock_expires_at": FAR,
    "lock_writes": {"N": "0"},
    "lock_abandoned_by": {"S": ""},
}
WRONG = {
    "end-text": ({**CLAIM, "lock_expires_at": {"S": "soon"}}, "lock_expires_at"),
    "end-null": ({**CLAIM, "lock_expires_at": {"NULL": True}}, "lock_expires_at"),
    "owner-of-a-dead-claim": (
        {**CLAIM, "lock_owner": {"N": "1"}, "lock_expires_at": {"N": "1"}},
        "lock_owner",
    ),
    "token-missing": ({"lock_expires_at": FAR, "lock_version": {"N": "7"}}, "lock_token"),
    "version-missing": ({"lock_expires_at": FAR, "lock_token": {"S": "x"}}, "lock_version"),
    "version-text": ({"lock_version": {"S": "7"}}, "lock_version"),
    "version-huge": ({"lock_version": {"N": "1" + "0" * 30}}, "lock_version"),
    "version-fraction": ({**CLAIM, "lock_version": {"N": "7.5"}}, "lock_version"),
}
every_wrong_claim = pytest.mark.parametrize("wrong", WRONG)


def put(model, attributes):
    """Put the row a of a model, with attributes that the model knows nothing of."""
    row = {"name": {"S": "a"}, "balance": {"N": "0"}, **attributes}
    client = model._get_connection().connection.client
    client.put_item(TableName=model.Meta.table_name, Item=row)
    return row


def stands(model):
    client = model._get_connection().connection.client
    where = {"TableName": model.Meta.table_name, "Key": {"name": {"S": "a"}}}
    return client.get_item(**where, ConsistentRead=True)["Item"]


def refused(call, attribute):
    """See that a call is refused, and that its error names the row and the attribute."""
    with pytest.raises(InvalidRowError) as caught:
        call()
    error = caught.value
    assert (error.key, error.attribute) == (f"{Account.Meta.table_name}/a", attribute)
    assert repr(attribute) in str(error)


@every_wrong_claim
def test_lock_is_refused(accounts, sent, wrong):
    attributes, attribute = WRONG[wrong]
    Account("b").save()
    before = put(Account, attributes)
    sent.clear()
    refused(Account.locked("a").acquire, attribute)
    assert sent == ["UpdateItem"]
    refused(Account.locked("a").locked, attribute)
    for timeout in (0, 60):
        refused(Account.locked_all(["a", "b"], timeout=timeout).acquire, attribute)
        assert not Account.locked("b").locked()
    assert stands(Account) == before


@pytest.mark.parametrize(
    ("write", "wrong"),
    [
        *product(("save", "update", "delete"), ["end-text", "end-null", "token-missing"]),
        *product(("save",), ["version-text", "version-huge", "version-missing"]),
    ],
)
def test_write_without_the_lock_is_refused_where_it_depends_on_it(accounts, wrong, write):
    attributes, attribute = WRONG[wrong]
    row = Account.get("a")
    before = put(Account, attributes)
    writes = {"save": row.save, "update": lambda: changed(row), "delete": row.delete}
    refused(writes[write], attribute)
    assert stands(Account) == before


def test_advisory_write_is_refused_for_its_fencing_token_alone(accounts, monkeypatch):
    monkeypatch.setattr(Account, "lock_enforced", False)
    row = Account.get("a")
    before = put(Account, WRONG["version-huge"][0])
    with pytest.raises(InvalidRowError):
        row.save()
    # that its own condition fails is PynamoDB's error
    with pytest.raises(UpdateError) as caught:
        row.update(actions=[Account.balance.add(1)], condition=Account.balance == 99)
    assert caught.value.cause_response_code == "ConditionalCheckFailedException"
    assert stands(Account) == before
    changed(row)
    put(Account, WRONG["end-text"][0])
    row.save()
    assert "lock_expires_at" not in stands(Account)


def test_rows_of_users_need_no_lock_and_may_have_what_they_like(accounts):
    own = {"token": {"N": "1"}, "expires_at": {"S": "x"}, "recordVersionNumber": {"S": "x"}}
    for attributes in ({}, own, {"lock_version": {"N": "7"}}):
        row = put(Account, attributes)
        assert not Account.locked("a").force_release()
        assert stands(Account) == row
        with Account.locked("a", timeout=0) as row:
            changed(row)
        assert balance(Account) == 1


def test_row_of_the_lock_table_that_is_no_locks_is_refused(ledger):
    key = f"{Ledger.Meta.table_name}/a"
    client = LockItem._get_connection().connection.client
    row = {"key": {"S": key}, "expires_at": FAR}
    client.put_item(TableName=LockItem.Meta.table_name, Item=row)
    for write in (Ledger.locked("a").acquire, Ledger.get("a").save):
        with pytest.raises(InvalidRowError, match=key):
            write()


@every_wrong_claim
def test_force_puts_the_lock_of_a_row_right(accounts, wrong):
    put(Account, {**WRONG[wrong][0], "balance": {"N": "5"}, "note": {"S": "mine"}})
    assert Account.locked("a").force_release()
    row = stands(Account)
    assert row.keys() == {"name", "balance", "note", "lock_token", "lock_version"}
    assert not Account.locked("a").force_release()
    with Account.locked("a", timeout=0) as locked:
        assert locked.balance == 5
        assert locked.row_lock.fencing_token == int(row["lock_version"]["N"]) + 1
