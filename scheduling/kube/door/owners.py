"""The owners and groups of waiting pods: read once a pod needs them, then followed.

The first pod that names an object of some kind starts a watch of that kind, in all namespaces; no
kind is watched before. So each object is read once, however many pods it has, and a change of it is
news of its waiting pods. If an object cannot be read, its pods say so until it can.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from msgspec import Struct

from scheduling.kube.door.client import Client, NoReply
from scheduling.kube.door.versions import ServedVersions
from scheduling.kube.door.watch import Reflector, WatchedKind, WatchTimes
from scheduling.kube.network.level_names import DEFAULT_NAMES, LevelNames
from scheduling.kube.seam import KubeError, PodFacts, Reference, Unclear
from scheduling.kube.translate.objects import Meta
from scheduling.kube.translate.plain_pods import GANG
from scheduling.kube.workloads.levels import levels_of_pod
from scheduling.kube.workloads.reading import Found
from scheduling.kube.workloads.registry import RULES, Unknown, workload_of

logger = logging.getLogger(__name__)

# Pods and owners come in separate watches, so a pod may be seen before its owner.
COMES_WITHIN_S = 3.0
READING, UNREADABLE, GONE = "ReadingOwner", "OwnerUnreadable", "OwnerGone"
GONE_FOR_SURE = float("-inf")  # in `_missed`, for an object whose deletion was seen
# Of pod templates only the number of pods matters here.
LEFT_OUT = frozenset({"containers", "initContainers", "volumes", "affinity", "managedFields"})


class KubeOwner(Struct, gc=False, rename="camel"):
    """An object of any kind: its metadata, spec and status."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class OwnerFacts(Struct, frozen=True, gc=False):
    """An object that owns pods or groups them."""

    namespace: str
    name: str
    uid: str
    found: Found


_Key = tuple[str, str]  # API version and kind
_Object = tuple[str, str]  # namespace and name


def owner_facts(raw: KubeOwner) -> OwnerFacts:
    meta = raw.metadata
    references = [
        {"apiVersion": r.api_version, "kind": r.kind, "name": r.name, "uid": r.uid}
        for r in meta.owner_references
        if r.controller
    ]
    metadata = {
        "name": meta.name,
        "annotations": meta.annotations,
        "ownerReferences": [{**r, "controller": True} for r in references],
    }
    found = {"metadata": metadata, "spec": _slim(raw.spec or {}), "status": raw.status or {}}
    return OwnerFacts(meta.namespace, meta.name, meta.uid, found)


def _slim(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _slim(v) for k, v in value.items() if k not in LEFT_OUT}
    return [_slim(each) for each in value] if isinstance(value, list) else value


