"""Which Services a session requests for jobs, and when it requests them again."""

from scheduling.engine.states import JobState as S
from scheduling.engine.types import JobRequest, PodSetSpec
from scheduling.kube.seam import CreateService, DeleteService, ServiceFacts
from scheduling.session.memory.live import LiveJob, Outbox
from scheduling.session.pods.services import Services


def job(name, state=S.ADMITTED, count=2):
    request = JobRequest(name, "team", 0.0, (PodSetSpec("worker", count, 8),))
    return LiveJob(request, name, (), state, version=1, attempt=1, namespace="ns")


def facts(name, uid="uid", namespace="ns"):
    return ServiceFacts(namespace, f"job-{name}", f"{uid}-{name}", name)


class Session:
    def __init__(self, *jobs):
        self.jobs = {each.id: each for each in jobs}
        self.services = Services(self.jobs)
        self.out = Outbox()
        self.looked_up = []

    def left(self, services):
        self.looked_up.append(services)
        return {key for key in services if key[0] != "others"}

    def look(self, *, again=False):
        self.services.look_after(self.left, self.out, again=again)
        asked, self.out.effects = self.out.effects, []
        return [(type(each), each.name) for each in asked]


def test_a_job_of_several_pods_that_holds_places_gets_one():
    session = Session(job("gang"), job("alone", count=1), job("waits", S.PENDING))
    assert session.look(again=True) == [(CreateService, "job-gang")]
    assert session.look() == []
    assert session.look(again=True) == [(CreateService, "job-gang")]  # it did not come
    session.services.seen(facts("gang"))
    assert session.look(again=True) == []
    session.services.gone(facts("gang", "earlier"), session.out)
    assert session.look() == []
    session.services.gone(facts("gang"), session.out)
    assert session.look() == [(CreateService, "job-gang")]


def test_that_of_a_job_that_is_over_is_deleted_and_nobody_elses():
    session = Session(job("gang"))
    for each in ("gang", "over", "others"):
        session.services.seen(facts(each))
    session.services.seen(ServiceFacts("ns", "web", "uid", ""))
    assert session.look() == [(DeleteService, "job-over")]
    assert (session.look(), session.looked_up) == ([], [{("over", "ns"), ("others", "ns")}])
    assert session.look(again=True) == [(DeleteService, "job-over")]
    session.services.gone(facts("over"), session.out)
    assert session.look(again=True) == []


def test_that_of_a_job_whose_pods_are_elsewhere_by_now_is_made_there_and_deleted_here():
    gang = job("gang", S.PENDING)
    session = Session(gang)
    session.services.seen(facts("gang"))
    assert session.look(again=True) == []  # perhaps it returns
    gang.state, gang.namespace = S.ADMITTED, "other"
    session.services.make(gang, session.out)
    [made] = session.out.effects
    assert (made.namespace, made.manifest["metadata"]["namespace"]) == ("other", "other")
    assert session.look() == [(CreateService, "job-gang"), (DeleteService, "job-gang")]
    session.services.seen(facts("gang", "new", "other"))
    session.services.gone(facts("gang"), session.out)
    assert session.look(again=True) == []
