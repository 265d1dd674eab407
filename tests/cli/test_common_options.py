"""What all commands share: which table, messages of failures, closed pipes, Ctrl-C, help and completion."""

import base64
import os
import socket
import subprocess
import sys
import types
import uuid
from datetime import datetime, timezone
from decimal import Decimal

import pytest
from command_line import COMMAND, cli, json_of
from pynamodb.attributes import BinaryAttribute, MapAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.models import Model
from pynamodb.signals import pre_dynamodb_send
from two_clients import Elsewhere

from pynamodb_mutex import LockItem, Mutex, MutexTimeoutError, RowLockMixin
from pynamodb_mutex.cli import _output, main
from pynamodb_mutex.cli._app import app
from pynamodb_mutex.cli._exit_codes import INTERRUPTED
from pynamodb_mutex.cli._place import Place
from pynamodb_mutex.testing import expire, held_elsewhere


class ShopLock(LockItem):
    """Other stored names, a range key, another kind of payload."""

    Meta = type("Meta", (), {"table_name": "shop"})
    key = UnicodeAttribute(hash_key=True, attr_name="pk")
    kind = UnicodeAttribute(range_key=True, attr_name="sk", default="LOCK")
    owner = UnicodeAttribute(null=True, attr_name="who")
    expires_at = NumberAttribute(null=True, attr_name="until")
    data = MapAttribute(null=True, attr_name="payload")


class ShardLock(LockItem):
    Meta = type("Meta", (), {"table_name": "shards"})
    shard = NumberAttribute(range_key=True)


class Order(RowLockMixin, Model):
    Meta = type("Meta", (), {"table_name": "orders", "billing_mode": "PAY_PER_REQUEST"})
    customer = UnicodeAttribute(hash_key=True)
    number = NumberAttribute(range_key=True)


class Blob(RowLockMixin, Model):
    Meta = type("Meta", (), {"table_name": "blobs", "billing_mode": "PAY_PER_REQUEST"})
    digest = BinaryAttribute(hash_key=True, legacy_encoding=False)


class Note(RowLockMixin, Model):
    Meta = type("Meta", (), {"table_name": "notes", "billing_mode": "PAY_PER_REQUEST"})
    name = UnicodeAttribute(hash_key=True)


class Kept(RowLockMixin, Model):
    lock_model = LockItem
    name = UnicodeAttribute(hash_key=True)


SHOP, SHARD, ORDER, BLOB, NOTE = (
    ("--model", f"{__name__}:{name}") for name in ("ShopLock", "ShardLock", "Order", "Blob", "Note")
)


