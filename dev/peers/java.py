"""The awslabs lock client, which the Python peers took for their model, in a Java process next to ours."""

from __future__ import annotations

import itertools
import os
import queue
import shutil
import subprocess
import threading
from pathlib import Path

from dev.peers.adapters import Peer
from pynamodb_mutex.testing.engines import Artifact, fetched_jars, jar_cache

LIBRARY = Artifact("dynamodb-lock-client", "com.amazonaws", "dynamodb-lock-client", "1.3.0")
CLASSES = "PROOF_PEERS_CLASSES"
"""Names the class path in a client's environment."""

_SOURCE = Path(__file__).with_name("Client.java")


class JavaError(Exception):
    """Raised by the library, in Java; ``kind`` is its class there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.kind = text.partition(":")[0]


def why_not() -> str | None:
    """Say what is missing; None if it can be tried."""
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
    """awslabs' AmazonDynamoDBLockClient, with four heartbeats a lease.

    It waits a lease longer than it is asked to if somebody holds the lock, so it gets a lease less.
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
        self.held()  # it is at work by then

    def _listen(self) -> None:
        for line in self._process.stdout:
            number, _, answer = line.rstrip("\n").partition(" ")
            self._awaited.pop(number).put(answer)
        for waiting in list(self._awaited.values()):
            waiting.put("error Ended: the Java process has ended")

    def _ask(self, *words: str) -> bool:
        answered: queue.SimpleQueue[str] = queue.SimpleQueue()
        with self._sending:
            number = str(next(self._numbers))
            self._awaited[number] = answered
            self._process.stdin.write(" ".join([number, *words]) + "\n")
        answer = answered.get()
        if answer.startswith("error "):
            raise JavaError(answer.removeprefix("error "))
        return answer == "ok"

    def acquire(self, key: str, timeout: float) -> bool:
        additional = max(0.0, timeout - self._lease)
        return self._ask("acquire", key, str(int(additional * 1000)))

    def held(self) -> bool:
        return self._ask("held")

    def release(self) -> None:
        self._ask("release")

    def close(self) -> None:
        self._ask("close")
        self._process.stdin.close()
        self._process.wait()
