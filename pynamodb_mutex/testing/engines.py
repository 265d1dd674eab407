"""DynamoDB on this machine, for tests and examples.

Starts one of two engines, each in a process of its own that never outlives the one that started it:
:func:`embedded_dynamodb`, moto's DynamoDB, needs only Python packages and starts in a second;
:func:`dynamodb_local`, Amazon's own DynamoDB Local, needs Java. :func:`use` directs the process to one.
What the embedded engine adds to moto is in `embedded_server`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired, run
from typing import IO, NamedTuple, cast
from urllib.parse import urlsplit

from pynamodb_mutex._lock.runtime.process import forget_everything
from pynamodb_mutex.testing import supervisor
from pynamodb_mutex.testing.supervisor import answers

LOCAL_VARIABLE = "PYNAMODB_MUTEX_DYNAMODB_LOCAL"
"""Environment variable with the URL of a running DynamoDB Local, or the path of a directory with its jars."""

_LOCAL_MAIN = "software.amazon.dynamodb.services.local.main.ServerRunner"
_FETCH_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_POM = """\
<project><modelVersion>4.0.0</modelVersion>
<groupId>pynamodb-mutex</groupId><artifactId>fetching</artifactId><version>0</version>
<dependencies><dependency>
<groupId>{0.group}</groupId><artifactId>{0.name}</artifactId><version>{0.version}</version>
</dependency></dependencies></project>
"""
LOCAL_OPTIONS = ["-inMemory", "-sharedDb", "-disableTelemetry"]
_JAVA_NEEDED = 17
_START_SECONDS = 60.0
_STOP_SECONDS = 5.0
_URL = ("http://", "https://")


class Artifact(NamedTuple):
    """A Maven artifact. The title is for messages, and for the name of the folder where its jars are kept."""

    title: str
    group: str
    name: str
    version: str


_LOCAL = Artifact("DynamoDB Local", "software.amazon.dynamodb", "DynamoDBLocal", "3.1.0")


class EngineError(RuntimeError):
    """An engine cannot be started. The message says what to do, or shows the engine's output."""


@dataclass(frozen=True)
class Engine:
    """A DynamoDB that listens on this machine.

    Attributes:
        name: "embedded", "local", or "external" for one that was already running.
        endpoint_url: The URL at which it answers.
        pid: Its process id; None if it was already running.
    """

    name: str
    endpoint_url: str
    pid: int | None = None


@contextmanager
def embedded_dynamodb(port: int = 0) -> Iterator[Engine]:
    """Run moto's DynamoDB, one request at a time, in a process of its own.

    Args:
        port: The port on 127.0.0.1; 0 for one that is free.

    Yields:
        The engine, ready to answer.

    Raises:
        EngineError: If a package is missing, or the server does not start.
    """
    missing = [name for name in ("moto", "flask", "waitress") if not importlib.util.find_spec(name)]
    if missing:
        raise EngineError(
            f"the embedded DynamoDB needs {' and '.join(missing)}: "
            "pip install 'pynamodb-mutex[testing]'"
        )
    # The server must find the packages that this process finds, whatever made its sys.path, and nothing
    # in the working directory: `-m` would search that first (PYTHONSAFEPATH is for Python 3.11 and later).
    package_root = str(Path(__file__).parents[2])
    path = [package_root, *map(os.path.abspath, filter(None, sys.path))]
    env = {**_without_aws(), "PYTHONPATH": os.pathsep.join(path)}
    command = [sys.executable, "-m", f"{__package__}.embedded_server", str(port)]
    with run_server(command, env, package_root) as (process, url):
        yield Engine("embedded", url, process.pid)


@contextmanager
def dynamodb_local(port: int = 0) -> Iterator[Engine]:
    """Run Amazon's DynamoDB Local, or use the one that the environment names.

    Its jars are fetched once, by Maven, into the user's cache folder.

    Args:
        port: The port; 0 for one that is free. Ignored for an engine that is already running.

    Yields:
        The engine, ready to answer.

    Raises:
        EngineError: If it cannot be used here, or does not start.
    """
    setting = os.environ.get(LOCAL_VARIABLE, "")
    if setting.startswith(_URL):
        if not answers(setting):
            raise EngineError(f"nothing answers at {setting} ({LOCAL_VARIABLE})")
        yield Engine("external", setting.rstrip("/"))
        return
    reason = why_no_dynamodb_local()
    if reason:
        raise EngineError(reason)
    jars = Path(setting) if setting else fetched_jars()
    with ExitStack() as stack:
        yield _enter_local(stack, jars, port)


