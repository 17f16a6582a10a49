"""What workers keep of the messages they have taken."""

import threading

from kombu.transport.virtual import Channel

from kant.celery import app
from kant.embedded import Background
from scheduling.services.scheduler.loop import loop


def test_what_a_scheduler_has_heard_is_not_kept(tmp_path, monkeypatch):
    heard, acknowledged, all_heard = [], [], threading.Event()

    def hear(cluster_id):
        heard.append(cluster_id)
        if len(heard) == 3:
            all_heard.set()

    monkeypatch.setattr(loop, "start", lambda: None)
    monkeypatch.setattr(loop, "hear", hear)
    monkeypatch.setattr(Channel, "basic_ack", lambda *_, **__: acknowledged.append(1))
    background = Background(app, tmp_path)
    background._start_worker("sched", pool="solo")
    try:
        for cluster_id in (1, 2, 3):
            app.send_task("scheduling.tasks.run_cycle", args=[cluster_id])
        assert all_heard.wait(10)
    finally:
        (worker,), (thread,) = background._workers, background._threads
        worker.stop()
        thread.join(10)
    assert (heard, acknowledged) == ([1, 2, 3], [])
