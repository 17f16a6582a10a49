"""`python -m scheduling.compile_core`: compile the decision core for this Python environment.

Where that is not possible nothing is changed, and Python goes on interpreting the core.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scheduling.compiled import HOME, LIBRARY, ROOT, folder, sources

AS_IT_IS = "The decision core stays interpreted, at a third of its speed"


def main() -> int:
    """Build what is not there yet; with the name of a folder, build into that."""
    if len(sys.argv) > 1:
        build(Path(sys.argv[1]))
        return 0
    where = folder()
    if where.is_dir():
        return 0
    if lack := missing():
        print(f"{AS_IT_IS}: {lack}.")
        return 0
    print("Compiling the decision core (once; about a minute) ...", flush=True)
    HOME.mkdir(exist_ok=True)
    log = HOME / "build.log"
    with log.open("wb") as told, tempfile.TemporaryDirectory(dir=HOME) as work:
        command = [sys.executable, "-m", __spec__.name, work]
        failed = subprocess.run(command, cwd=ROOT, stdout=told, stderr=told).returncode
        if not failed:
            for old in set(HOME.iterdir()) - {log, Path(work)}:
                shutil.rmtree(old)
            os.replace(Path(work, "lib"), where)
    if failed:
        print(f"{AS_IT_IS}: it cannot be compiled here; {log} says why.")
    return 0


def missing() -> str:
    """What the machine lacks to compile, and how to come by it; "" if nothing."""
    compiler = str(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler}); on Debian: apt-get install gcc libc6-dev"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.exists():
        return f"there is no {headers}; on Debian: apt-get install python3-dev"
    return ""


def build(work: Path) -> None:
    """Compile into the folder `lib` of this one."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class BuildCore(build_ext):
        """Compiles the C files of one extension at once, not one after the other."""

        def build_extensions(self) -> None:
            one_by_one: Callable[..., list[str]] = self.compiler.compile

            def compile_all(files: list[str], **how: Any) -> list[str]:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    parts = pool.map(lambda file: one_by_one([file], **how), files)
                    return [each for part in parts for each in part]

            self.compiler.compile = compile_all
            super().build_extensions()

    options = ["--config-file=", "--ignore-missing-imports", f"--cache-dir={work / 'types'}"]
    extensions = mypycify(
        [*options, *(path.relative_to(ROOT).as_posix() for path in sources())],
        debug_level="0",
        multi_file=True,
        target_dir=str(work / "c"),
        group_name=LIBRARY,
    )
    for extension in extensions:  # calls between its files need not be found by name
        extension.extra_compile_args.append("-fvisibility=hidden")
    command = BuildCore(Distribution({"name": LIBRARY, "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(work / "lib"), str(work / "objects")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()


if __name__ == "__main__":
    sys.exit(main())