def why_no_dynamodb_local() -> str | None:
    """Return what is missing for :func:`dynamodb_local`.

    Returns:
        None if it can be used, though Maven may still fail to fetch it; otherwise a sentence that can serve as the
        reason for skipping a test.
    """
    setting = os.environ.get(LOCAL_VARIABLE, "")
    if setting.startswith(_URL):
        return None
    java = _java_version()
    if java < _JAVA_NEEDED:
        found = f"Java {java} is too old" if java else "there is no Java"
        return f"DynamoDB Local needs Java {_JAVA_NEEDED} or newer, and {found} on the PATH."
    if setting:
        if any(Path(setting).glob("DynamoDBLocal*.jar")):
            return None
        return f"{LOCAL_VARIABLE} is neither a URL nor a directory with DynamoDB Local's jars."
    if jar_cache().is_dir() or shutil.which("mvn"):
        return None
    return f"DynamoDB Local has to be fetched and there is no mvn; or set {LOCAL_VARIABLE}."


def environment(engine: Engine) -> dict[str, str]:
    """Make an environment in which botocore reaches the engine and nothing else of AWS.

    Args:
        engine: The engine to reach.

    Returns:
        All of ``os.environ`` except its AWS settings, which are replaced by the engine's. Can be the
        ``env`` of a subprocess.
    """
    env = _without_aws()
    env.update(
        AWS_ENDPOINT_URL=engine.endpoint_url,
        AWS_ENDPOINT_URL_DYNAMODB=engine.endpoint_url,
        AWS_DEFAULT_REGION="us-east-1",
        AWS_REGION="us-east-1",
        AWS_ACCESS_KEY_ID="testing",
        AWS_SECRET_ACCESS_KEY="testing",
    )
    # botocore would send even local requests through a proxy. If both spellings are set, the one in lower case counts.
    direct = urlsplit(engine.endpoint_url).hostname or ""
    for name in ("NO_PROXY", "no_proxy"):
        listed = os.environ.get(name, direct).split(",")
        env[name] = ",".join(dict.fromkeys([*listed, direct]))
    return env


