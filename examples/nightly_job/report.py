"""A nightly job, to be run under a lock: makes a report, once for each day.

pynamodb-mutex run nightly-report --if-locked skip -- python report.py 2026-11-22
"""

from __future__ import annotations

import os
import sys
import time

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model


class Job(Model):
    """What was done, and by which holder of the lock last."""

    class Meta:
        table_name = "jobs"
        billing_mode = "PAY_PER_REQUEST"

    name = UnicodeAttribute(hash_key=True)
    fence = NumberAttribute(null=True)
    done = UnicodeAttribute(null=True)


def main(day: str) -> str:
    fence = int(os.environ["PYNAMODB_MUTEX_FENCING_TOKEN"])
    job = Job("report")
    # From here on what an older holder still sends is refused; and the row is read, in the same request.
    older = Job.fence.does_not_exist() | (Job.fence <= fence)
    job.update(actions=[Job.fence.set(fence)], condition=older)
    if job.done == day:
        return f"the report of {day} was made already"
    time.sleep(0.5)  # making the report
    job.update(actions=[Job.done.set(day)], condition=Job.fence == fence)
    return f"made the report of {day}"


if __name__ == "__main__":
    print(main(sys.argv[1]))
