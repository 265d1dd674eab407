"""Falsifies the clocks of client processes by a preloaded C library, ``shim.c``, which is compiled for each run."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("shim.c")
_FORMAT = "qq"
# Seconds by which the clocks that only run forward are ahead at first. They begin at zero when the machine starts. Soon
# after that, a clock from which 1000 s are taken off would be below zero, which the kernel does not know.
_AHEAD = 1_000_000


class Clock:
    """The offsets of one process's clocks, in a file that the process maps and reads whenever it reads a clock.

    Args:
        library: The compiled library.
        path: The file for the offsets.

    Attributes:
        environment: Environment variables of the process.
    """

    def __init__(self, library: Path, path: Path) -> None:
        path.write_bytes(struct.pack(_FORMAT, 0, _AHEAD * 10**9))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), struct.calcsize(_FORMAT))
        # The name alone, for the folder's path may have blanks, which separate names in LD_PRELOAD. The folders that are
        # searched already stay: Python's own library may be in one of them.
        searched = filter(None, [str(library.parent), os.environ.get("LD_LIBRARY_PATH")])
        self.environment = {
            "LD_PRELOAD": library.name,
            "LD_LIBRARY_PATH": os.pathsep.join(searched),
            "PROOF_CLOCK": str(path),
        }

    def close(self) -> None:
        self._map.close()

    def step_wall(self, seconds: float) -> None:
        """Move the wall clock by so many seconds more."""
        wall, local = struct.unpack(_FORMAT, self._map[:])
        self._map[:] = struct.pack(_FORMAT, wall + int(seconds * 1e9), local)

    def stand_still(self, seconds: float) -> None:
        """Take so many seconds off all clocks but the harness's own, as if they had stood still."""
        wall, local = struct.unpack(_FORMAT, self._map[:])
        missed = int(seconds * 1e9)
        self._map[:] = struct.pack(_FORMAT, wall - missed, local - missed)


def build(folder: Path) -> Path | None:
    """Compile the library into a folder; return None, and print why, if there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        print("no gcc: clocks are left alone")
        return None
    library = folder / "shim.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run([*command, "-lpthread"], check=True)
    return library
