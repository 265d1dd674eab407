"""The sockets at which waiters are called: real ones. What a hint does is in operations/test_hints.py."""

import logging
import socket
import sys
import threading
from contextlib import closing

import pytest
from processes import Worker, forked, refusing, run_script
from this_process import Process, current_process
from waits import until

from pynamodb_mutex import Hints, LockItem, Mutex
from pynamodb_mutex._fair import listener as of_listener
from pynamodb_mutex._fair.hints import Called, Calls
from pynamodb_mutex._fair.listener import Listener
from pynamodb_mutex._fair.waiting_line import address_of, id_of, new_entry
from pynamodb_mutex.testing import held_elsewhere

BITS = "0123456789abcdef" * 2
NAME = "pynamodb-mutex-hints"


class Bell:
    """Stands for the wake-up of a waiter."""

    def __init__(self):
        self.ring_count, self.rung = 0, threading.Event()

    def ring(self):
        self.ring_count += 1
        self.rung.set()


class Endpoint:
    """Stands for a connection, whose endpoint is all that is asked for."""

    def __init__(self, url="http://127.0.0.1:8000"):
        self.endpoint = url


class Host:
    """A process with a listener, in which somebody waits."""

    def __init__(self, **hints):
        self.process = Process()
        self.place = Endpoint(), Hints(**hints)
        self.bell = Bell()

    @property
    def listener(self):
        return self.process.of(Listener)

    def wait(self):
        """Let somebody wait; return it, and its entry."""
        packed = self.listener.address(*self.place)
        entry = new_entry(1.0, BITS, "she", packed)
        return Called(self.process, entry, self.bell), entry

    def threads(self):
        return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture
def short(monkeypatch):
    """Close sockets without a waiter sooner."""
    monkeypatch.setattr(of_listener, "LINGER", 0.05)


@pytest.fixture
def host(short):
    host = Host()
    yield host
    host.process.of(Calls).waiters.clear()
    until(lambda: not host.threads())


@pytest.fixture
def caller():
    """Another process, which calls."""
    process = Process()
    yield process.of(Listener)
    process.of(Listener).close()


def test_datagram_with_its_id_reaches_a_waiter_and_no_other(host, caller):
    waiter, entry = host.wait()
    address = address_of(entry)
    for text in ("0" * 16, id_of(entry)[:-1], "x" * 1000, "ÿ", ""):
        caller.send(address, text)
    caller.send(address, id_of(entry))
    assert host.bell.rung.wait(60)
    assert (host.bell.ring_count, waiter.hint) == (1, id_of(entry))
    assert host.process.of(Calls).was_called


def test_socket_is_shared_by_waiters_and_closed_when_nobody_waits(host):
    (first, entry), (second, other) = host.wait(), host.wait()
    assert address_of(entry) == address_of(other)
    [thread] = host.threads()
    for waiter in (first, second):
        assert thread.is_alive()
        waiter.end()
    thread.join(60)
    assert not thread.is_alive()
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as again:
        again.bind(address_of(entry))
    _, entry = host.wait()
    assert address_of(entry) is not None
    assert len(host.threads()) == 1


def test_two_threads_that_open_the_socket_at_once_get_the_same_one(host, monkeypatch):
    """The second one has opened it while the first one waits for the endpoint's name."""
    resolve, found = socket.getaddrinfo, []

    def slowly(*args, **how):
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        other = threading.Thread(target=lambda: found.append(host.listener.address(*host.place)))
        other.start()
        other.join(60)
        return resolve(*args, **how)

    waiter, _ = host.wait()
    waiter.end()
    until(lambda: not host.threads())
    Called(host.process, "x" * 16, host.bell)
    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    assert [host.listener.address(*host.place)] == found
    assert len(host.threads()) == 1


def test_listener_of_a_process_that_is_left_ends_though_somebody_waits(host):
    host.wait()
    host.process.inherited = True
    until(lambda: not host.threads())


