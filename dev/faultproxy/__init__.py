"""An HTTP proxy between clients and an engine that injects faults: lost, late, doubled and made-up messages.

Everything above the wire is real: PynamoDB, botocore, its connections and timeouts. `proxy` has the proxy, its rules
and its log; `faults` has the faults; `wire` has requests and answers as both see them. Tests and dev.chaos use it;
dev.bench has a proxy of its own, which is fast and injects nothing but latency.

    with fault_proxy(engine) as proxy:
        locks = through(proxy, LockItem)
        proxy.next(drop_answer(), op="acquire")  # the next acquire is applied, and its answer is lost
"""

from dev.faultproxy.faults import (
    DYNAMODBS,
    Fault,
    Late,
    after,
    answer_with,
    apply_after,
    apply_then_500,
    cut_off,
    delay,
    delay_answer,
    deny,
    drop_answer,
    drop_request,
    duplicate,
    late,
    late_by,
    no_date,
    page,
    pass_on,
    refuse,
    server_error,
    set_date,
    stall,
    throttle,
    unavailable,
)
from dev.faultproxy.proxy import FaultProxy, fault_proxy, through
from dev.faultproxy.wire import Body, Exchange, Reply, Seen, When, kind_of
