"""What a person decides about a key of ``once`` is about what was read of it, and nothing later."""

import pytest

from pynamodb_mutex import Once
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._lock.runtime.run_on_thread import execute
from pynamodb_mutex._once.run import decide, peek
from pynamodb_mutex.runs import OnceItem


@pytest.mark.parametrize("forces", [False, True])
def test_forget_keeps_a_result_that_was_recorded_after_its_read(table, forces):
    process, once = current_process(), Once.for_key("k", lease=1, auto_renew=False)
    store, row = process.store(OnceItem), once._terms.options.row
    began = once.__enter__()
    # by now the run seems to be dead: it is only slow
    seen = execute(process, peek(process, store, row))
    if not forces:
        seen.claim = seen.claim._replace(expires_at=1.0)
    assert began.complete("sent") == "sent"
    forgotten = execute(process, decide(process, store, row, "k", None, answer=seen, forces=forces))
    assert (forgotten, Once.peek("k").result) == (False, "sent")
    once.__exit__(None, None, None)
    assert (Once.forget("k"), Once.peek("k").state) == (True, "nothing")
