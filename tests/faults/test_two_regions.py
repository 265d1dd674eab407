"""I1 on a strongly consistent global table, in emulation: DynamoDB Local, seen from two regions by a proxy each."""

import random
import time
import uuid
from contextlib import ExitStack
from email.utils import formatdate
from itertools import combinations

import pytest
from processes import workers
from pynamodb.models import Model

from dev.faultproxy import fault_proxy, refuse, set_date
from pynamodb_mutex import LockItem

ITEMS = 50
AT_WORK = """
from concurrent.futures import ThreadPoolExecutor
from pynamodb.exceptions import PynamoDBException
from pynamodb_mutex import Once, OnceItem
class Locks(LockItem):
    class Meta: table_name, region, host = {place}
class Results(OnceItem):
    class Meta: table_name, region, host = {place}
once = lambda item: Once.for_key(item, model=Results).call(done.append, item)
# some requests are refused as often as they are repeated
done, options = [], dict(seconds=8.0, lease=1.0, model=Locks, expected=[PynamoDBException])
with ThreadPoolExecutor(4) as pool:
    plain = pool.submit(compete, "plain", **options)
    fair = pool.submit(compete, "fair", fair=True, **options)
    shared = pool.submit(compete, "shared", shared={reads}, **options)
    list(map(once, map(str, range({items}))))
"""


@pytest.mark.lengthy
@pytest.mark.real("local")
def test_users_in_two_regions_never_hold_a_lock_at_once_and_do_work_once(engine):
    chance = random.Random(1)

    class Locks(LockItem):
        class Meta:
            table_name = f"locks-{uuid.uuid4().hex}"

    # as PynamoDB does it: such a table has no TTL
    Model.create_table.__func__(Locks, wait=True, billing_mode="PAY_PER_REQUEST")
    with ExitStack() as stack:
        places = []
        for region, ahead in (("us-east-1", 0.0), ("us-east-2", 0.08)):
            proxy = stack.enter_context(fault_proxy(engine))
            proxy.always(set_date(lambda _, s=ahead: formatdate(time.time() + s, usegmt=True)))
            proxy.always(refuse("ValidationException"), op="TransactWriteItems")
            for op in ("PutItem", "UpdateItem", "DeleteItem"):
                conflict = refuse("ReplicatedWriteConflictException")
                proxy.always(conflict, op=op, when=lambda _: chance.random() < 0.2)
            places.append((Locks.Meta.table_name, region, proxy.url))
        crowd = stack.enter_context(workers(*[0.0] * 4))
        for number, worker in enumerate(crowd):
            reads = number > 1
            worker.send(AT_WORK.format(place=places[number % 2], reads=reads, items=ITEMS))
        for worker in crowd:
            worker.answer(timeout=300.0)
        done = [item for worker in crowd for item in worker.ask("done")]
        assert sorted(map(int, done)) == list(range(ITEMS))
        for kind in ("plain", "fair", "shared"):
            sections = [worker.ask(f"{kind}.result()") for worker in crowd]
            held = sorted(
                (*section, kind == "shared" and number > 1)
                for number, own in enumerate(sections)
                for section in own
            )
            # readers hold it together
            assert not [
                pair
                for pair in combinations(held, 2)
                if pair[1][0] <= pair[0][1] and not (pair[0][2] and pair[1][2])
            ]
