"""Turns objects of resource.k8s.io/v1 into facts.

Never raises: a request that Kant cannot answer gets a `problem`.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import msgspec
from msgspec.structs import replace

from scheduling.engine.types import NodeTerm, Toleration
from scheduling.kube.dra.domains import DOMAIN, domains_of
from scheduling.kube.dra.extended import ANNOTATION
from scheduling.kube.dra.facts import (
    KIND,
    MODEL,
    Amounts,
    Attribute,
    Capacity,
    ClaimAsks,
    ClassFacts,
    Constraint,
    Consumed,
    DeviceAsk,
    DeviceClaimFacts,
    DeviceFacts,
    DeviceId,
    DeviceTaint,
    GivenDevice,
    RequestPolicy,
    SliceFacts,
    TaintRuleFacts,
    TemplateFacts,
    Version,
    model_of,
    whole_name,
)
from scheduling.kube.dra.objects import (
    DeviceClaimSpec,
    DeviceClaimStatus,
    KubeClaimTemplate,
    KubeDeviceClass,
    KubeResourceClaim,
    KubeResourceSlice,
    KubeTaintRule,
    RawAsk,
    RawAttribute,
    RawCapacity,
    RawCounters,
    RawDevice,
    RawDevices,
    RawRange,
    RawRequest,
    RawSelector,
    TaintSelector,
)
from scheduling.kube.translate.node_selectors import node_terms
from scheduling.kube.translate.objects import Meta
from scheduling.kube.translate.quantities import Amount, parse
from scheduling.kube.translate.texts import seconds_of

ALL, EXACT_COUNT = "All", "ExactCount"


def slice_facts(raw: KubeResourceSlice) -> SliceFacts:
    spec, pool = raw.spec, raw.spec.pool
    return SliceFacts(
        name=raw.metadata.name,
        uid=raw.metadata.uid,
        driver=spec.driver,
        pool=pool.name,
        generation=pool.generation,
        slices=pool.resource_slice_count,
        devices=tuple(_device(spec.driver, each) for each in spec.devices),
        counters=_counters(spec.shared_counters),
        node=spec.node_name,
        nodes=node_terms(spec.node_selector),
        everywhere=spec.all_nodes,
        by_device=spec.per_device_node_selection,
    )


def _device(driver: str, raw: RawDevice) -> DeviceFacts:
    unusable = ""
    if raw.node_allocatable_resource_mappings:
        unusable = "it takes of the CPU, memory or such of its node, which Kant does not count"
    elif lists := sorted(name for name, each in raw.attributes.items() if each.is_list):
        unusable = f"its attributes {', '.join(lists)} are lists, which Kant does not compare"
    facts = DeviceFacts(
        name=raw.name,
        attributes={
            whole_name(name, driver): value
            for name, each in raw.attributes.items()
            if (value := _attribute(each)) is not None
        },
        capacity={name: _capacity(each) for name, each in raw.capacity.items()},
        taints=tuple(DeviceTaint(t.key, t.value, t.effect) for t in raw.taints),
        consumes=_counters(raw.consumes_counters),
        node=raw.node_name,
        nodes=node_terms(raw.node_selector),
        everywhere=raw.all_nodes,
        binds_to_node=raw.binds_to_node,
        several=raw.allow_multiple_allocations,
        ready_by=tuple(raw.binding_conditions),
        fails_by=tuple(raw.binding_failure_conditions),
        unusable=unusable,
    )
    if not unusable and f"{driver}/{MODEL}" in facts.attributes and not model_of(driver, facts):
        kind = facts.attributes.get(f"{driver}/{KIND}")
        part = f"it is a part of a GPU ({kind}), for which there is no quota"
        return replace(facts, unusable=part)
    return facts


def _capacity(raw: RawCapacity) -> Capacity:
    policy = raw.request_policy
    if policy is None:
        return Capacity(parse(raw.value))
    within = policy.valid_range or RawRange()
    return Capacity(
        parse(raw.value),
        RequestPolicy(
            default=_amount(policy.default),
            values=tuple(map(parse, policy.valid_values)),
            least=_amount(within.min),
            most=_amount(within.max),
            step=_amount(within.step),
        ),
    )


def _amount(raw: Amount | None) -> Fraction | None:
    return None if raw is None else parse(raw)


def _amounts(raw: Mapping[str, Amount]) -> Amounts:
    return tuple((name, parse(raw[name])) for name in sorted(raw))


def taint_rule_facts(raw: KubeTaintRule) -> TaintRuleFacts:
    of, taint = raw.spec.device_selector or TaintSelector(), raw.spec.taint
    return TaintRuleFacts(
        name=raw.metadata.name,
        uid=raw.metadata.uid,
        taint=DeviceTaint(taint.key, taint.value, taint.effect),
        driver=of.driver,
        pool=of.pool,
        device=of.device,
    )


def _attribute(raw: RawAttribute) -> Attribute | None:
    if raw.version is not None:
        return Version(raw.version)
    return next((v for v in (raw.text, raw.flag, raw.number) if v is not None), None)


def _counters(raw: Iterable[RawCounters]) -> tuple[Consumed, ...]:
    """Return counters.

    A shared set has a `name`; a device's entry names the set in `counter_set`.
    """
    return tuple(
        Consumed(each.counter_set or each.name, name, parse(amount.value))
        for each in raw
        for name, amount in each.counters.items()
    )


def class_facts(raw: KubeDeviceClass) -> ClassFacts:
    of = raw.spec
    meta = raw.metadata
    return ClassFacts(
        name=meta.name,
        uid=meta.uid,
        selectors=_expressions(of.selectors),
        config=bytes(of.config) or b"[]",
        resource=of.extended_resource_name,
        created_at=seconds_of(meta.creation_timestamp) or 0.0,
    )


def claim_facts(raw: KubeResourceClaim) -> DeviceClaimFacts:
    meta, devices, status = raw.metadata, raw.spec.devices, raw.status
    given: tuple[GivenDevice, ...] | None = None
    nodes: tuple[NodeTerm, ...] = ()
    not_ready, failed = tuple[str, ...](), ""
    if status.allocation is not None:
        given = tuple(
            GivenDevice(
                r.request,
                DeviceId(r.driver, r.pool, r.device),
                r.admin_access,
                _amounts(r.consumed_capacity) if r.share_id else None,
                tuple(r.binding_conditions),
                tuple(r.binding_failure_conditions),
            )
            for r in status.allocation.devices.results
        )
        nodes = node_terms(status.allocation.node_selector)
        not_ready, failed = _readiness(status)
    owner = _owner(meta)
    asks, problem = _asks(devices)
    return DeviceClaimFacts(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        asks=asks,
        given=given,
        nodes=nodes,
        reserved_for=tuple(c.uid for c in status.reserved_for),
        deleting=bool(meta.deletion_timestamp),
        problem=problem,
        made_for=owner if meta.annotations.get(ANNOTATION) == "true" else None,
        owner=owner,
        not_ready=not_ready,
        failed=failed,
        domains=domains_of(devices.config),
    )


def _readiness(status: DeviceClaimStatus) -> tuple[tuple[str, ...], str]:
    """Return the device conditions that do not hold yet, and why they never will.

    "" = they may still hold.
    """
    told = {(d.driver, d.pool, d.device, d.share_id): d.conditions for d in status.devices}
    not_ready = []
    for each in status.allocation.devices.results if status.allocation is not None else ():
        of = each.driver, each.pool, each.device, each.share_id
        hold = {c.type: c for c in told.get(of, ()) if c.status == "True"}
        where = f"{each.device} of pool {each.pool}"
        # As in kube-scheduler, devices without binding conditions are ready.
        for name in each.binding_failure_conditions if each.binding_conditions else ():
            if (failure := hold.get(name)) is not None:
                why = ": ".join(filter(None, (failure.reason, failure.message)))
                return (), f"{where} is {name}{f' ({why})' if why else ''}"
        not_ready += [f"{where} is not {n} yet" for n in each.binding_conditions if n not in hold]
    return tuple(not_ready), ""


def template_facts(raw: KubeClaimTemplate) -> TemplateFacts:
    meta, of_claims = raw.metadata, raw.spec.metadata
    asks, problem = asks_of(raw.spec.spec)
    return TemplateFacts(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        asks=asks,
        spec=raw.spec.spec,
        labels=of_claims.labels,
        annotations=of_claims.annotations,
        problem=problem,
        domain=meta.labels.get(DOMAIN, ""),
        deleting=bool(meta.deletion_timestamp),
    )


def asks_of(spec: Mapping[str, Any]) -> tuple[ClaimAsks, str]:
    """Return what a claim with this spec asks for, and why Kant cannot answer it ("" = it can)."""
    return _asks(msgspec.convert(spec, DeviceClaimSpec).devices)


def _asks(devices: RawDevices) -> tuple[ClaimAsks, str]:
    constraints = tuple(
        Constraint(
            tuple(c.requests),
            c.match_attribute or c.distinct_attribute,
            distinct=bool(c.distinct_attribute),
        )
        for c in devices.constraints
    )
    asks = ClaimAsks(tuple(map(_alternatives, devices.requests)), constraints)
    unknown = any(not c.attribute for c in constraints)
    return asks, "a constraint is of a kind that Kant does not know" if unknown else ""


def _owner(meta: Meta) -> tuple[str, str] | None:
    """Return name and uid of the pod that the object is deleted with."""
    pods = (o for o in meta.owner_references if o.controller and o.kind == "Pod")
    return next(((owner.name, owner.uid) for owner in pods), None)


def _alternatives(raw: RawRequest) -> tuple[DeviceAsk, ...]:
    if raw.exactly is not None:
        return (_ask(raw.name, raw.exactly),)
    if not raw.first_available:
        problem = "it is neither exactly nor firstAvailable, and Kant knows no other kind"
        return (DeviceAsk(raw.name, "", problem=problem),)
    return tuple(_ask(f"{raw.name}/{each.name}", each) for each in raw.first_available)


def _ask(name: str, raw: RawAsk) -> DeviceAsk:
    problem = ""
    if raw.allocation_mode not in (ALL, EXACT_COUNT):
        problem = f"allocationMode: Kant does not know {raw.allocation_mode}"
    elif any(each.cel is None for each in raw.selectors):
        problem = "selectors: Kant knows only those by CEL"
    return DeviceAsk(
        name=name,
        device_class=raw.device_class_name,
        selectors=_expressions(raw.selectors),
        amount=None if raw.allocation_mode == ALL else raw.count,
        admin=raw.admin_access,
        tolerations=tuple(
            Toleration(t.key, t.operator or "Equal", t.value, t.effect) for t in raw.tolerations
        ),
        problem=problem,
        capacity=_amounts(raw.capacity.requests) if raw.capacity is not None else (),
    )


def _expressions(raw: Iterable[RawSelector]) -> tuple[str, ...]:
    return tuple(each.cel.expression for each in raw if each.cel is not None)