def failure(*args, **more):
    """Run a command that fails; return the one line that it prints."""
    done = cli(*args, code=1, **more)
    (line,) = done.stderr.splitlines()
    assert done.stdout == ""
    return line


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nothing",), "No such command"),
        *(((name, "a"), "Did you mean release?") for name in ("free", "unlock", "kill")),
        (("status",), "Did you mean ls or show?"),
        (("--endpoint-url", "localhost:8000", "ls"), "give a URL such as http://localhost:8000"),
        (("--endpoint-url", "http://", "ls"), "give a URL such as http://localhost:8000"),
        (("--endpoint-url", "http://[::1", "ls"), "give a URL such as http://localhost:8000"),
        (("--endpoint-url", "http://a:65536", "ls"), "give a URL such as http://localhost:8000"),
        (("--endpoint-url", "http://me:pass/word@h", "ls"), "url': give a URL such as"),
        (("--table", " ", "ls"), "is empty"),
        (("ls", "--region", ""), "is empty"),
        (("--model", __name__, "ls"), "such as shop.locks:ShopLock"),
        (("--model", ":x", "ls"), "such as shop.locks:ShopLock"),
        (("--model", f"{__name__}:Nothing", "ls"), "AttributeError"),
        (("--model", "no_such_module:X", "ls"), "ModuleNotFoundError"),
        (("--model", "os:path", "ls"), "neither a LockItem nor a model with row locks"),
        (("--model", f"{__name__}:Kept", "ls"), "keeps its locks in LockItem"),
        ((*ORDER, "create-table"), "is a model of rows"),
        ((*ORDER, "show", "a"), "Order has a range key"),
        ((*ORDER, "watch", "a"), "Order has a range key: give it"),
        ((*ORDER, "show", "a", "--range-key", "x"), "is not a number"),
        ((*BLOB, "show", "AQ==", "--range-key", "1"), "no range key"),
        ((*BLOB, "show", "A"), "is not base64"),
        ((*SHARD, "show", "a"), "ShardLock.shard is a range key: give range_key"),
        ((*SHARD, "show", "a", "--range-key", "x"), "is not a number"),
        ((*SHARD, "run", "a", "true"), "ShardLock.shard is a range key: give range_key"),
        ((*SHARD, "run", "a", "--range-key", "x", "--", "true"), "is not a number"),
        ((*SHARD, "ls", "a"), "ShardLock.shard is a range key: give range_key"),
        ((*SHARD, "ls", "--range-key", "7"), "give a KEY with --range-key"),
        (("ls", *map(str, range(101))), "give up to 100 KEYs"),
        (("show", ""), "a key takes 1 to 2048 bytes"),
        (("ls", "x" * 3000), "a key takes 1 to 2048 bytes"),
        (("show", "a", "--range-key", "1"), "LockItem has no range key"),
        (("watch", "--interval", "0"), "--interval"),
        (("watch", "--interval", "nan"), "--interval"),
        *((("wait", "a", "--timeout", no), "--timeout") for no in ("-2", "soon", "nan", "inf")),
        (("create-table", "--read-capacity", "1"), "and --write-capacity together"),
        (("create-table", "--read-capacity", "0", "--write-capacity", "1"), "--read-capacity"),
        (("create-table", "--tag", "team"), "'team' is not KEY=VALUE, such as team=payments"),
        (("create-table", "--tag", "=x"), "'=x' is not KEY=VALUE, such as team=payments"),
        (("template", "pulumi"), "'pulumi' is not one of"),
        (("template", "terraform", "--read-capacity", "0"), "'--read-capacity': 0"),
        (("template", "terraform", "--write-capacity", "1"), "and --write-capacity together"),
        (("policy", "--role", "king"), "'king' is not one of"),
        (("policy", "--account", "me"), "twelve digits"),
        (("policy", "--region", "middle-earth-1"), "no AWS region: middle-earth-1"),
        (("policy", "--table", "x*"), "--table: no table name: 'x*'"),
        (("run", "k"), "Missing argument"),
        (("run", "k", "--lease", "0.1", "--", "true"), "a lease under 0.5 s"),
        (("run", "k", "--lease", "nan", "--", "true"), "lease must be a finite number"),
        (("run", "k", "--timeout", "-2", "--", "true"), "timeout must be -1"),
        (("run", "k", "--grace", "-1", "--", "true"), "cannot be negative"),
        (("run", "k", "--grace", "inf", "--", "true"), "finite number"),
        (("run", "k", "--deadline", "0", "--", "true"), "must be above 0"),
        (("run", "k", "--if-locked", "steal", "--", "true"), "steal"),
        (("run", "", "--", "true"), "1 to 2048 bytes"),
        (("run", "k", "--model", "nix", "--", "true"), "--model"),
    ],
)
def test_wrong_usage(args, message):
    assert message in cli(*args, code=2).stderr


def test_options_before_or_after_the_command_and_from_the_environment(table, engine):
    name = table.Meta.table_name
    with held_elsewhere("a"):
        assert "a\telsewhere\t" in cli("--table", name, "ls").stdout
        # the later one counts
        assert "a\t" in cli("--table", "nothing", "ls", "--table", name).stdout
        at = ("--endpoint-url", engine.endpoint_url, "--region", "us-east-1")
        assert "a\t" in cli(*at, "ls").stdout
        cli("wait", "a", env={"PYNAMODB_MUTEX_WAIT_TIMEOUT": "0"}, code=75)
    env = {"PYNAMODB_MUTEX_REGION": "us-west-2"}
    assert " in us-west-2" in cli("ls", env=env).stderr
    done = cli("--region", "us-east-1", "ls", env=env)
    assert " in us-east-1" in done.stderr


