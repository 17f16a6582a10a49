"""Processes that tests fork behave like those that an interpreter starts."""

import os
import signal
import subprocess
import sys

import pytest

from tests import forked

SHOW = """
import os, sys
print(sys.argv[1:], os.environ.get("ASKED"), os.getcwd(), sys.stdin.read(), __name__)
print("said", file=sys.stderr)
from tests import forked
print({name.split(".")[0] for name in sys.modules} & {"kant", "scheduling", "tenants", "metrics"})
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("kind", [subprocess.Popen, forked.Forked])
def test_it_has_what_it_is_given(kind, tmp_path):
    env = {**os.environ, "ASKED": "yes", "PYTHONPATH": str(forked.ROOT)}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", SHOW, "3"]
    with kind(command, cwd=tmp_path, env=env, text=True, **pipes) as process:
        out, err = process.communicate("written", timeout=60)
    assert out.splitlines() == [f"['3'] yes {tmp_path} written __main__", "set()"]
    assert err == "said\n"
    assert process.returncode == 3


@pytest.mark.parametrize("kind", [subprocess.Popen, forked.Forked])
def test_modules_and_scripts_run_and_fail_as_such(kind, tmp_path):
    (tmp_path / "script.py").write_text("import beside; print(__name__, __file__); beside.gone")
    (tmp_path / "beside.py").write_text("")
    for command in (["script.py"], ["-m", "script"]):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with kind([sys.executable, *command], cwd=tmp_path, **pipes) as process:
            out, err = process.communicate(timeout=60)
        assert out == f"__main__ {tmp_path}/script.py\n"
        assert "AttributeError: module 'beside' has no attribute 'gone'" in err
        assert process.returncode == 1


LAST_WORDS = """
import atexit, sys, threading, time
atexit.register(print, "at the end")
threading.Thread(target=lambda: (time.sleep(0.05), print("waited for"))).start()
print("begins")
raise SystemExit({})
"""


@pytest.mark.parametrize("kind", [subprocess.Popen, forked.Forked])
@pytest.mark.parametrize(
    ("code", "status", "said"),
    [("", 0, ""), ("None", 0, ""), ("7", 7, ""), ("-1", 255, ""), ("'wrong'", 1, "wrong\n")],
)
def test_it_ends_as_such(kind, code, status, said):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with kind([sys.executable, "-c", LAST_WORDS.format(code)], **pipes) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (status, said)
    assert out == "begins\nwaited for\nat the end\n"


@pytest.mark.parametrize("kind", [subprocess.Popen, forked.Forked])
def test_it_has_a_session_of_its_own_where_that_is_asked(kind):
    command = [sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid())"]
    for alone in (True, False):
        with kind(command, stdout=subprocess.PIPE, start_new_session=alone) as process:
            assert process.communicate(timeout=60)[0] == f"{alone}\n".encode()


WAIT = "import time; print('waits', flush=True); time.sleep(60)"


@pytest.mark.parametrize("kind", [subprocess.Popen, forked.Forked])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_end_it_and_are_told(kind, number):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells may have it ignored
    try:
        process = kind([sys.executable, "-c", WAIT], stdout=subprocess.PIPE, stderr=-3)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout.readline() == b"waits\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(number)
        assert process.wait(60) == -number
        assert process.poll() == -number


def test_a_signal_that_is_ignored_here_is_ignored_there():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = forked.popen([sys.executable, "-c", WAIT], stdout=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout.readline() == b"waits\n"
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL


def test_a_command_that_fails_is_an_error_where_that_is_asked():
    with pytest.raises(subprocess.CalledProcessError):
        forked.run([sys.executable, "-c", "raise SystemExit(2)"], check=True)
    done = forked.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