@pytest.mark.parametrize("given", ["127.0.0.1", "::1"])
def test_given_address_is_that_in_the_entry_and_all_are_listened_at(short, given):
    host = Host(address=given)
    packed = host.listener.address(*host.place)
    [(opened, _)] = host.listener._open.values()
    assert opened.getsockname()[0] in ("0.0.0.0", "::")
    assert address_of(new_entry(1.0, BITS, "", packed)) == (given, opened.getsockname()[1])
    until(lambda: not host.threads())


def test_given_port_that_another_process_has_is_logged_once(host, caplog):
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as taken:
        taken.bind(("127.0.0.1", 0))
        place = Endpoint(), Hints(port=taken.getsockname()[1])
        for _ in range(2):
            assert host.listener.address(*place) is None
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"no hints for {place[1]!r}, so waiters poll: ")


def test_endpoint_whose_name_is_unknown_has_no_hints(host):
    place = Endpoint("https://nowhere.invalid"), Hints()
    assert host.listener.address(*place) is None


def test_socket_whose_thread_the_system_refuses_is_read_later(host, caller):
    with refusing() as system:
        system.all(only="hints")
        _, entry = host.wait()
        caller.send(address_of(entry), id_of(entry))
        system.none()
        host.process.threads.start()
        assert host.bell.rung.wait(60)


@pytest.mark.parametrize(
    "address", [("127.0.0.1", 9), ("::1", 9), ("2001:db8::1", 9), ("203.0.113.9", 9)]
)
def test_datagram_that_cannot_be_sent_is_no_error(caller, address):
    for _ in range(3):
        caller.send(address, "0" * 16)


def test_sending_leaves_no_socket_open(caller, monkeypatch):
    opened = []

    class Recorded(socket.socket):
        def __init__(self, *args):
            super().__init__(*args)
            opened.append(self)

    monkeypatch.setattr(socket, "socket", Recorded)
    caller.send(("127.0.0.1", 9), "0" * 16)
    assert [each.fileno() for each in opened] == [-1]


def test_socket_to_send_by_that_the_system_refuses_is_no_error(caller, monkeypatch):
    def refuse(*_):
        raise OSError("Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", refuse)
        caller.send(("127.0.0.1", 9), "0" * 16)
    caller.send(("127.0.0.1", 9), "0" * 16)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.real("embedded")
def test_forked_child_has_sockets_of_its_own_and_leaves_the_parents_alone(table):
    mutex = Mutex.for_key("a", fair=Hints())
    with held_elsewhere("a"):
        thread = threading.Thread(target=mutex.acquire)
        thread.start()
        until(lambda: mutex.position == 0)
        [parents] = [opened for opened, _ in current_process().of(Listener)._open.values()]
        parent = current_process()

        def child():
            left = parents.fileno(), current_process() is not parent
            taken = Mutex.for_key("b", fair=Hints())
            other = threading.Thread(target=taken.acquire, daemon=True)
            with held_elsewhere("b"):
                other.start()
                until(lambda: taken.position == 0)
                [(opened, _)] = current_process().of(Listener)._open.values()
                port = opened.getsockname()[1]
            other.join(60)
            return left, port, current_process().of(Calls).waiters

        left, port, called = forked(child)
        assert left == [-1, True]
        assert (port != parents.getsockname()[1], called) == (True, {})
    LockItem.force_release("a")
    thread.join(60)
    assert mutex.locked()
    assert parents.fileno() != -1


@pytest.mark.real("embedded", "local")
def test_waiter_in_another_process_is_called(table):
    worker = Worker()
    try:
        worker.ask("from pynamodb_mutex._lock.runtime.process import current_process")
        worker.ask("from pynamodb_mutex import Hints")
        worker.ask("from pynamodb_mutex._fair.hints import Calls")
        worker.ask("mutex = Mutex.for_key('a', fair=Hints())")

        def is_called():
            with Mutex.for_key("a", fair=Hints()):
                worker.send("mutex.acquire()")
                until(lambda: table.get("a", consistent_read=True).waiting)
            assert worker.answer()
            called = worker.ask("current_process().of(Calls).was_called")
            worker.ask("mutex.release()")
            return called

        # On a busy machine a poll may come before the datagram.
        until(is_called)
    finally:
        worker.end()