class Owners:
    """Finds what each waiting pod belongs to.

    `tell` is called with a pod if the pod, or what it belongs to, changed. `spawn` runs the
    coroutine of a watch. All of it runs in the gateway's event loop.
    """

    def __init__(
        self,
        client: Client,
        times: WatchTimes,
        tell: Callable[[PodFacts], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        names: LevelNames = DEFAULT_NAMES,
    ) -> None:
        self._client = client
        self._versions = ServedVersions(client)
        self._times = times
        self._tell = tell
        self._spawn = spawn
        self._names = names
        self._pods: dict[str, PodFacts] = {}  # waiting pods, as last passed to `tell`
        self._named: dict[str, set[tuple[_Key, _Object]]] = {}  # objects that pods name, by pod uid
        self._naming: dict[tuple[_Key, _Object], set[str]] = defaultdict(set)
        self._watches: dict[_Key, Reflector[OwnerFacts]] = {}
        self._objects: dict[_Key, dict[_Object, OwnerFacts]] = defaultdict(dict)
        self._troubles: dict[_Key, KubeError] = {}
        self._missed: dict[tuple[_Key, _Object], float] = {}  # since when they are missing

    def seen(self, pod: PodFacts) -> None:
        """Take in a pod that the pod watch reported."""
        if pod.plain is None or pod.deleting:
            self.gone(pod.uid)
            self._tell(pod)
        else:
            self._judge(pod, news=True)

    def gone(self, uid: str) -> None:
        """Forget the pod: it no longer waits."""
        if self._pods.pop(uid, None) is not None:
            for which in self._named.pop(uid, ()):
                self._forget(which, uid)

    def levels_are(self, names: LevelNames) -> None:
        """Use these names of network levels from now on."""
        before, self._names = self._names, names
        for pod in list(self._pods.values()) if before != names else ():
            self._judge(pod)

    def _forget(self, which: tuple[_Key, _Object], uid: str) -> None:
        """Note that the pod no longer names the object."""
        self._naming[which].discard(uid)
        if not self._naming[which]:
            del self._naming[which]
            self._missed.pop(which, None)

    # --- one pod ----------------------------------------------------------------------------------
    def _judge(self, pod: PodFacts, *, news: bool = False) -> None:
        assert pod.plain is not None
        named: set[tuple[_Key, _Object]] = set()

        def find(reference: Reference) -> Found:
            key = reference.api_version, reference.kind
            which = key, (pod.namespace, reference.name)
            named.add(which)
            # Register the pod before the search, so that it hears of whatever becomes known.
            self._naming[which].add(pod.uid)
            return self._find(reference, which)

        by_label = GANG in pod.labels
        workload = None if by_label else workload_of(pod, find, self._names)
        for which in self._named.get(pod.uid, set()) - named:
            self._forget(which, pod.uid)
        self._named[pod.uid] = named
        levels = levels_of_pod(pod.annotations, self._names)
        plain = msgspec.structs.replace(pod.plain, workload=workload, levels=levels)
        told, now = self._pods.get(pod.uid), msgspec.structs.replace(pod, plain=plain)
        self._pods[pod.uid] = now
        if news or told != now:
            self._tell(now)

    def _find(self, reference: Reference, which: tuple[_Key, _Object]) -> Found:
        """Return the object that the reference names. Raises Unknown."""
        key, (namespace, name) = which
        what = f"{reference.kind} {namespace}/{name}"
        watch = self._watches.get(key) or self._watch(reference)
        facts = self._objects[key].get((namespace, name))
        if facts is not None and reference.uid in ("", facts.uid):
            self._missed.pop(which, None)
            return facts.found
        since = self._missed.get(which)
        if since != GONE_FOR_SURE:
            if (trouble := self._troubles.get(key)) is not None:
                text = f"{what} decides which pods belong together. {trouble}."
                raise Unknown(Unclear(UNREADABLE, text, is_answer=False))
            reading = Unknown(Unclear(READING, f"Kant is reading {what}.", is_answer=False))
            if not watch.synced:
                raise reading
            since = self._missed.setdefault(which, time.monotonic())
            if time.monotonic() - since < COMES_WITHIN_S:
                loop = asyncio.get_running_loop()
                loop.call_later(COMES_WITHIN_S + 0.1, self._again, which)
                raise reading
        text = (
            f"There is no {what}, which says which pods belong together: none of them starts. Make "
            "it (again), or delete the pod."
        )
        raise Unknown(Unclear(GONE, text, is_answer=True))

    # --- the objects ------------------------------------------------------------------------------
    def _watch(self, reference: Reference) -> Reflector[OwnerFacts]:
        key = reference.api_version, reference.kind
        rule = RULES[reference.group, reference.kind]
        path = f"/apis/{reference.api_version}/{rule.plural}"
        objects = self._objects[key]

        def seen(facts: OwnerFacts) -> None:
            objects[facts.namespace, facts.name] = facts
            self._again((key, (facts.namespace, facts.name)))

        def gone(facts: OwnerFacts) -> None:
            which = key, (facts.namespace, facts.name)
            known = objects.get(which[1])
            if known is not None and known.uid == facts.uid:
                del objects[which[1]]
                if which in self._naming:
                    self._missed[which] = GONE_FOR_SURE
            self._again(which)

        def health(error: KubeError | None) -> None:
            before = self._troubles.pop(key, None)
            if error is not None:
                self._troubles[key] = error
                if before is None:
                    logger.warning("%s cannot be read: %s", plural, error)
            elif before is None and listed:
                return
            else:
                listed.append(True)
            if str(before) != str(error) or error is None:
                for which in [w for w in self._naming if w[0] == key]:
                    self._again(which)

        listed: list[bool] = []
        plural = f"{rule.plural}.{rule.group}"
        watch = Reflector(
            self._client,
            WatchedKind(plural, path, "", KubeOwner),
            translate=owner_facts,
            identity=lambda facts: facts.uid,
            seen=seen,
            gone=gone,
            health=health,
            times=self._times,
        )
        self._watches[key] = watch
        self._spawn(self._run(watch, reference.api_version, rule.plural))
        return watch

    async def _run(self, watch: Reflector[OwnerFacts], api_version: str, plural: str) -> None:
        """Follow the served version: pods may name their group without a version."""
        try:
            version = await self._versions.of(api_version)
        except (KubeError, NoReply) as unknown:
            logger.info("which version of %s is served is not known: %s", api_version, unknown)
        else:
            watch.move(f"/apis/{version}/{plural}")
        await watch.run()

    def _again(self, which: tuple[_Key, _Object]) -> None:
        """Judge the pods that name this object again: it has news."""
        for uid in sorted(self._naming.get(which, ())):
            if (pod := self._pods.get(uid)) is not None:
                self._judge(pod)
