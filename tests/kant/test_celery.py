"""Workers do not lose the messages that they have taken."""

import logging
import threading
from types import SimpleNamespace

import pytest
from kombu.message import Message
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
        assert all_heard.wait(60)
    finally:
        (worker,), (thread,) = background._workers, background._threads
        worker.stop()
        thread.join(60)
    assert (heard, acknowledged) == ([1, 2, 3], [])


@pytest.mark.parametrize("answer", ["ack_log_error", "reject_log_error"])
def test_a_broker_that_leaves_before_it_is_answered_is_told_as_an_outage_alone(caplog, answer):
    def gone(*_, **__):
        raise ConnectionResetError(104, "Connection reset by peer")

    channel = SimpleNamespace(no_ack_consumers=None, basic_ack=gone, basic_reject=gone)
    logger = logging.getLogger("celery.worker.request")
    message = Message("", channel=channel, delivery_tag="1")
    getattr(message, answer)(logger, (ConnectionResetError,))
    assert caplog.records == []
    logger.critical("else")
    assert caplog.messages == ["else"]