def test_amazons_own_endpoint_is_not_spelt_out(monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"):
        monkeypatch.delenv(name, raising=False)
    place = Place({"table": "mine", "region": "eu-west-1"})
    assert str(place) == "table mine in eu-west-1"


def test_model_with_other_names_a_range_key_and_other_data(made):
    model = made(ShopLock)
    with held_elsewhere("a", owner="me", model=model):
        model("stray", kind="ORDER", owner="they", token="t", expires_at=1.0).save()
        model("other", kind="ORDER").save()
        data = model.data.set(MapAttribute(page=3))
        model.get("a", "LOCK").update([data], add_version_condition=False)
        (lock,) = json_of(*SHOP, "ls")
        assert (lock["key"], lock["owner"], lock["state"]) == ("a", "me", "held")
        assert "range_key" not in lock
        assert json_of(*SHOP, "show", "a")["data"] == {"page": 3}
        assert json_of(*SHOP, "release", "a", "--force", "--yes")["freed"] is True
        assert model.get("a", "LOCK").expires_at is None
        assert model.get("stray", "ORDER").expires_at == 1.0


def test_lock_table_whose_range_keys_are_given_lock_by_lock(made):
    model = made(ShardLock)
    with held_elsewhere(("a", 7), owner="me", model=model), held_elsewhere(("a", 8), model=model):
        found = json_of(*SHARD, "ls")
        assert [(lock["key"], lock["range_key"]) for lock in found] == [("a", "7"), ("a", "8")]
        assert cli(*SHARD, "ls").stdout.splitlines()[1].startswith("a 7\tme\t")
        assert json_of(*SHARD, "show", "a", "--range-key", "7.0")["owner"] == "me"
        found = json_of(*SHARD, "ls", "a", "b", "--range-key", "7")
        assert [(lock["key"], lock["state"]) for lock in found] == [("a", "held"), ("b", "free")]
        done = cli(*SHARD, "wait", "a", "--range-key", "7", "--timeout", "0", code=75)
        assert done.stderr.startswith("'a 7' is still held by ")
        freed = json_of(*SHARD, "release", "a", "--range-key", "7", "--force", "--yes")
        assert (freed["freed"], freed["lock"]["range_key"]) == (True, "7")
        assert model.get("a", 8).is_held


def test_model_of_rows_with_a_range_key(made, table):
    model = made(Order)
    model("alice", 7).save()
    model("bob", 1).save()
    with held_elsewhere(("alice", 7), owner="me", model=model), held_elsewhere("a"):
        # the table of the model counts, not that of the environment
        (lock,) = json_of(*ORDER, "--table", model.Meta.table_name, "ls")
        assert [lock] == json_of(*ORDER, "ls")
        assert (lock["key"], lock["range_key"], lock["owner"]) == ("alice", "7", "me")
        assert cli(*ORDER, "ls").stdout.splitlines()[1].startswith("alice 7\tme\t")
        assert json_of(*ORDER, "ls", "alice", "--range-key", "7")[0]["owner"] == "me"
        (lock,) = json_of("--model", "pynamodb_mutex:LockItem", "ls")
        assert lock["key"] == "a"
        found = json_of(*ORDER, "show", "alice", "--range-key", "7.0")
        assert (found["state"], found["row_kept_until"], found["data"]) == ("held", None, None)
        done = cli(*ORDER, "wait", "alice", "--range-key", "7", "--timeout", "0", code=75)
        assert done.stderr.startswith("'alice 7' is still held by ")
        expire(("alice", 7), model)
        named = ("alice", "--range-key", "7", "--force", "--yes")
        assert json_of(*ORDER, "release", *named)["lock"]["range_key"] == "7"
    row = model.get("alice", 7)
    assert (row.lock_expires_at, row.number) == (None, 7)
    assert json_of(*ORDER, "show", "bob", "--range-key", "1")["token"] is None
    lines = cli(*ORDER, "show", "carol", "--range-key", "1").stdout
    assert "none: there is no such row" in lines
    assert not list(model.query("carol"))


def test_model_of_rows_with_binary_keys(made):
    model = made(Blob)
    model(b"\xff\x00").save()
    model(b"\x01").save()
    text = base64.b64encode(b"\xff\x00").decode()
    with held_elsewhere(b"\xff\x00", model=model):
        assert [lock["key"] for lock in json_of(*BLOB, "ls")] == [text]
        assert json_of(*BLOB, "release", text, "--force", "--yes")["freed"] is True
    assert "never acquired" in cli(*BLOB, "show", "AQ==").stdout


@pytest.mark.parametrize(
    ("place", "model", "key"),
    [(ORDER, Order, ("al/i%ce", 7)), (BLOB, Blob, (b"\xff\x00",)), (NOTE, Note, ("a/b",))],
)
def test_row_is_found_by_the_name_that_errors_print(made, table, place, model, key):
    rows = made(model)
    rows(*key).save()
    with held_elsewhere(key if len(key) > 1 else key[0], owner="me", model=rows):
        with pytest.raises(MutexTimeoutError) as refused, rows.locked(*key, timeout=0):
            raise AssertionError
        name = refused.value.key
        assert json_of(*place, "show", name)["owner"] == "me"
        assert cli(*place, "wait", name, "--timeout", "0", code=75)
        assert "is shown with --model" in cli("show", name).stdout
        assert "is shown with --model" in cli("release", name, "--force").stderr
        assert json_of(*place, "release", name, "--force", "--yes")["freed"] is True


def test_own_key_of_a_row_comes_before_the_name_of_another(made, table):
    rows = made(Note)
    name = f"{rows.Meta.table_name}/a"
    for key in ("a", name):
        rows(key).save()
    with held_elsewhere(name, owner="of the longer", model=rows):
        assert json_of(*NOTE, "show", name)["owner"] == "of the longer"
        assert json_of(*NOTE, "show", "a")["state"] == "free"
    rows(name).delete(add_version_condition=False)
    with held_elsewhere("a", owner="of the shorter", model=rows):
        assert json_of(*NOTE, "show", name)["owner"] == "of the shorter"


def test_model_in_the_working_directory(table, tmp_path, monkeypatch):
    module = "from pynamodb_mutex import LockItem\nclass Here(LockItem):\n    pass\n"
    (tmp_path / "cli_models_here.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with held_elsewhere("a"):
        for _ in range(2):
            assert "a\t" in cli("--model", "cli_models_here:Here", "ls").stdout


def test_json_of_values_of_attributes():
    when, number = datetime(2026, 1, 2, tzinfo=timezone.utc), uuid.UUID(int=1)
    values = [MapAttribute(a=1), {2, 1}, b"\xff", Decimal("1.5"), when, number]
    texts = ["2026-01-02T00:00:00+00:00", "00000000-0000-0000-0000-000000000001"]
    assert [_output.plain(value) for value in values] == [{"a": 1}, [1, 2], "/w==", 1.5, *texts]


def test_a_missing_table_is_reported_with_advice(engine):
    missing = f"Error: there is no table no-such-table in us-east-1 at {engine.endpoint_url}: "
    creates = "wrong region or profile? If not, pynamodb-mutex create-table creates it"
    for args in (("ls",), ("show", "a"), ("wait", "a"), ("watch",), ("release", "a")):
        assert failure("--table", "no-such-table", *args) == missing + creates
    # create-table does not create tables of rows
    for args in ((*ORDER, "ls"), ("delete-table", "--yes")):
        line = failure("--table", "no-such-table", *args)
        assert line.startswith("Error: there is no table no-such-table in us-east-1")
        assert line.endswith(": wrong region or profile?")


@pytest.mark.real("embedded")
def test_an_endpoint_that_does_not_answer_is_reported(table, monkeypatch):
    monkeypatch.setattr("pynamodb_mutex.cli._locks.PATIENCE", 0.2)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        at = ("--endpoint-url", f"http://127.0.0.1:{closed.getsockname()[1]}")
        for args in (("ls",), ("delete-table",)):
            assert "Could not connect to the endpoint URL" in failure(*at, *args)


@pytest.mark.real("embedded")
def test_a_profile_comes_before_credentials_of_the_environment(table, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_PROFILE", "")  # put back afterwards, as are these
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.setenv(f"AWS_{name}", "theenvironments")
    credentials = tmp_path / "credentials"
    credentials.write_text("[ops]\naws_access_key_id = theprofiles\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    used = set()

    def note(sender, **_):
        used.add(sender.session.get_credentials().access_key)

    with pre_dynamodb_send.connected_to(note):
        cli("--profile", "ops", "--region", "us-east-1", "ls")
    assert used == {"theprofiles"}
    assert "The config profile (nobody) could not be found" in failure("--profile", "nobody", "ls")
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "nothing"))
    assert "AWS_ACCESS_KEY_ID" not in os.environ
    message = failure("--region", "us-east-1", "ls")
    assert "Unable to locate credentials. Give credentials as boto3 finds them" in message


@pytest.mark.parametrize(
    ("url", "invalid"),
    [
        *((url, f"Invalid endpoint: {url}") for url in ("nonsense", "http://localhost:99999")),
        ("http://[::1", "Invalid IPv6 URL"),
    ],
)
def test_invalid_endpoints_and_regions_are_reported(monkeypatch, tmp_path, url, invalid):
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", url)
    at = ("--region", "us-east-1")
    for args, request in ((("ls",), "Scan failed: "), (("show", "k"), "GetItem failed: ")):
        assert failure(*at, *args) == f"Error: {request}{invalid}"
    for name in ("create-table", "delete-table"):
        assert failure(*at, name) == f"Error: {invalid}"
    done = cli(*at, "run", "k", "--", "true", code=125)
    assert done.stderr == f"Error: GetItem failed: {invalid}\n"
    monkeypatch.delenv("AWS_ENDPOINT_URL_DYNAMODB")
    assert "region_name '!' doesn't match" in failure("--region", "!", "ls")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "nothing"))
    for command in ("ls", "create-table", "delete-table"):
        assert "You must specify a region. Set the region: " in failure(command)


