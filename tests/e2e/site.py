"""A Kant web process of its own over a played scene: `python -m tests.e2e.site DIRECTORY`.

Prints `READY http://127.0.0.1:PORT` when it serves, and ends when its standard input closes.
"""

import os
import signal
import socket
import sys
import threading
from pathlib import Path


def main(directory: Path) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    os.environ["KANT_VAR_DIR"] = str(directory)
    os.environ["DATABASE_URL"] = f"sqlite:///{directory / 'site.sqlite3'}"
    import django
    from django.conf import settings

    django.setup()
    # Tables straight from the models: quicker than the whole history of migrations.
    settings.MIGRATION_MODULES = dict.fromkeys(("tenants", "scheduling", "metrics", "webhooks"))
    from django.core.management import call_command

    call_command("migrate", run_syncdb=True, verbosity=0)
    from tests.e2e import scene, story

    scene.play()
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
        os.kill(os.getpid(), signal.SIGTERM)  # which ends streams, too

    threading.Thread(target=leave_with_parent, daemon=True).start()
    print(f"READY http://127.0.0.1:{door.getsockname()[1]}", flush=True)
    server.run(sockets=[door])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