def _without_aws() -> dict[str, str]:
    """Return ``os.environ`` without its AWS settings, for the clients of an engine and for moto, which uses botocore too."""
    # botocore reads settings from many AWS_ variables and from two files. Any that is left, such as a session token or a
    # switch that ignores endpoints, could lead requests past the engine. With a profile that is not there moto answers
    # each request with a server error.
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env |= dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
    return env | {"AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def use(engine: Engine) -> Iterator[Engine]:
    """Direct this process, and those it starts, to an engine for the length of the block.

    The library forgets its connections, locks and server time at both ends of the block. boto3 clients and
    the connections of models other than lock models keep their endpoint.

    Args:
        engine: The engine to reach.

    Yields:
        The same engine.
    """
    inside, before = environment(engine), dict(os.environ)
    # Only these are restored: other variables that are set inside the block keep their values after it.
    changed = {name for name, _ in inside.items() ^ before.items()}
    _set_environment(changed, inside)
    forget_everything()
    try:
        yield engine
    finally:
        _set_environment(changed, before)
        forget_everything()


def _set_environment(names: set[str], values: dict[str, str]) -> None:
    for name in names:
        if name in values:
            os.environ[name] = values[name]
        else:
            os.environ.pop(name, None)


@contextmanager
def run_server(
    command: Sequence[str], env: dict[str, str] | None = None, folder: str | None = None
) -> Iterator[tuple[Popen[bytes], str]]:
    """Run a server in a child process, and stop it at the end of the block.

    Args:
        command: Program and arguments. The server prints a line once it is ready.
        env: Environment of the server; by default that of this process.
        folder: Working directory of the server; by default that of this process.

    Yields:
        The process, and the line that it printed.

    Raises:
        EngineError: If the server does not start.
    """
    starter = os.getpid()
    with tempfile.TemporaryFile() as log:
        # In a session of its own, so that Ctrl-C does not end it: this process still needs the engine to clean up.
        process = Popen(
            command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=log,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
        try:
            yield process, _first_line(process, log)
        finally:
            # A forked child that unwinds this stack must not stop the engine, which its parent still uses.
            if os.getpid() == starter:
                _stop(process)


def _first_line(process: Popen[bytes], log: IO[bytes]) -> str:
    """Return the line that a server prints once it is ready.

    Raises:
        EngineError: If it ends before that, or is not ready within `_START_SECONDS`. The message has its output.
    """
    output = cast("IO[bytes]", process.stdout)
    alarm = threading.Timer(_START_SECONDS, process.terminate)
    alarm.start()
    try:
        line = output.readline().decode().strip()
    finally:
        alarm.cancel()
    if not line:
        _stop(process)
        log.seek(0)
        words = log.read().decode(errors="replace").strip()
        raise EngineError(f"the engine did not start:\n{words}")
    return line


def _stop(process: Popen[bytes]) -> None:
    with process:  # closes its pipes and waits
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except TimeoutExpired:
            process.kill()


def _enter_local(stack: ExitStack, jars: Path, port: int, tries: int = 3) -> Engine:
    """Start DynamoDB Local on a port; if any will do and another process takes it first, try the next one."""
    try:
        with _reserved(port) as reserved:
            return stack.enter_context(_local(jars, reserved))
    except EngineError as error:
        if port or tries == 1 or "BindException" not in str(error):
            raise
    return _enter_local(stack, jars, port, tries - 1)


@contextmanager
def _reserved(port: int) -> Iterator[int]:
    """Yield a port that is given to no other process before Java listens on it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("127.0.0.1", port))
        except OSError as error:
            raise EngineError(f"port {port} cannot be used: {error}") from error
        reserved: int = holder.getsockname()[1]
        # On Linux the port stays bound here: Java may bind it as well, because both sides set SO_REUSEADDR and only
        # Java listens, and whoever asks the system for a free port gets another one.
        if sys.platform != "linux":  # pragma: no cover; a bound port might keep Java off there
            holder.close()
        yield reserved


@contextmanager
def _local(jars: Path, port: int) -> Iterator[Engine]:
    folders = [str(jars), str(jars / "DynamoDBLocal_lib")]  # the latter in Amazon's archive
    # Only the quick compiler: tests end before the better one pays off, and take twice as long with it.
    java = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    java += [f"-Djava.library.path={os.pathsep.join(folders)}"]
    java += ["-cp", os.pathsep.join(f"{folder}{os.sep}*" for folder in folders), _LOCAL_MAIN]
    java += [*LOCAL_OPTIONS, "-port", str(port)]
    url = f"http://127.0.0.1:{port}"
    # Isolated (-I), because the supervisor needs only the standard library; and by its path, because this package's
    # directory must not be searched: a module there may have the name of one of the standard library.
    with run_server([sys.executable, "-I", supervisor.__file__, url, *java]) as (_, pid):
        yield Engine("local", url, int(pid))


@functools.cache
def _java_version() -> int:
    """Return the major version of the Java on the PATH, or 0."""
    try:
        answer = run(["java", "-version"], capture_output=True, check=False, text=True)
    except OSError:
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(found[1]) if found and not answer.returncode else 0


def jar_cache(artifact: Artifact = _LOCAL) -> Path:
    """Return the folder in which an artifact's jars are kept, whether or not they have been fetched."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = f"{artifact.title} {artifact.version}".lower().replace(" ", "-")
    return Path(base, "pynamodb-mutex", folder)


def fetched_jars(artifact: Artifact = _LOCAL) -> Path:
    """Return the folder with an artifact's jars, after Maven has fetched them if they are not there.

    Raises:
        EngineError: If Maven cannot fetch them.
    """
    cache = jar_cache(artifact)
    if cache.is_dir():
        return cache
    cache.parent.mkdir(parents=True, exist_ok=True)
    # They are fetched next to the cache, and then moved: no process ever sees only a part of them.
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache.parent) as scratch:
        pom, jars = Path(scratch, "pom.xml"), Path(scratch, "jars")
        pom.write_text(_POM.format(artifact))
        command = [shutil.which("mvn") or "mvn", "-q", "-B", "-f", str(pom), _FETCH_PLUGIN]
        command += [f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
        maven = run(command, capture_output=True, check=False, text=True)
        if maven.returncode:
            raise EngineError(f"Maven cannot fetch {artifact.title}:\n{maven.stdout}{maven.stderr}")
        try:
            jars.rename(cache)
        except OSError:
            if not cache.is_dir():  # else another process was first, with the same jars
                raise
    return cache