def test_a_programming_error_is_not_reported_as_a_failure(monkeypatch):
    monkeypatch.setattr("pynamodb_mutex.cli._listing.locks_of", lambda *_, **__: int("ours"))
    with pytest.raises(ValueError, match="ours"):
        cli("ls")


CLOSED = """
import os, sys
from pynamodb_mutex.cli import main
import pynamodb_mutex.cli._app  # once, not in each fork
for args in (["ls"], ["ls", "--json"], ["policy"], ["show", "--help"]):
    pid = os.fork()
    if pid == 0:
        sys.argv[1:] = args
        main()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=sys.stderr, flush=True)
"""


@pytest.mark.real("embedded")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_closed_pipe_ends_a_command_silently(table):
    reads, writes = os.pipe()
    os.close(reads)
    to = {"stdout": writes, "stderr": subprocess.PIPE}
    with held_elsewhere("a"):
        done = subprocess.run([sys.executable, "-c", CLOSED], **to, check=False, timeout=100)
    os.close(writes)
    assert done.stderr.split() == [b"141"] * 4


@pytest.mark.real("embedded")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no sh")
def test_closed_streams_and_characters_that_the_encoding_lacks(table):
    script = ["sh", "-c", '"$@" && "$@" 2>&- && "$@" >&-', "sh", *COMMAND, "ls"]
    env = os.environ | {"PYTHONIOENCODING": "latin-1"}
    with held_elsewhere("\u03ba"):
        done = subprocess.run(script, capture_output=True, env=env, check=False, timeout=100)
    assert (done.returncode, done.stderr, done.stdout.count(rb"\u03ba")) == (0, b"", 2)


