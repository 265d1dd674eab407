"""The command ``pynamodb-mutex`` for shells, of a process that has imported it and forks for each call.

To start Python and to import what the command needs takes most of the time of a call. The script in the folder
that is given hands its arguments, environment and files over; so whoever calls it sees no difference.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = """\
#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    call = [sys.argv, os.getcwd(), dict(os.environ)]
    socket.send_fds(server, [b"call"], [0, 1, 2])
    server.sendall(json.dumps(call).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(server.recv(1)[0])
"""


@contextmanager
def ready_command(folder: Path) -> Iterator[Path]:
    """Put the command into a folder, for the length of the block."""
    with subprocess.Popen(
        [sys.executable, __file__, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield folder
        # it ends when its input does


def serve(folder: Path) -> None:
    """Fork for each call until nobody is there who could call."""
    from pynamodb_mutex.cli import _app  # noqa: F401 - once for all calls

    address, script = str(folder / "socket"), folder / "pynamodb-mutex"
    script.write_text(SCRIPT.format(python=sys.executable, address=address))
    script.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([sys.stdin, listening], [], [])[0]:
            call, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                answer(call)
            call.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def answer(call: socket.socket) -> None:
    """Run the command as whoever calls, and say how it exits."""
    from pynamodb_mutex.cli import main

    _, files, _, _ = socket.recv_fds(call, len(b"call"), 3)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    with call.makefile("rb") as sent:
        sys.argv, cwd, environment = json.load(sent)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    code = 1
    try:
        main()
    except SystemExit as exits:
        code = exits.code if isinstance(exits.code, int) else int(exits.code is not None)
        if isinstance(exits.code, str):
            print(exits.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    call.sendall(bytes([code]))
    os._exit(code)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
