"""Amazon's DynamoDB Local, for tests and tools: fetched by Maven, started by Java, and ended with the process that started it."""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import run

from dev import supervise
from dev.supervise import answers
from pynamodb_mutex.testing import Engine, EngineError
from pynamodb_mutex.testing.engines import run_server

LOCAL_VARIABLE = "PYNAMODB_MUTEX_DYNAMODB_LOCAL"
"""Environment variable with the URL of a running DynamoDB Local, or the path of a directory with its jars."""

_LOCAL_MAIN = "software.amazon.dynamodb.services.local.main.ServerRunner"
_FETCH_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_VERSION = "3.1.0"
_POM = f"""\
<project><modelVersion>4.0.0</modelVersion>
<groupId>pynamodb-mutex</groupId><artifactId>fetching</artifactId><version>0</version>
<dependencies><dependency>
<groupId>software.amazon.dynamodb</groupId><artifactId>DynamoDBLocal</artifactId><version>{_VERSION}</version>
</dependency></dependencies></project>
"""
LOCAL_OPTIONS = ["-inMemory", "-sharedDb", "-disableTelemetry"]
_JAVA_NEEDED = 17
_URL = ("http://", "https://")


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
    # Isolated (-I): nothing in the working directory may take the place of a module of the standard library.
    with run_server([sys.executable, "-I", supervise.__file__, url, *java]) as (_, pid):
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


def jar_cache() -> Path:
    """Return the folder in which the jars are kept, whether or not they have been fetched."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "pynamodb-mutex", f"dynamodb-local-{_VERSION}")


def fetched_jars() -> Path:
    """Return the folder with the jars, after Maven has fetched them if they are not there.

    Raises:
        EngineError: If Maven cannot fetch them.
    """
    cache = jar_cache()
    if cache.is_dir():
        return cache
    cache.parent.mkdir(parents=True, exist_ok=True)
    # They are fetched next to the cache, and then moved: no process ever sees only a part of them.
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache.parent) as scratch:
        pom, jars = Path(scratch, "pom.xml"), Path(scratch, "jars")
        pom.write_text(_POM)
        command = [shutil.which("mvn") or "mvn", "-q", "-B", "-f", str(pom), _FETCH_PLUGIN]
        command += [f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
        maven = run(command, capture_output=True, check=False, text=True)
        if maven.returncode:
            raise EngineError(f"Maven cannot fetch DynamoDB Local:\n{maven.stdout}{maven.stderr}")
        try:
            jars.rename(cache)
        except OSError:
            if not cache.is_dir():  # else another process was first, with the same jars
                raise
    return cache
