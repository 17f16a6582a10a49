"""`python -m scheduling.compile_core`: compile the decision core for this Python environment.

If it cannot be compiled nothing changes, and Python goes on interpreting the core. Build tools that
are not installed are fetched for the build and not kept.
"""

import argparse
import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from scheduling import compile_parts
from scheduling.compiled import HOME, LIBRARY, ROOT, folder, sources

TOOLS = ROOT / "requirements-build.txt"
PARTS = HOME / "parts"  # compiled C files
AS_IT_IS = "The decision core stays interpreted, at a third of its speed"


def main(arguments: list[str] | None = None) -> int:
    """Build what is missing. Return 0 even if that is impossible: nothing depends on it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", action="store_true", help="leave the machine to all others")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="build, whatever is there")
    options = parser.parse_args(arguments)
    if options.into:
        build(options.into)
        return 0
    try:
        ensure(folder(), beside=options.beside)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"{AS_IT_IS}: it cannot be kept ({where}{error.strerror}).")
    return 0


def ensure(where: Path, *, beside: bool) -> None:
    """Compile the current sources into `where`, unless it exists.

    `beside`: at the lowest priority, and not again if these sources failed to compile before.
    """
    failed_before = where.with_suffix(".failed")
    if where.is_dir():
        return
    if beside:
        os.nice(19)
        if failed_before.exists():
            return
    if lack := missing():
        print(f"{AS_IT_IS}: {lack}.")
        return
    HOME.mkdir(exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        _wait_for_others(lock)
        if where.is_dir():  # another process made it
            return
        for left in HOME.glob("tmp*"):  # left by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        if not beside:
            print("Compiling the decision core (once; a minute or two) ...", flush=True)
        log = HOME / "build.log"
        with log.open("wb") as told, tempfile.TemporaryDirectory(dir=HOME) as work:
            tools = Path(work, "tools")
            if not _has_tools() and (obstacle := _fetch(tools)):
                print(f"{AS_IT_IS}: what compiles it cannot be fetched ({obstacle}).")
                return
            paths = [str(tools), *filter(None, [os.environ.get("PYTHONPATH")])]
            failed = subprocess.run(
                [sys.executable, "-m", __spec__.name, "--into", work],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdout=told,
                stderr=told,
            ).returncode
            if not failed:
                for old in set(HOME.iterdir()) - {log, Path(lock.name), Path(work), PARTS}:
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
                os.replace(Path(work, "lib"), where)
    if failed:
        failed_before.touch()
        print(f"{AS_IT_IS}: it cannot be compiled here; {log} says why.")


def _wait_for_others(lock: IO[str]) -> None:
    """Let one process at a time build into an environment.

    The system frees the lock however the process ends.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another process compiles the decision core; waiting for it ...", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def missing() -> str:
    """Say what the machine lacks to compile, and how to get it; "" if nothing."""
    compiler = str(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler}); on Debian: apt-get install gcc libc6-dev"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.exists():
        return f"there is no {headers}; on Debian: apt-get install python3-dev"
    if not (_has_tools() or TOOLS.exists()):  # a wheel's environment
        return f"there is no mypyc or no setuptools, and no {TOOLS.name} that names them"
    return ""


def _has_tools() -> bool:
    """Whether the build tools are installed."""
    return all(importlib.util.find_spec(name) for name in ("mypyc", "setuptools"))


def _fetch(into: Path) -> str:
    """Install the build tools into a folder; return why that failed, "" if it worked."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    command += ["--retries", "1", "--timeout", "15", "--no-compile", "--target", str(into)]
    ran = subprocess.run([*command, "-r", str(TOOLS)], capture_output=True, text=True, check=False)
    said = ran.stderr.strip().splitlines()
    return (said[-1] if said else "pip failed") if ran.returncode else ""


def build(work: Path) -> None:
    """Compile into `lib` in this folder. What `PARTS` holds is not compiled again."""
    from mypyc.build import include_dir, mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class BuildCore(build_ext):
        """Compiles the C files of one extension in parallel."""

        def build_extensions(self) -> None:
            one_by_one: Callable[..., list[str]] = self.compiler.compile
            told = [*self.compiler.compiler_so, *flags]
            parts = compile_parts.KeptParts(PARTS, _makers(told, Path(include_dir())))

            def compile_one(file: str, how: dict[str, Any]) -> str:
                [made] = self.compiler.object_filenames([file], output_dir=how["output_dir"])
                key = parts.key(Path(file).read_bytes())
                if not parts.take(key, Path(made)):
                    one_by_one([file], **how)
                    parts.keep(key, Path(made))
                return made

            def compile_all(files: list[str], **how: Any) -> list[str]:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    return list(pool.map(lambda file: compile_one(file, how), files))

            self.compiler.compile = compile_all
            super().build_extensions()
            parts.forget_others()

    options = ["--config-file=", "--ignore-missing-imports", f"--cache-dir={work / 'types'}"]
    extensions = mypycify(
        [*options, *(path.relative_to(ROOT).as_posix() for path in sources())],
        debug_level="0",
        multi_file=True,
        target_dir=str(work / "c"),
        group_name=LIBRARY,
    )
    try:
        compile_parts.cut(work / "c", LIBRARY)
    except ValueError as obstacle:
        print(f"Every change compiles all: the C files cannot be cut apart, {obstacle}.")
    # Calls between the files of one extension need no exported symbols.
    flags = [*extensions[0].extra_compile_args, "-fvisibility=hidden"]
    for extension in extensions:
        extension.extra_compile_args = flags
    command = BuildCore(Distribution({"name": LIBRARY, "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(work / "lib"), str(work / "objects")
    command.parallel = os.cpu_count()
    command.ensure_finalized()
    command.run()


def _makers(told: list[str], runtime: Path) -> list[str]:
    """Return what machine code depends on besides its C source.

    That is the compiler and its options, this Python, and mypyc's C library (in folder `runtime`).
    """
    version = subprocess.run([told[0], "--version"], capture_output=True, text=True, check=True)
    headers = sorted(runtime.rglob("*.h"))
    return [*told, version.stdout, sys.version, *(header.read_text() for header in headers)]


if __name__ == "__main__":
    # Clean up when told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
