"""If two scopes decide at once about pods that rules concern, the second waits until it has seen
the first one's placements, whichever comes first."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction

from scheduling.engine.states import JobEventKind as Kind
from scheduling.engine.states import JobState as S
from scheduling.engine.types import Apart, JobRequest, PodPlacement, PodRules, PodSetSpec
from scheduling.models import Cluster, Job, Placement, ToldGroups
from scheduling.models.jobs import PlacementState as P
from scheduling.services.common.lease import take_or_renew
from scheduling.services.scheduler.apply import apply_decisions
from scheduling.services.scheduler.ruled import FRESH_S, Elsewhere, Neighbours, jobs_to_put_back
from scheduling.services.scheduler.territory import take_nodes
from scheduling.session.memory.live import LiveJob, LivePod, Transition, Writes
from tenants.models import Tenant
from tests.scheduling.test_territory import NORTH, SOUTH, facts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RULES = {
    "says": PodRules(apart=(Apart("web", "zone"),)),
    "is meant": PodRules(groups=("web",)),
    "has alone": PodRules(sole=("claim c",)),
}


class Scope:
    """A scheduler of one scope. It has seen the cluster up to `seen`, and has heard of pods with
    rules about the groups `known`."""

    def __init__(self, cluster, name, node):
        self.lease = take_or_renew(cluster.pk, f"of {name}", now=NOW, seconds=900, scope=name)
        take_nodes(self.lease, [facts(node)], NOW)
        self.node, self.seen, self.known = node, set(), set()
        self.neighbours = Neighbours()
        self.tenant, _ = Tenant.objects.get_or_create(name="team")

    @property
    def elsewhere(self):
        return Elsewhere(self.neighbours, lambda: self.seen, lambda group: group in self.known)

    def intent(self, rules):
        """Return a waiting job and the place that it is to get."""
        row = Job.objects.create(
            name="job",
            tenant=self.tenant,
            cluster_id=self.lease.cluster_id,
            scope=self.lease.scope,
            submitted_at=NOW,
        )
        sets = (PodSetSpec("worker", 1, 1, rules=rules),)
        job = LiveJob(JobRequest(str(row.pk), "team", 0.0, sets), "job", (), S.PENDING, 1, 1)
        return job, LivePod(PodPlacement(0, 0, self.node, (0,), 1000), 1, f"p-{row.pk}", "H100")

    def place(self, rules, now=NOW):
        """Return whether the place is written."""
        job, pod = self.intent(rules)
        version = Job.objects.get(pk=job.id).version
        step = Transition(job.id, Kind.ADMITTED, S.PENDING, S.ADMITTED, version, "", "")
        writes = Writes(transitions=[step], intents=[(job, pod)])
        written = apply_decisions(self.lease, writes, now, None, self.elsewhere)
        done = not written.put_back
        assert written.stale == written.put_back
        assert Placement.objects.filter(job_id=job.id).exists() == done
        assert (Job.objects.get(pk=job.id).state == S.ADMITTED) == done
        return done


@pytest.fixture
def scopes(db):
    cluster = Cluster.objects.create(name="c")
    return Scope(cluster, NORTH, "n0"), Scope(cluster, SOUTH, "n1")


@pytest.fixture(params=[(0, 1), (1, 0)], ids=["north first", "south first"])
def one_after_the_other(scopes, request):
    return [scopes[n] for n in request.param]


def placed():
    return set(Placement.objects.values_list("namespace", "pod_name", "node"))


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_who_comes_second_waits_until_it_has_seen_the_pods_of_the_first(one_after_the_other, rules):
    first, second = one_after_the_other
    assert first.place(rules)
    assert not second.place(rules)
    second.seen = placed()
    assert second.place(rules)
    # Pods bound meanwhile count, too: the watch may lag.
    Placement.objects.update(state=P.RUNNING)
    assert not first.place(rules)


def test_what_is_over_keeps_nobody_waiting(one_after_the_other):
    first, second = one_after_the_other
    rules = RULES["says"]
    assert first.place(rules)
    Placement.objects.update(state=P.RELEASED)
    assert second.place(rules)


def test_pods_without_rules_wait_for_nobody_and_are_waited_for(one_after_the_other):
    first, second = one_after_the_other
    assert first.place(None)
    assert second.place(None)
    assert second.place(PodRules(ports=()))
    # The first scope may not know whether a rule of the second one concerns its pod.
    assert not second.place(RULES["says"])


def test_what_was_seen_once_is_not_asked_for_again(one_after_the_other, django_assert_num_queries):
    first, second = one_after_the_other
    assert first.place(RULES["says"])
    later = NOW + timedelta(seconds=FRESH_S / 2)
    second.seen = placed()
    assert second.place(RULES["says"], later)
    second.seen = set()
    assert second.place(RULES["says"], later)


@pytest.mark.parametrize("rules", [None, PodRules()])
def test_pods_without_rules_pay_one_row_that_is_read(scopes, rules, django_assert_num_queries):
    north, _ = scopes
    intents = [north.intent(rules)]
    with django_assert_num_queries(1):
        assert not jobs_to_put_back(north.lease, intents, north.elsewhere, NOW)


# --- a scope that has not heard of a pod does not know that its rule concerns its own pods --------
def test_who_has_not_heard_of_a_group_waits_until_it_has(one_after_the_other):
    first, second = one_after_the_other
    assert first.place(RULES["says"])
    assert not second.place(None)
    second.known = {"web"}  # and does not belong to it
    assert second.place(None)


def test_who_has_seen_all_pods_of_others_waits_for_nobody(one_after_the_other):
    first, second = one_after_the_other
    assert first.place(RULES["says"])
    second.seen = placed()
    assert second.place(None)


def test_a_rule_of_pods_that_are_gone_keeps_nobody_waiting(one_after_the_other):
    first, second = one_after_the_other
    assert first.place(RULES["says"])
    Placement.objects.update(state=P.RELEASED)
    assert second.place(None)


def test_a_group_is_told_again_before_it_is_forgotten(one_after_the_other):
    first, second = one_after_the_other
    first.known = {"web"}
    assert first.place(RULES["says"])
    second.seen = placed()
    later = NOW + timedelta(seconds=0.9 * FRESH_S)
    assert first.place(RULES["says"], later)
    assert not second.place(None, later + timedelta(seconds=0.9 * FRESH_S))
    # Long afterwards, pods that nobody has seen are no news.
    assert second.place(None, later + timedelta(seconds=2 * FRESH_S))


def test_what_is_told_is_bounded_and_seldom_written(one_after_the_other):
    first, second = one_after_the_other
    first.known = second.known = {f"g{n}" for n in range(9)}
    for number in range(8):
        at = NOW + timedelta(seconds=number * FRESH_S)
        assert first.place(PodRules(apart=(Apart(f"g{number}", "zone"),)), at)
    assert len(ToldGroups.objects.get().apart) <= 3
    before = ToldGroups.objects.get().apart
    assert first.place(PodRules(apart=(Apart("g7", "zone"),)), at + timedelta(seconds=FRESH_S / 3))
    assert ToldGroups.objects.get().apart == before


@pytest.mark.parametrize("rules", [RULES["is meant"], RULES["has alone"]])
def test_rules_by_which_nobody_else_is_kept_away_are_not_told(one_after_the_other, rules):
    first, second = one_after_the_other
    assert first.place(rules)
    assert second.place(None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="writers to SQLite take turns")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["north first", "south first"])
@pytest.mark.parametrize("later", [RULES["says"], None], ids=["with rules", "without"])
def test_two_transactions_at_once_do_not_both_write(order, later):
    cluster = Cluster.objects.create(name="c")
    both = Scope(cluster, NORTH, "n0"), Scope(cluster, SOUTH, "n1")
    first, second = (both[n] for n in order)
    results = []

    def place():
        try:
            results.append(second.place(later))
        finally:
            connection.close()

    other = threading.Thread(target=place)
    with transaction.atomic():
        assert first.place(RULES["says"])
        other.start()
        other.join(0.5)
        assert not results  # it waits for the end of this transaction
    other.join()
    assert results == [False]


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="writers to SQLite take turns")
def test_transactions_about_pods_without_rules_do_not_wait_for_each_other():
    cluster = Cluster.objects.create(name="c")
    first, second = Scope(cluster, NORTH, "n0"), Scope(cluster, SOUTH, "n1")
    results = []

    def place():
        try:
            results.append(second.place(None))
        finally:
            connection.close()

    other = threading.Thread(target=place)
    with transaction.atomic():
        assert first.place(None)
        other.start()
        other.join(30)
        assert results == [True]