SCRIPT = """
import socket, sys, threading
opened = []

def audit(event, args):
    if event == "socket.__new__" and args[2] == socket.SOCK_DGRAM:
        opened.append(args)

sys.addaudithook(audit)
from pynamodb_mutex import Mutex
with Mutex.for_key("a", fair=True) as mutex:
    other = Mutex.for_key("a", fair=True, timeout=2)
    waiting = threading.Thread(target=other.acquire)
    waiting.start()
    waiting.join()
assert not opened, opened
assert "pynamodb_mutex._fair.listener" not in sys.modules
assert not [thread for thread in threading.enumerate() if "hints" in thread.name]
"""


@pytest.mark.real("embedded")
def test_without_hints_nothing_is_loaded_opened_or_started(table):
    done = run_script(SCRIPT)
    assert done.returncode == 0, done.stderr


# -- options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"address": 5}, TypeError, "address must be a str, not 5"),
        ({"address": b"\x0a\0\0\7"}, TypeError, "address must be a str"),
        ({"address": "host.example"}, ValueError, "host.example"),
        ({"address": ""}, ValueError, "''"),
        *(
            ({"address": each}, ValueError, f"'{each}' is not the address of one host")
            for each in ("0.0.0.0", "::", "224.0.0.1", "ff02::1", "240.0.0.1", "255.255.255.255")
        ),
        ({"port": "5000"}, TypeError, "port must be an int, not '5000'"),
        ({"port": True}, TypeError, "port must be an int, not True"),
        ({"port": 5.0}, TypeError, "port must be an int, not 5.0"),
        ({"port": -1}, ValueError, "port must be from 0 to 65535, not -1"),
        ({"port": 65_536}, ValueError, "port must be from 0 to 65535, not 65536"),
    ],
)
def test_hints_that_cannot_be_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        Hints(**options)


def test_hints_are_equal_by_their_values():
    same = Hints(address="10.0.0.7", port=5000), Hints(address="10.0.0.7", port=5000)
    assert same[0] == same[1]
    assert len({*same}) == 1
    assert Hints() != Hints(port=5000)
    assert Hints() != (None, 0)
    assert repr(same[0]) == "Hints(address='10.0.0.7', port=5000)"
    with pytest.raises(TypeError):
        Hints("10.0.0.7")


@pytest.mark.parametrize("fair", ["yes", 1, 0, None, {}, ("10.0.0.7", 5000)])
def test_other_values_of_fair_are_refused(fair):
    with pytest.raises(TypeError, match=r"fair must be True, False or Hints\(\.\.\.\), not "):
        Mutex.for_key("a", fair=fair)


def test_hints_for_several_locks_are_refused():
    for call in (Mutex.for_keys, Mutex.any_of):
        with pytest.raises(TypeError, match="fair"):
            call(["a", "b"], fair=Hints())


@pytest.mark.parametrize(
    ("value", "fair", "made"),
    [
        *((None, True, True), ("", True, True), ("0", True, True)),
        *(("1", True, Hints()), ("1", False, False), ("yes", False, False)),
        *((each, Hints(port=5000), Hints(port=5000)) for each in ("0", "1", "yes")),
    ],
)
def test_environment_says_whether_fair_locks_have_hints(monkeypatch, value, fair, made):
    monkeypatch.delenv("PYNAMODB_MUTEX_HINTS", raising=False)
    if value is not None:
        monkeypatch.setenv("PYNAMODB_MUTEX_HINTS", value)
    assert Mutex.for_key("a", fair=fair)._options.fair == made


@pytest.mark.parametrize("value", ["yes", "true", "2", " 1"])
def test_environment_that_is_not_clear_is_refused(monkeypatch, value):
    monkeypatch.setenv("PYNAMODB_MUTEX_HINTS", value)
    with pytest.raises(ValueError, match=f"PYNAMODB_MUTEX_HINTS is 1 or 0, not '{value}'"):
        Mutex.for_key("a", fair=True)
