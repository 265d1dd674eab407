"""Clocks of a client that the harness moves: a preloaded library of our own."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("shim.c")
_FORMAT = "qq"


class Clock:
    """The offsets of one process's clocks, in nanoseconds, which it reads each time it reads a clock."""

    def __init__(self, library: Path, path: Path) -> None:
        path.write_bytes(struct.pack(_FORMAT, 0, 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), struct.calcsize(_FORMAT))
        self.environment = {"LD_PRELOAD": str(library), "PROOF_CLOCK": str(path)}

    def close(self) -> None:
        self._map.close()

    def step_wall(self, seconds: float) -> None:
        """Set the time of day off by so much more."""
        wall, local = struct.unpack(_FORMAT, self._map[:])
        self._map[:] = struct.pack(_FORMAT, wall + int(seconds * 1e9), local)

    def stand_still(self, seconds: float) -> None:
        """Let the local clocks miss so much time; the time of day with them."""
        wall, local = struct.unpack(_FORMAT, self._map[:])
        missed = int(seconds * 1e9)
        self._map[:] = struct.pack(_FORMAT, wall - missed, local - missed)


class Shim:
    """The library, built."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._library, self._folder = library, folder

    @classmethod
    def build(cls, folder: Path) -> Shim | None:
        """Build it into a folder; None without a compiler, which is said."""
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            print("no gcc: clocks are left alone")
            return None
        library = folder / "shim.so"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
        subprocess.run([*command, "-lpthread"], check=True)
        return cls(library, folder)

    def clock(self, proc: str) -> Clock:
        return Clock(self._library, self._folder / f"{proc}.clock")
