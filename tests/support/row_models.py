"""Models of users' rows, what their tables contain, and writes of rows.

The fixtures `accounts`, `ledger` and `model` make fresh tables with the row a.
"""

from __future__ import annotations

import uuid
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from pynamodb.attributes import BinaryAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamodb_mutex import LockItem, RowLockMixin

Bases = tuple[type[Model], ...]

PLAIN: Bases = (Model,)
LOCKABLE: Bases = (RowLockMixin, Model)


def meta(name: str | None = None) -> type:
    """Return a Meta for a table, by default a fresh one."""
    named = {"table_name": name or f"rows-{uuid.uuid4().hex}", "billing_mode": "PAY_PER_REQUEST"}
    return type("Meta", (), named)


def made(attributes: dict[str, Any], bases: Bases, name: str | None = None) -> type[Any]:
    """Return a model with attributes and bases; its table has a fresh name by default."""
    return type("Row", bases, {"Meta": meta(name), **attributes})


def created(model: type[Any]) -> type[Any]:
    """Create the table of a model; return the model."""
    model.create_table(wait=True)
    return model


binary = partial(BinaryAttribute, legacy_encoding=False)
legacy_binary = partial(BinaryAttribute, legacy_encoding=True)


def keyed(make_hash: Any, make_range: Any = None) -> Any:
    """Return a function that makes attributes for a model, with keys of some classes."""

    def attributes() -> dict[str, Any]:
        ranged = {} if make_range is None else {"sk": make_range(range_key=True)}
        return {"pk": make_hash(hash_key=True), **ranged, "note": UnicodeAttribute(null=True)}

    return attributes


def hashed(**more: Any) -> Any:
    """Return a function that makes attributes for a model: a hash key, and others of some classes."""
    key = keyed(UnicodeAttribute)
    return lambda: key() | {name: make() for name, make in more.items()}


# -- what rows contain -----------------------------------------------------------------------------


def key_of(row: Model) -> tuple[Any, ...]:
    """Return the key of a row, as `locked` and `get` take it."""
    names = (type(row)._hash_keyname, type(row)._range_keyname)
    return tuple(getattr(row, name) for name in names if name is not None)


def stored(row: Model) -> dict[str, Any]:
    """Return a row as it is stored, for comparison."""
    hash_key, range_key = row._get_hash_range_key_serialized_values()
    answer = row._get_connection().get_item(hash_key, range_key=range_key, consistent_read=True)
    return ordered(answer.get("Item", {}))


def ordered(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a row in which numbers compare by value, and sets without their order."""
    return {
        name: {kind: _compared(kind, value)}
        for name, typed in raw.items()
        for kind, value in typed.items()
    }


def _compared(kind: str, value: Any) -> Any:
    if kind == "N":
        return Decimal(value)
    if kind == "NS":
        return sorted(map(Decimal, value))
    return sorted(value) if kind in {"SS", "BS"} else value


def lock_names(model: type[Model]) -> set[str]:
    """Return the stored names of a claim's attributes in the rows of a model."""
    attributes = model.get_attributes()
    return {
        attributes[name].attr_name
        for name in RowLockMixin.get_attributes()
        if issubclass(model, RowLockMixin)
    }


def content(row: Model) -> dict[str, Any]:
    """Return the attributes of an instance, without those of its lock."""
    raw = ordered(row._container_serialize(null_check=False))
    return {name: typed for name, typed in raw.items() if name not in lock_names(type(row))}


def own(row: Model) -> dict[str, Any]:
    """Return the stored attributes of a row, without those of its lock."""
    return {name: v for name, v in stored(row).items() if name not in lock_names(type(row))}


# -- accounts --------------------------------------------------------------------------------------


class OldAccount(Model):
    """A row, of a program that knows nothing of row locks."""

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)
    last = UnicodeAttribute(null=True)


class Account(RowLockMixin, OldAccount):
    """A row with its claim in it."""

    Meta = meta("accounts")


class AccountElsewhere(Account):
    """The same rows with another connection and another local queue, as in another process."""

    Meta = Account.Meta


class Ledger(Account):
    """A row with its claim in the lock table."""

    Meta = meta("ledger")
    lock_model = LockItem


def balance(model):
    """Return the balance that is stored in the row a."""
    return model.get("a", consistent_read=True).balance


def changed(row):
    """Add 1 to the balance in the row, by a request that names nothing else."""
    return row.update(actions=[type(row).balance.add(1)])


def add_to_all(rows: Any, **options: bool) -> None:
    """Add 1 to each balance by update, in one transaction."""
    with rows.transaction(**options) as transaction:
        for row in rows:
            transaction.update(row, [type(row).balance.add(1)])


def add_unread(rows: Any, locked: Any, **options: bool) -> None:
    """Add 1 to each balance by instances that were not read, in one transaction."""
    model = rows.scene.here
    with locked.transaction(**options) as transaction:
        for key in rows.keys:
            transaction.update(model(key), [model.balance.add(1)])


def save(row: Account, last: str = "mine", **options: Any) -> Any:
    """Add 1 to the balance as it was read, and save the row."""
    row.balance, row.last = row.balance + 1, last
    return row.save(**options)


def update(row: Account, last: str = "mine", **options: Any) -> Any:
    """Add 1 to the balance in the row."""
    actions = [type(row).balance.add(1), type(row).last.set(last)]
    return row.update(actions, **options)


def delete(row: Account, **options: Any) -> Any:
    """Delete the row."""
    return row.delete(**options)


every_write = pytest.mark.parametrize("write", [save, update, delete])
save_or_update = pytest.mark.parametrize("write", [save, update])


# -- fixtures --------------------------------------------------------------------------------------


def _fresh(model, monkeypatch):
    monkeypatch.setattr(model.Meta, "table_name", meta().table_name)
    created(model)("a").save()
    return model


@pytest.fixture
def accounts(engine, monkeypatch):
    """Account, and with it AccountElsewhere."""
    return _fresh(Account, monkeypatch)


@pytest.fixture
def ledger(table, monkeypatch):
    """Ledger, and a fresh lock table."""
    return _fresh(Ledger, monkeypatch)


@pytest.fixture(params=[Account, Ledger])
def model(request, table, monkeypatch):
    """Account and Ledger in turn."""
    return _fresh(request.param, monkeypatch)