def test_main_prints_the_version_and_is_interrupted_at_its_start(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["main", "--version"])
    with pytest.raises(SystemExit, match=r"^0$"):
        main()
    assert capsys.readouterr().out.startswith("pynamodb-mutex, version ")

    class Slow(types.ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "pynamodb_mutex.cli._app", Slow("_app"))
    with pytest.raises(SystemExit, match=f"^{INTERRUPTED}$"):
        main()


HIDING = """
import importlib.util, sys
sys.modules["click"] = None
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in ("click", "rich") else find(name, *a)
from pynamodb_mutex.cli import main
main()
"""


def test_without_the_extra_one_line_names_it():
    done = subprocess.run([sys.executable, "-c", HIDING], capture_output=True, check=False)
    needs = b"pynamodb-mutex needs click and rich: pip install 'pynamodb-mutex[cli]'\n"
    assert (done.returncode, done.stderr) == (1, needs)


LIGHT = """
import os, sys
from pynamodb_mutex.cli import main
try:
    main()
finally:
    heavy = {name.partition(".")[0] for name in sys.modules} & {"botocore", "pynamodb", "rich"}
    print(sorted(heavy), file=sys.stderr)
"""


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["completion", "bash"], []], ids=str)
def test_what_needs_no_table_imports_neither_botocore_nor_pynamodb(args):
    words = {"COMP_WORDS": "pynamodb-mutex s", "COMP_CWORD": "1"}
    tab = {} if args else {"_PYNAMODB_MUTEX_COMPLETE": "bash_complete", **words}
    script = [sys.executable, "-c", f"import sys; sys.argv[0] = 'pynamodb-mutex'\n{LIGHT}", *args]
    done = subprocess.run(script, env=os.environ | tab, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"[]\n")
    assert done.stdout if args else b"plain,show" in done.stdout


