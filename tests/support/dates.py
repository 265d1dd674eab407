"""Server time that a test sets: the Dates of what the engine answers."""

from contextlib import contextmanager
from email.utils import formatdate

from dev.faultproxy import fault_proxy, set_date, through

NOW = 1_800_000_000.0
DAY = 86_400.0


class Dates:
    """Lets all answers that a proxy carries show a server time, `now`."""

    def __init__(self, proxy, now=NOW):
        self.proxy, self.now = proxy, now
        proxy.always(set_date(lambda _: formatdate(self.now, usegmt=True)))


@contextmanager
def another_process(scene, now):
    """Make a client that has had no answer yet, and the server time that its answers show."""
    with fault_proxy(scene.engine) as proxy:
        yield through(proxy, scene.there), Dates(proxy, now)
