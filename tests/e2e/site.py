"""Run a Kant web process over a played scene: `python -m tests.e2e.site DIRECTORY`. It includes the
odd cases of the story; a `scene` argument leaves them out, for pictures.

Prints `READY http://127.0.0.1:PORT` once it serves, and ends when its standard input closes.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALONE = "scene"
PASSWORD = "a long pass phrase"  # everybody's
# Each Chromium window starts a page of its own for what is typed into its address bar, which costs
# as much CPU as all else. Chromium uses the last of several lists; this one contains Playwright's.
LEFT_OUT = (
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "AvoidUnnecessaryBeforeUnloadCheckSync"),
    *("DestroyProfileOnBrowserClose", "HttpsUpgrades", "HttpsFirstBalancedModeAutoEnable"),
    *("LensOverlay", "MediaRouter", "PaintHolding", "ThirdPartyStoragePartitioning"),
    *("AvoidCorsURLLoaderRestartOnRedirect", "OptimizationHints", "NetworkTimeServiceQuerying"),
    *("AimEnabled", "PreconnectToSearch"),
)
CHROMIUM = ("--no-sandbox", "--disable-dev-shm-usage", f"--disable-features={','.join(LEFT_OUT)}")


@contextmanager
def served(directory: Path, *more: str) -> Iterator[str]:
    """Yield the address of such a process, which ends with the block. Raises RuntimeError if it
    does not start."""
    command = [sys.executable, "-m", "tests.e2e.site", str(directory), *more]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("READY "):
        process.kill()
        raise RuntimeError(f"the site did not start: {line!r}")
    yield line.split()[1]
    process.stdin.close()
    process.wait(timeout=60)


def chromium() -> str | None:
    """Return the path of the system's Chromium: the headless build if it is installed, in which
    a context takes a third of the CPU."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    return next(filter(None, map(shutil.which, names)), None)


def main(directory: Path, *, alone: bool) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    os.environ["KANT_VAR_DIR"] = str(directory)
    os.environ["DATABASE_URL"] = f"sqlite:///{directory / 'site.sqlite3'}"
    import django
    from django.conf import settings

    django.setup()
    # Create tables straight from the models: quicker than the whole history of migrations.
    settings.MIGRATION_MODULES = dict.fromkeys(("tenants", "scheduling", "metrics", "webhooks"))
    from django.core.management import call_command

    call_command("migrate", run_syncdb=True, verbosity=0)
    from tests.e2e import scene, story

    scene.play()
    if not alone:
        story.tell()
        story.lead()
        story.measure()
    import uvicorn

    door = socket.socket()
    door.bind(("127.0.0.1", 0))
    door.listen()
    server = uvicorn.Server(uvicorn.Config("kant.asgi:application", log_level="warning"))

    def leave_with_parent() -> None:
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)  # this ends streams, too

    threading.Thread(target=leave_with_parent, daemon=True).start()
    print(f"READY http://127.0.0.1:{door.getsockname()[1]}", flush=True)
    server.run(sockets=[door])


if __name__ == "__main__":
    main(Path(sys.argv[1]), alone=ALONE in sys.argv[2:])
