"""The lock client of awslabs, the model of the Python libraries, in a Java process next to that of the client.

`JavaClient` writes a line for each call to the standard input of that process, and gets a line for each answer;
``Client.java`` is the other side. `build` compiles it.
"""

from __future__ import annotations

import itertools
import os
import queue
import shutil
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from dev.peers.adapters import Peer
from pynamodb_mutex.testing.engines import Artifact, fetched_jars, jar_cache

LIBRARY = Artifact("dynamodb-lock-client", "com.amazonaws", "dynamodb-lock-client", "1.3.0")
CLASSES = "PROOF_PEERS_CLASSES"
"""Environment variable of a client with the class path."""

_ENDED = "error Ended: the Java process has ended"

_SOURCE = Path(__file__).with_name("Client.java")


class JavaError(Exception):
    """An exception of the library in Java.

    Attributes:
        kind: Name of its class in Java.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.kind = text.partition(":")[0]


def why_not() -> str | None:
    """Return what is missing to run the library, for people; None if nothing is."""
    needed = ["java", "javac", *([] if jar_cache(LIBRARY).is_dir() else ["mvn"])]
    missing = [name for name in needed if shutil.which(name) is None]
    return f"there is no {' and no '.join(missing)}" if missing else None


def build(folder: Path) -> str:
    """Compile the client into a folder; return its class path."""
    folder.mkdir(parents=True, exist_ok=True)
    jars = f"{fetched_jars(LIBRARY)}{os.sep}*"
    subprocess.run(["javac", "-cp", jars, "-d", str(folder), str(_SOURCE)], check=True)
    return f"{folder.absolute()}{os.pathsep}{jars}"


class JavaClient(Peer):
    """The AmazonDynamoDBLockClient of awslabs, with four heartbeats a lease.

    If another holds the lock, it waits a lease longer than the timeout it is given. So it is given a lease less.
    """

    version = LIBRARY.version

    def __init__(self, table: str, lease: float, owner: str) -> None:
        self._lease = lease
        self._process = subprocess.Popen(
            ["java", "-Xmx64m", "-cp", os.environ[CLASSES], "Client", table, str(int(lease * 1000)), owner],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self._numbers = itertools.count()
        self._sending = threading.Lock()
        self._awaited: dict[str, queue.SimpleQueue[str]] = {}
        threading.Thread(target=self._listen, daemon=True).start()
        self._ask("held")  # returns when the Java process is ready

    def _listen(self) -> None:
        """Pass each answer to the thread that waits for it; at the end of the process, an error to all that wait."""
        with self._process.stdout as answers:
            for line in answers:
                number, _, answer = line.rstrip("\n").partition(" ")
                self._awaited.pop(number).put(answer)
        for waiting in list(self._awaited.values()):
            waiting.put(_ENDED)

    def _ask(self, *words: str) -> bool:
        """Make a call; other threads may do so at the same time.

        Raises:
            JavaError: If the call raises in Java, or the Java process ends.
        """
        answered: queue.SimpleQueue[str] = queue.SimpleQueue()
        with self._sending:
            number = str(next(self._numbers))
            self._awaited[number] = answered
            try:
                self._process.stdin.write(" ".join([number, *words]) + "\n")
            except OSError:
                answered.put(_ENDED)
        answer = answered.get()
        if answer.startswith("error "):
            raise JavaError(answer.removeprefix("error "))
        return answer == "ok"

    def acquire(self, key: str, timeout: float) -> bool:
        additional = max(0.0, timeout - self._lease)
        return self._ask("acquire", key, str(int(additional * 1000)))

    def held(self) -> bool:
        try:
            return self._ask("held")
        except JavaError:
            return False  # its process has ended, and with it what it believed

    def release(self) -> None:
        self._ask("release")

    def close(self) -> None:
        with suppress(JavaError):
            self._ask("close")
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
