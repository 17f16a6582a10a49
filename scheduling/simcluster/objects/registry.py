"""Reading and writing objects by the API's rules; no HTTP here.

Everything returns decoded objects in stored shape; every refusal is an `ApiError`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from scheduling.simcluster.objects import pods, rules, shapes
from scheduling.simcluster.objects.kinds import (
    CLAIMS,
    DISRUPTION_BUDGETS,
    EVENTS,
    LEASES,
    NAMESPACES,
    OWNERS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    SERVICES,
    ResourceKind,
)
from scheduling.simcluster.objects.meta import kept_meta, meta_causes, new_meta, rfc3339
from scheduling.simcluster.objects.selectors import Match
from scheduling.simcluster.objects.status import (
    MODIFIED,
    ApiError,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    invalid_options,
    invalid_value,
    not_found,
    not_supported,
    precondition_failed,
    rejected_patch,
)
from scheduling.simcluster.objects.store import Obj, Store, Stored

Clock = Callable[[], float]

# The kinds that live in namespaces.
_CONTENT = (
    *(PODS, SERVICES, EVENTS, LEASES, DISRUPTION_BUDGETS, CLAIMS),
    *(RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, *OWNERS),
)


@dataclass(frozen=True)
class DeleteOptions:
    """The parts of metav1.DeleteOptions that are honoured."""

    uid: str = ""
    resource_version: str = ""
    grace_s: int | None = None
    dry_run: bool = False


def delete_options(body: Obj, query: dict[str, str]) -> DeleteOptions:
    """Return DeleteOptions from a body and the query; the query wins.

    Raises:
        ApiError: 400 for fields of a wrong type, 422 for a wrong dryRun value.
    """
    preconditions = body.get("preconditions") or {}
    grace = query.get("gracePeriodSeconds", body.get("gracePeriodSeconds"))
    try:
        grace_s = None if grace is None else int(grace)
        uid = str(preconditions.get("uid") or "")
        rv = str(preconditions.get("resourceVersion") or "")
    except (ValueError, TypeError, AttributeError) as error:
        raise bad_request(f"DeleteOptions cannot be handled: {error}") from None
    dry = query.get("dryRun") or ",".join(map(str, body.get("dryRun") or ()))
    return DeleteOptions(uid, rv, grace_s, is_dry_run(dry, "DeleteOptions"))


def is_dry_run(value: str, options: str) -> bool:
    """Whether `dryRun` asks for a dry run; `options`: the kind that a refusal names."""
    if value not in ("", "All"):
        raise invalid_options(options, [not_supported("dryRun", [value], ("All",))])
    return value == "All"


class Registry:
    """The verbs on single objects of all kinds, in one store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock

    # --- read -------------------------------------------------------------------------------
    def stored(self, kind: ResourceKind, namespace: str, name: str) -> Stored:
        found = self.store.get(kind.table, key_of(kind, namespace, name))
        if found is None:
            raise not_found(kind, name)
        return found

    # --- write ------------------------------------------------------------------------------
    def create(self, kind: ResourceKind, namespace: str, obj: Obj, *, dry_run: bool = False) -> Obj:
        shapes.check(kind, obj)
        self._require_namespace(kind, namespace, obj)
        obj["metadata"] = meta = new_meta(kind, obj, namespace, self.clock())
        obj = _metadata_first(rules.to_stored(kind, obj))
        if causes := meta_causes(kind, meta):
            raise invalid(kind, meta["name"], causes)
        if kind is PODS:
            pods.prepare_create(obj, self.store, self.clock())
        else:
            rules.prepare_create(kind, obj)
        key = key_of(kind, namespace, meta["name"])
        if self.store.get(kind.table, key) is not None:
            raise already_exists(kind, meta["name"])
        if dry_run:
            del meta["resourceVersion"]
            return obj
        self.store.put(kind.table, key, obj)
        return obj

    def _require_namespace(self, kind: ResourceKind, namespace: str, obj: Obj) -> None:
        if not kind.namespaced:
            return
        found = self.store.get("namespaces", namespace)
        if found is None:
            raise not_found(NAMESPACES, namespace)
        if found.fields[0] == "Terminating":
            name = (obj.get("metadata") or {}).get("name") or ""
            raise forbidden(
                kind,
                name,
                f"unable to create new content in namespace {namespace} because it is being "
                "terminated",
            )

    def update(
        self,
        kind: ResourceKind,
        namespace: str,
        name: str,
        obj: Obj,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> tuple[Obj, bool]:
        """PUT an object. Return it and whether it was created."""
        shapes.check(kind, obj)
        key = key_of(kind, namespace, name)
        found = self.store.get(kind.table, key)
        given = obj.get("metadata") or {}
        if found is None:
            if not kind.create_on_update or subresource:
                raise not_found(kind, name)
            given.pop("resourceVersion", None)
            return self.create(kind, namespace, obj, dry_run=dry_run), True
        if not given.get("resourceVersion") and not kind.unconditional_update:
            raise invalid(
                replace(kind, kind=kind.plural),
                name,
                [invalid_value("metadata.resourceVersion", 0, "must be specified for an update")],
            )
        return self._replace(kind, found, obj, subresource, dry_run=dry_run), False

    def modify(
        self,
        kind: ResourceKind,
        namespace: str,
        name: str,
        change: Callable[[Obj], Obj],
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Obj:
        """PATCH an object; `change` gets it in the shape of `kind`, without kind and apiVersion."""
        found = self.stored(kind, namespace, name)
        before = rules.from_stored(kind, found.decode())
        after = change(before)
        if not isinstance(after, dict) or not isinstance(after.get("metadata"), dict):
            raise bad_request("the patched object has no metadata")
        uid = after["metadata"].get("uid")
        if uid and uid != found.uid:
            raise invalid(kind, name, [invalid_value("metadata.uid", uid, "field is immutable")])
        after.pop("kind", None)
        after.pop("apiVersion", None)
        try:
            shapes.check(kind, after)
        except ApiError as error:
            raise rejected_patch(error.message) from None
        return self._replace(kind, found, after, subresource, dry_run=dry_run)

    def _replace(
        self, kind: ResourceKind, found: Stored, obj: Obj, subresource: str, *, dry_run: bool
    ) -> Obj:
        old = found.decode()
        given = obj.get("metadata") or {}
        self._check_preconditions(kind, found, given)
        new = rules.to_stored(kind, obj)
        new["metadata"] = kept_meta(kind, obj, old["metadata"])
        if causes := meta_causes(kind, new["metadata"]):
            raise invalid(kind, found.name, causes)
        if subresource == "status":
            rules.prepare_status_update(kind, new, old)
        elif kind is PODS:
            pods.prepare_update(new, old)
        else:
            rules.prepare_update(kind, new, old)
        new = _metadata_first(new)
        if new == old:
            return old
        if new["metadata"].get("deletionTimestamp") and self._may_go(kind, new):
            self._remove(kind, found.key, new, dry_run=dry_run)
        else:
            self._commit(kind, found.key, new, dry_run=dry_run)
        return new

    def _check_preconditions(self, kind: ResourceKind, found: Stored, given: Obj) -> None:
        uid, rv = given.get("uid"), given.get("resourceVersion")
        if uid and uid != found.uid:
            raise precondition_failed(kind, found.key, found.name, "UID", uid, found.uid)
        if rv and rv != "0" and rv != str(found.rv):
            raise conflict(kind, found.name, MODIFIED)

    def set(self, kind: ResourceKind, key: str, obj: Obj) -> None:
        """Commit a decision of the cluster's own controllers; no rules apply."""
        self.store.put(kind.table, key, obj)

    # --- delete -----------------------------------------------------------------------------
    def delete(self, kind: ResourceKind, namespace: str, name: str, options: DeleteOptions) -> Obj:
        """Delete now, or mark for deletion while a grace period, a finalizer or content remains."""
        found = self.stored(kind, namespace, name)
        self.check_delete(kind, found, options)
        obj = found.decode()
        if kind is PODS:
            return self._delete_pod(found, obj, options)
        meta = obj["metadata"]
        if kind.plural == "namespaces":
            obj["status"] = {"phase": "Terminating"}
        if self._may_go(kind, obj):
            self._remove(kind, found.key, obj, dry_run=options.dry_run)
        elif not meta.get("deletionTimestamp"):
            meta["deletionTimestamp"] = rfc3339(self.clock())
            self._commit(kind, found.key, obj, dry_run=options.dry_run)
            if kind.plural == "namespaces" and not options.dry_run:
                self._empty_namespace(name)
        return obj

    def check_delete(self, kind: ResourceKind, found: Stored, options: DeleteOptions) -> None:
        for what, want, have in (
            ("UID", options.uid, found.uid),
            ("ResourceVersion", options.resource_version, str(found.rv)),
        ):
            if want and want != have:
                raise conflict(
                    kind,
                    found.name,
                    f"the {what} in the precondition ({want}) does not match the {what} in record "
                    f"({have}). The object might have been "
                    + ("deleted and then recreated" if what == "UID" else "modified"),
                    kind.kind,
                )

    def _delete_pod(self, found: Stored, obj: Obj, options: DeleteOptions) -> Obj:
        """Delete a pod; on a node it stays for its grace period, and the kubelet removes it."""
        meta, spec = obj["metadata"], obj["spec"]
        grace = options.grace_s
        if grace is None:
            grace = spec.get("terminationGracePeriodSeconds", 30)
        finished = obj["status"].get("phase") in ("Succeeded", "Failed")
        if not spec.get("nodeName") or finished:
            grace = 0
        if grace < 0:
            grace = 1
        before = meta.get("deletionTimestamp")
        if before and grace >= meta.get("deletionGracePeriodSeconds", 0) and grace > 0:
            return obj
        meta["deletionTimestamp"] = rfc3339(self.clock() + grace)
        meta["deletionGracePeriodSeconds"] = grace
        if not before:
            meta["generation"] = meta.get("generation", 1) + 1
        # Mark even a pod that goes at once: watchers see both changes.
        self._commit(PODS, found.key, obj, dry_run=options.dry_run)
        if grace == 0 and not meta.get("finalizers"):
            self._remove(PODS, found.key, obj, dry_run=options.dry_run)
        return obj

    def delete_collection(
        self, kind: ResourceKind, namespace: str, match: Match | None, options: DeleteOptions
    ) -> list[Obj]:
        """Delete what matches; return the objects as they were."""
        listed = [o for o in self.store.sorted(kind.table, namespace) if match is None or match(o)]
        for o in listed:
            self.delete(kind, o.namespace, o.name, options)
        return [o.decode() for o in listed]

    def _may_go(self, kind: ResourceKind, obj: Obj) -> bool:
        meta = obj["metadata"]
        if meta.get("finalizers"):
            return False
        if kind is PODS:
            return meta.get("deletionGracePeriodSeconds", 0) == 0
        if kind.plural == "namespaces":
            return not self._has_content(meta["name"])
        return True

    def _has_content(self, namespace: str) -> bool:
        return any(
            o.namespace == namespace
            for plural, table in self.store.objects.items()
            if plural != "namespaces"
            for o in table.values()
        )

    def _empty_namespace(self, namespace: str) -> None:
        for kind in _CONTENT:
            self.delete_collection(kind, namespace, None, DeleteOptions())
        self.finish_namespace(namespace)

    def finish_namespace(self, namespace: str) -> None:
        """Remove a terminating namespace once it is empty."""
        found = self.store.get("namespaces", namespace)
        if found and found.fields[0] == "Terminating" and not self._has_content(namespace):
            self.store.remove("namespaces", namespace, found.decode())

    # --- commit -----------------------------------------------------------------------------
    def _commit(self, kind: ResourceKind, key: str, obj: Obj, *, dry_run: bool) -> None:
        if not dry_run:
            self.store.put(kind.table, key, obj)

    def _remove(self, kind: ResourceKind, key: str, obj: Obj, *, dry_run: bool) -> None:
        if dry_run:
            return
        self.store.remove(kind.table, key, obj)
        namespace = obj["metadata"].get("namespace", "")
        if namespace:
            self.finish_namespace(namespace)


def key_of(kind: ResourceKind, namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if kind.namespaced else name


def _metadata_first(obj: dict[str, Any]) -> Obj:
    """Return the object in the order in which it is written: metadata first."""
    return {"metadata": obj["metadata"], **{k: v for k, v in obj.items() if k != "metadata"}}