def test_list_of_commands_says_of_each_what_its_own_help_begins_with():
    with app.make_context("pynamodb-mutex", ["ls"]) as context:
        for name, listed in app.commands.items():
            _, command, _ = app.resolve_command(context, [name])
            assert listed.get_short_help_str(200) == command.get_short_help_str(200)
            assert command.name == name


def test_help_and_completion_scripts():
    assert "..." not in cli("--help", env={"COLUMNS": "80"}).stdout.partition("Commands:")[2]
    for name in app.commands:
        text = cli(name, "-h", env={"COLUMNS": "80"}).stdout
        assert max(map(len, text.splitlines())) <= 80
        assert text == cli(name, "--help", env={"COLUMNS": "80"}).stdout
        assert "\n  Examples:\n    " in text
        if name != "completion":
            assert "\n  Exit codes:\n    0 " in text
            assert "--endpoint-url" in text
    for shell in ("bash", "zsh", "fish"):
        script = cli("completion", shell).stdout
        assert "_PYNAMODB_MUTEX_COMPLETE" in script
        assert "pynamodb-mutex" in script


@pytest.mark.real("embedded")
def test_completion_of_keys(table):
    def complete(*words):
        """Ask as bash does to complete the last word; return what it offers, and how bash asked."""
        env = {
            "_PYNAMODB_MUTEX_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["pynamodb-mutex", *words]),
            "COMP_CWORD": str(len(words)),
        }
        done = cli(env=env, prog_name="pynamodb-mutex")
        assert done.stderr == ""
        return [line.partition(",")[2] for line in done.stdout.splitlines() if line], env

    with held_elsewhere("deploy"), held_elsewhere("debug"), held_elsewhere("other one"):
        found, env = complete("show", "de")
        assert found == ["debug", "deploy"]
        assert complete("watch", "debug", "o")[0] == []
        assert "show" in complete("s")[0]
        assert complete("--endpoint-url", "http://127.0.0.1:9", "show", "de")[0] == []
        done = subprocess.run(COMMAND, env=os.environ | env, capture_output=True, check=False)
        assert (done.stdout.split(), done.stderr) == ([b"plain,debug", b"plain,deploy"], b"")


@pytest.mark.real("embedded")
def test_live_view_until_ctrl_c(table, spawn):
    mutex = Mutex.for_key("deploy", owner="me", model=Elsewhere)
    with held_elsewhere("other"):
        child = spawn("watch", "--interval", "0.1")
        child.expect("held: 1 ")
        mutex.acquire()
        child.expect("deploy  taken by me, fencing token")
        mutex.release()
        child.expect("deploy  freed")
        child.sendintr()
        code, shown = child.end()
        assert (code, "Traceback" in shown) == (0, False)


@pytest.mark.real("embedded")
def test_ctrl_c_at_the_question_breaks_nothing(table, spawn):
    import pexpect

    with held_elsewhere("a", owner="they") as item:
        child = spawn("release", "a", "--force")
        child.expect("owner: +they")
        child.expect(r"Break this claim in .*\[y/N\]")
        # Python misses a signal in the instant in which it begins to read a line
        while True:
            child.sendintr()
            if child.expect(["interrupted", pexpect.TIMEOUT], timeout=5) == 0:
                break
        assert child.end()[0] == 130
        assert LockItem.get("a").token == item.token
