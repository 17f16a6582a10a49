"""A web process loads all code for answering requests before the server listens."""

import subprocess
import sys

ASKS = """
import sys
import kant.asgi
from django.test import Client
before = set(sys.modules)
get = Client(headers={"host": "localhost"}).get
found = [get(path).status_code for path in ("/login/", "/", "/api/v1/jobs", "/nope/")]
own = ("kant", "tenants", "scheduling", "metrics", "webhooks", "rest_framework")
late = sorted(n for n in set(sys.modules) - before if n.split(".")[0] in own)
print(found, [name for name in late if "urls" in name or "views" in name or ".pages" in name
              or ".api" in name])
"""


def test_no_view_is_loaded_by_the_first_requests(tmp_path):
    env = {"DATABASE_URL": f"sqlite:///{tmp_path}/x.sqlite3", "KANT_EMBEDDED": "1", "PATH": "/bin",
           "KANT_DATA": str(tmp_path)}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", ASKS], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[200, 302, 401, 404] []\n", done.stdout + done.stderr[-2000:]
