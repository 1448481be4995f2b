"""`python -m upwash`: the program `upwash`, which is installed beside this package."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path


def main() -> int:
    """Runs the program in place of this one."""
    name = "upwash.exe" if sys.platform == "win32" else "upwash"
    beside = Path(sysconfig.get_path("scripts")) / name
    program = str(beside) if beside.is_file() else shutil.which("upwash")
    if program is None:
        print(f"error: the program upwash is not installed at {beside}: install this package again", file=sys.stderr)
        return 2
    if sys.platform == "win32":
        import subprocess

        return subprocess.call([program, *sys.argv[1:]])
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
