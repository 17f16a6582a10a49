"""A policy is split into settings, put together again, compared, and described in words."""

import pytest

from scheduling.policy.document import effective, faults
from scheduling.policy.settings import differing, policy_from, revised, settings_of, without_effect
from scheduling.queries.wording import policy_differences

ALL = effective(
    {
        "queueing": "backfill",
        "preemption": ["priority", "reclaim"],
        "spare_nodes": {"H100": 2},
        "shards": [{"name": "a", "gpu_models": ["H100"], "groups": []}, {"name": "b"}],
    }
)


@pytest.mark.parametrize("policy", [effective({}), ALL])
def test_the_settings_of_a_policy_are_all_of_it(policy):
    assert effective(policy_from(settings_of(policy))) == policy


def test_a_type_without_spare_nodes_is_as_one_that_is_not_named():
    off = {"preemption": []}
    none, zero = effective(off), effective(off | {"spare_nodes": {"H100": 0}})
    assert differing(settings_of(none), settings_of(zero)) == []
    assert differing(settings_of(ALL), settings_of(none)) == [
        "queueing", "preemption.priority", "preemption.reclaim", "shards", "spare_nodes.H100",
    ]  # fmt: skip


def test_a_revised_document_names_only_what_it_has_to():
    stored = {"queueing": "backfill", "strategies": {"training": "spread"}, "of_a_newer_one": 1}
    assert revised(stored, {"preemption.priority": False, "strategies.inference": "e-spread"}) == {
        "queueing": "backfill",
        "strategies": {"training": "spread", "inference": "e-spread", "development": "binpack"},
        "preemption": ["reclaim"],
    }
    assert revised({"spare_nodes": {"H100": 2}}, {"spare_nodes.H100": 0}) == {"spare_nodes": {}}
    assert revised({}, {"colour": "red"}) == {"colour": "red"}  # for the error messages


@pytest.mark.parametrize(
    ("document", "idle"),
    [
        ({"defrag_loss": 0.005, "preemption": []},
         {"preemption.backfill", "learned_run_times", "backfill_after_s", "preempt_after_s",
          "max_preemptions", "fair_users", "usage_half_life_s"}),
        ({}, {"preemption.backfill", "learned_run_times", "backfill_after_s", "fair_users",
              "usage_half_life_s"}),
        ({"preemption": []},
         {"preemption.backfill", "learned_run_times", "backfill_after_s", "preempt_after_s",
          "max_preemptions", "min_runtime_s", "fair_users", "usage_half_life_s"}),
        ({"queueing": "backfill", "preemption": ["backfill"], "fair_share": True},
         {"preempt_after_s"}),
        ({"queueing": "backfill", "preemption": ["reclaim"], "fair_share": True}, set()),
        ({"preemption": ["backfill"], "fair_share": True, "shards": [{"name": "all"}]},
         {"preemption.backfill", "learned_run_times", "preempt_after_s", "max_preemptions",
          "min_runtime_s"}),
        ({"consolidation": True, "fair_share": True, "preemption": []},
         {"preemption.backfill", "learned_run_times", "backfill_after_s", "preempt_after_s",
          "max_preemptions"}),
    ],
)  # fmt: skip
def test_settings_that_do_nothing_beside_the_others(document, idle):
    off = set() if "defrag_loss" in document else {"defrag_above", "defrag_moves"}
    assert without_effect(settings_of(effective(document))).keys() == idle | off


def test_differences_are_told_apart_in_words():
    before = {**ALL, "blame_s": 3600.0, "backoff_base_s": 1.0, "warn_before_s": 90000.0}
    after = {
        **ALL,
        "preemption": ["priority"],
        "blame_s": 3601.0,
        "backoff_base_s": 1.5,
        "warn_before_s": 90060.0,
        "spare_nodes": {},
        "shards": [{"name": "a", "gpu_models": ["H100"], "groups": ["s0"]}, {"name": "b"}],
    }
    told = {one.name: (one.before, one.after) for one in policy_differences(before, after)}
    assert told == {
        "Backoff base": ("1 s", "1.5 s"),
        "Blame": ("1 h", "3,601 s"),
        "Preemption: reclaim": ("yes", "no"),
        "Warn before": ("1 d 1 h", "90,060 s"),
        "Shards": ("a: H100; b: all others", "a: H100, s0; b: all others"),
        "Spare nodes of H100": ("2", "none"),
    }


@pytest.mark.parametrize("wrong", [-0.1, 1.01, "0.5", True, None])
def test_a_share_is_from_0_to_1(wrong):
    for name in ("defrag_loss", "defrag_above"):
        (fault,) = faults({name: wrong})
        assert (fault.path, "from 0 to 1" in fault.detail) == ((name,), True)
        assert faults({name: 1}) == faults({name: 0.005}) == []


def test_a_share_is_told_in_percent():
    (told,) = policy_differences({**ALL, "defrag_loss": 0.0}, {**ALL, "defrag_loss": 0.0025})
    assert (told.before, told.after) == ("0 %", "0.25 %")
