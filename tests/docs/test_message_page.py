"""``docs/messages.rst`` quotes errors and warnings as users get them: each is produced here."""

import asyncio
import os
import re
import threading
import time
from pathlib import Path

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model

from dev.faultproxy import fault_proxy, refuse, through
from pynamodb_mutex import LockItem, Mutex, Once, OnceItem, RowLockMixin, synchronized
from pynamodb_mutex.testing import held_elsewhere, run_elsewhere, unknown_run

PAGE = Path(__file__).parents[2] / "docs" / "messages.rst"


class Said(list):
    def by(self, call, *args, **options):
        with pytest.raises(Exception) as raised:
            call(*args, **options)
        self.append(f"{raised.type.__name__}: {raised.value}")

    def set_up(self, table, engine, monkeypatch):
        def lock(**meta):
            return Mutex.for_key(
                "k", model=type("Lock", (LockItem,), {"Meta": type("Meta", (), meta)})
            )

        with fault_proxy(engine) as proxy:
            mutex = Mutex.for_key("k", model=through(proxy, table))
            for code in ("AccessDeniedException", "ExpiredTokenException"):
                proxy.next(refuse(code, message="No"))
                self.by(mutex.acquire, timeout=0)
            proxy.always(refuse("ThrottlingException", message="No"))
            self.by(mutex.acquire, timeout=0)
        name = {"table_name": "missing"}
        self.by(lock(**name).acquire)
        self.by(lock(**name, host="http://127.0.0.1:9").acquire, timeout=0)
        for each in [each for each in os.environ if each.startswith("AWS_")]:
            monkeypatch.delenv(each)
        for each in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(each, os.devnull)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        self.by(lock(**name).acquire)
        self.by(lock(**name, region="eu-central-1").acquire)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        self.by(lock(**name, region="eu-central-1").acquire)

    def held(self):
        with held_elsewhere("k", owner="worker-7"):
            self.by(Mutex.for_key("k", timeout=0).__enter__)
            assert not Mutex.for_key("k", lease=0.5).acquire(
                timeout=1
            )  # logs for how long it waits
            asyncio.run(self.wait_in_a_coroutine())
        with Mutex.for_key("k", shared=True):
            self.by(Mutex.for_key("k").acquire)
        with Mutex.for_key("k"):
            self.by(Mutex.for_key("k").acquire)
            other = threading.Thread(
                target=self.by, args=(Mutex.for_key("k", timeout=0).__enter__,)
            )
            other.start()
            other.join()

    async def wait_in_a_coroutine(self):
        Mutex.for_key("k").acquire(timeout=0.1)

    def lost(self):
        self.by(Mutex.for_key("k").release)
        mutex = Mutex.for_key("k", max_hold=0.1, lease=0.5)
        idle = Mutex.for_key("idle", auto_renew=False, lease=0.5)
        assert mutex.acquire()
        assert idle.acquire()
        time.sleep(0.7)  # the log says that it is not renewed, and that it is lost
        self.by(mutex.release)
        self.by(idle.release)
        mutex.acquire()
        LockItem.force_release("k")
        self.by(mutex.release)
        Mutex.for_key("gone").acquire()

        class Account(RowLockMixin, Model):
            class Meta:
                table_name = "locks-of-messages"
                billing_mode = "PAY_PER_REQUEST"

            name = UnicodeAttribute(hash_key=True)

        Account.create_table(wait=True)
        Account("alice").save()
        with held_elsewhere("alice", model=Account):
            self.by(Account("alice").save)
        Account.delete_table()

    def suspended(self):
        interrupt = type("GraphInterrupt", (Exception,), {"__module__": "langgraph"})

        @synchronized("agent")
        def step():
            raise interrupt

        self.by(step)

    def once(self):
        with run_elsewhere("o"):
            self.by(Once.for_key("o", timeout=0).call, str)
        unknown_run("o")
        self.by(Once.for_key("o", on_abandoned="raise").call, str)
        self.by(Once.for_key("p").call, set)
        Once.for_key("q", payload="a").call(str)
        self.by(Once.for_key("q", payload="b").call, str)
        self.by(self.lose_the_key)

    def lose_the_key(self):
        with Once.for_key("r") as run:
            OnceItem.force_release("once#r")
            run.complete(1)


@pytest.mark.real("embedded")
def test_quoted_messages_are_what_the_package_says(engine, table, monkeypatch, caplog, recwarn):
    monkeypatch.setattr(OnceItem.Meta, "table_name", table.Meta.table_name)
    said = Said()
    said.held()
    said.lost()
    said.suspended()
    said.once()
    said.by(Mutex.for_key, "")
    LockItem("row").save()
    said.by(Mutex.for_key("row").acquire)
    said.set_up(table, engine, monkeypatch)
    said += [record.getMessage() for record in caplog.records]
    said += [f"{each.category.__name__}: {each.message}" for each in recwarn]
    quotes = re.findall(r"(?m)^``(.+)``$", PAGE.read_text(encoding="utf-8"))
    assert len(quotes) > 20
    for quote in quotes:
        form = ".+".join(map(re.escape, quote.split("…")))
        assert any(re.fullmatch(form, each) for each in said), "\n".join(["", quote, *said])
