"""Rows for tasks: their awaited calls.

A write is the same operation as for threads, executed by the runner for tasks. So a cancelled task goes on only once its request
was answered: unlike a thread of `asyncio.to_thread`, it writes nothing after that.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pynamodb.constants import TRANSACT_DELETE, TRANSACT_PUT, TRANSACT_UPDATE

from pynamodb_mutex._lock.operations.effects import Outside
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._tasks.run_in_task import execute, iterate, on_worker
from pynamodb_mutex._writes.row_write import RowWrite, checked, checking

if TYPE_CHECKING:
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.operations.effects import Operation

    Options = tuple[Any, bool, bool]

__all__ = ["iterate", "on_worker", "write"]

_METHODS = {TRANSACT_PUT: "save", TRANSACT_UPDATE: "update", TRANSACT_DELETE: "delete"}
_DEFAULTS = {"condition": None, "add_version_condition": True, "unlock": False}


async def write(row: Any, ours: Any, kind: str, options: Options, actions: Any = None) -> Any:
    """Write a row, and return what PynamoDB's method would return: see `~pynamodb_mutex.RowLockMixin.asave`.

    Args:
        row: The instance.
        ours: The method of `~pynamodb_mutex.RowLockMixin` that writes it for threads.
        kind: Name of the write in a transaction.
        options: The options of that method: the caller's condition, whether the model's version is a condition, too, and whether
            the write also releases the lock.
        actions: The caller's actions of an update.
    """
    what = _METHODS[kind]
    method = getattr(row, what)
    if getattr(method, "__func__", None) is not ours:
        # The model's own method, or a mock's. Only with options that differ from the defaults: it may not take all of them.
        pairs = zip(_DEFAULTS.items(), options, strict=True)
        given = {name: value for (name, usual), value in pairs if value is not usual}
        return await on_worker(partial(method, *([] if actions is None else [actions]), **given))
    if kind == TRANSACT_UPDATE:
        actions = checked(actions)
    condition, versioned, unlock = options
    write = RowWrite(row, kind, condition, actions, versioned=versioned)
    process, claim, what = current_process(), row._row_claim, f"a{what}"
    guarded = claim is not None and await execute(process, checking(claim, what))
    make = partial(row._members, write, what, claim if guarded else None, unlock=unlock)
    # if there is a lock table, it may have to make a client, to know the region
    members = make() if type(row).lock_model is None else await on_worker(make)

    def noting(done: tuple[dict[str, Any], RawItem | None]) -> Operation[dict[str, Any]]:
        data, item = done
        if item is None and kind == TRANSACT_UPDATE:
            item = yield from row._reading_again(process, write, what)
        noted: dict[str, Any] = yield Outside(partial(row._written, write, what, data, item))
        return noted

    # Once DynamoDB has applied the write, the instance learns of it, even if the task is cancelled: otherwise a later save of the
    # old values would undo an update.
    done = await execute(process, row._writing(process, members, what), noting)
    if done[1] is None:
        return await execute(process, noting(done))
    return row._written(write, what, *done)
