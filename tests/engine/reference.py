"""The naive reference of placement: plain objects, full scans, the rules as written.

It keeps no derived state: free resources are summed up from the bookings on every question, and
node order and topology are computed anew. The rules are those in the docstrings of
`scheduling/engine/placement`. Only the device tables are shared with the engine (test_devices.py
proves them by brute force).
"""

from fractions import Fraction
from itertools import groupby
from math import ceil

from scheduling.engine.cluster.constraints import admits
from scheduling.engine.cluster.lifetimes import growth, mean_left
from scheduling.engine.devices.nics import nics_for
from scheduling.engine.devices.tables import table_for
from scheduling.engine.types import BEYOND, MILLI, JobKind, JobRequest, PodPlacement, PodSetSpec
from tests.engine.reference_cluster import Cluster, bit_positions, size_of


class Attempt:
    """One pod set in one pool: the allowed nodes, and the pods placed so far."""

    def __init__(self, cluster, job, index, milli, nodes, how):
        self.c, self.job, self.index, self.milli = cluster, job, index, milli
        self.s: PodSetSpec = job.pod_sets[index]
        self.how = how
        self.order = {n.name: i for i, n in enumerate(nodes)}
        self.pool = nodes
        self.top = max(len(n.devices) for n in nodes) if nodes else 0
        self.made = []
        self.shut = set()

    def pods_of_job(self, same_set=False):
        return [
            (p.node, key)
            for key, (p, _) in self.c.pods.items()
            if key[0] == self.job.id and (key[1] == self.index or not same_set)
        ]

    def ordinals(self):
        """Return the pods of the set that already held a place, then those placed now, in this
        order."""
        return sorted(
            (0 if isinstance(key[2], int) else 1, key) for _, key in self.pods_of_job(True)
        )

    def count_at(self, node, same_set=False):
        return sum(name == node.name for name, _ in self.pods_of_job(same_set))

    def count_in_leaf(self, node, same_set=False):
        leaf = self.c.group(node, self.c.levels[0])
        return sum(
            self.c.group(self.c.nodes[name], self.c.levels[0]) == leaf
            for name, _ in self.pods_of_job(same_set)
            if name in self.c.nodes
        )

    def allowed(self, node):
        """Return how many pods the replica limits still allow."""
        limit = 1 << 30
        if self.s.max_per_node is not None:
            limit = self.s.max_per_node - self.count_at(node, True)
        if self.s.max_per_leaf is not None:
            limit = min(limit, self.s.max_per_leaf - self.count_in_leaf(node, True))
        return max(limit, 0)

    def room(self, node):
        return min(self.c.room(node, self.s, self.milli), self.allowed(node))

    def capacity(self, nodes):
        """Return how many pods fit on these nodes together; the limit per leaf covers all its
        nodes."""
        total = 0
        by_leaf = {}
        for node in nodes:
            by_leaf.setdefault(self.c.group(node, self.c.levels[0]), []).append(node)
        for members in by_leaf.values():
            pods = 0
            for node in members:
                by_node = self.c.room(node, self.s, self.milli)
                if self.s.max_per_node is not None:
                    by_node = min(by_node, self.s.max_per_node - self.count_at(node, True))
                pods += max(by_node, 0)
            if self.s.max_per_leaf is not None:
                pods = min(pods, self.s.max_per_leaf - self.count_in_leaf(members[0], True))
            total += max(pods, 0)
        return total

    # --- nodes ------------------------------------------------------------------------------
    def join(self, nodes, pods):
        """Return the partly used node whose time in partial use grows least; only the first 8 nodes
        of each count are compared."""
        need = pods * self.s.gpus
        if self.job.declared_s is None or not need or self.milli < MILLI:
            return None
        fits = sorted(self.whole_nodes(nodes, pods), key=self.key_fullest)
        found = []
        for _, alike in groupby(fits, key=self.c.free):
            for node in list(alike)[:8]:
                if self.c.idle(node):
                    continue
                left = self.c.free(node) - need
                cost = growth(mean_left(self.job.declared_s, 0), self.c.outlook(node), left)
                found.append((cost, self.key_fullest(node), node))
        return min(found)[2] if found else None

    def key_fullest(self, node):
        return self.c.free(node), self.order[node.name]

    def key_consolidated(self, node):
        fill = self.c.small_gpus(self.c.group(node, self.c.levels[0]), node.gpu_model)
        return self.c.free(node), -fill, self.order[node.name]

    def share_node(self, nodes):
        """Return the node whose largest remainder of a device is the smallest that holds the
        share."""
        fits = [
            (max(self.c.partial(n).values()), self.order[n.name], n)
            for n in nodes
            if self.room(n) and self.shares_left(n)
        ]
        return min(fits)[2] if fits else None

    def shares_left(self, node):
        """Return (remainder, device) of the partly used devices that hold the share."""
        partial, exact = self.c.partial(node), self.c.exact(node)
        size = size_of(min(d.memory_mib for d in node.devices), self.s)
        by = exact if self.s.gpu_memory_mib else partial
        return [(by[d], d) for d in partial if exact[d] >= size]

    def whole_nodes(self, nodes, pods=1):
        """Return the nodes with enough free GPUs for this many pods together."""
        need = pods * self.s.gpus
        return [n for n in nodes if self.c.free(n) >= need and self.room(n) >= pods]

    def pick(self, nodes, left):
        nodes = [n for n in nodes if self.room(n)]
        share = self.milli < MILLI
        if self.how == "binpack":
            node = self.share_node(nodes) if share else None
            return node or min(self.whole_nodes(nodes), key=self.key_fullest, default=None), 1
        if self.how in ("e-binpack", "e-spread"):
            own = [n for n in nodes if self.count_at(n)]
            node = self.share_node(own) if share else None
            node = node or min(self.whole_nodes(own), key=self.key_fullest, default=None)
            if node:
                return node, 1
            node = self.share_node(nodes) if share else None
            if node:
                return node, 1
            most = 1 if share or not self.s.gpus else min(left, self.top // self.s.gpus)
            for pods in range(most, 0, -1):
                fits = self.whole_nodes(nodes, pods)
                if fits:
                    best = self.join(nodes, pods) or min(fits, key=self.key_consolidated)
                    return best, pods
            return None, 0
        if self.how == "native":
            node = min(self.whole_nodes(nodes), key=self.key_emptiest, default=None)
            return node or (self.share_node(nodes) if share else None), 1
        assert self.how == "spread"
        nodes.sort(key=self.tier)
        for _, tier in groupby(nodes, key=self.tier):
            members = list(tier)
            node = min(self.whole_nodes(members), key=self.key_emptiest, default=None)
            node = node or (self.share_node(members) if share else None)
            if node:
                return node, 1
        return None, 0

    def tier(self, node):
        return self.count_at(node), self.count_in_leaf(node)

    def key_emptiest(self, node):
        return -self.c.free(node), self.order[node.name]

    def put(self, node):
        """Book one more pod on the node, with devices and NICs; return False if NICs are
        lacking."""
        devices = ()
        if self.s.gpus:
            fits = self.shares_left(node) if self.milli < MILLI else []
            if fits:
                devices = (min(fits)[1],)
            else:
                free = sum(1 << d for d in self.c.free_devices(node))
                devices = bit_positions(table_for(node).best(free, self.s.gpus))
        nics = ()
        if devices and node.nics:
            healthy = sum(1 << n.index for n in node.nics if n.healthy)
            left = sum(1 << i for i in self.c.free_nics(node))
            nics = nics_for(node).pair(devices, left if self.s.nics else healthy, self.s.nics)
        elif self.s.nics:
            nics = None
        if nics is None:
            return False
        key = (self.job.id, self.index, f"new {len(self.made)}")
        while key in self.c.pods:
            key = (*key[:2], key[2] + "'")
        self.c.pods[key] = (
            PodPlacement(self.index, -1, node.name, devices, self.milli, nics, self.beyond(node)),
            self.s,
        )
        self.made.append(key)
        return True

    def beyond(self, node):
        """Return by how much a share by memory exceeds its whole thousandths."""
        exact = Fraction(self.s.gpu_memory_mib * MILLI, node.gpu_memory_mib or 1)
        return ceil((exact - self.milli) * BEYOND) if exact > self.milli else 0

    def by_nodes(self, nodes, count):
        done, shut = 0, set()
        while done < count:
            node, pods = self.pick([n for n in nodes if n.name not in shut], count - done)
            if node is None:
                break
            for _ in range(pods):
                if not self.put(node):
                    shut.add(node.name)
                    self.shut.add(node.name)
                    break
                done += 1
        return done

    # --- groups -----------------------------------------------------------------------------
    def groups(self, nodes, level):
        groups = {}
        for node in nodes:
            if self.c.group(node, level):
                groups.setdefault(self.c.group(node, level), []).append(node)
        # Groups keep the order of the whole pool, whichever of its nodes are left.
        first = {}
        for number, node in enumerate(self.c.ordered()):
            if groups and node.gpu_model == self.pool[0].gpu_model:
                first.setdefault(self.c.group(node, level), number)
        return [groups[name] for name in sorted(groups, key=first.__getitem__)]

    def tightest(self, groups, count):
        fits = [(self.capacity(g), i) for i, g in enumerate(groups) if self.capacity(g) >= count]
        return groups[min(fits)[1]] if fits else None

    def fewest(self, groups, count):
        """Return (group, pods): the largest groups are filled until the tightest one takes the
        rest."""
        left, chosen = count, []
        pods = {i: self.capacity(g) for i, g in enumerate(groups)}
        while left:
            fits = [i for i in pods if pods[i] >= left]
            if fits:
                best = min(fits, key=lambda i: (pods[i], i))
                chosen.append((best, left))
                break
            best = min(pods, key=lambda i: (-pods[i], i))
            chosen.append((best, pods.pop(best)))
            left -= chosen[-1][1]
        return [(groups[i], n) for i, n in sorted(chosen) if n]

    @property
    def packs(self):
        return self.how in ("e-binpack", "e-spread")

    def inside(self, nodes, level, count):
        if self.packs and level != self.c.levels[0]:
            parts = self.fewest(self.groups(nodes, self.c.levels[0]), count)
            return sum(self.by_nodes(group, part) for group, part in parts)
        return self.by_nodes(nodes, count)

    def place(self, nodes, want, least):
        """Place up to `want` pods by the topology wish, at least `least` or none; return how
        many."""
        s, levels = self.s, list(self.c.levels)
        if s.required_level:
            nodes = [n for n in nodes if self.c.group(n, s.required_level)]
            held = [self.c.pods[key][0].node for _, key in self.ordinals()]
            if held and not s.slice_size:
                group = self.c.group(self.c.nodes[held[0]], s.required_level)
                nodes = [n for n in nodes if self.c.group(n, s.required_level) == group]
        wish = s.required_level or s.preferred_level or s.balance_level
        if want == 1 or (not wish and not self.packs and not least):
            return self.by_nodes(nodes, want)
        if self.packs and s.gpus and self.milli == MILLI and not s.balance_level:
            fits = self.whole_nodes(nodes, want) if want * s.gpus <= self.top else []
            if fits:
                node = self.join(nodes, want) or min(fits, key=self.key_consolidated)
                return sum(self.put(node) for _ in range(want))
        total = self.capacity(nodes)
        if total < max(least, 1):
            return 0
        count = min(want, total)
        if not wish and not self.packs:
            return self.by_nodes(nodes, count)
        groups = self.groups(nodes, s.required_level) if s.slice_size else []
        parted = groups and max(self.capacity(g) for g in groups) < count
        if s.balance_level and not parted:
            return self.balanced(nodes, count)
        if s.slice_size:
            return self.slices(nodes, count, least)
        widest = s.required_level or s.preferred_level
        if not widest:
            tries = levels
        elif widest == "hyper-node" or not self.packs:
            tries = [widest]
        else:
            tries = levels[: levels.index(widest) + 1]
        for level in tries:
            group = self.tightest(self.groups(nodes, level), count)
            if group:
                return self.inside(group, level, count)
        if s.required_level:
            groups = self.groups(nodes, s.required_level)
            most = max((self.capacity(g) for g in groups), default=0)
            if most < max(least, 1):
                return 0
            return self.inside(self.tightest(groups, most), s.required_level, most)
        level = s.preferred_level or levels[0]
        groups = self.groups(nodes, level)
        if sum(self.capacity(g) for g in groups) < count:
            level, groups = levels[0], self.groups(nodes, levels[0])
        done = sum(self.inside(g, level, part) for g, part in self.fewest(groups, count))
        return done + self.rest(nodes, count - done)

    def rest(self, nodes, count):
        """Place the pods that hyper-nodes left out or that were counted twice in a leaf with a
        limit."""
        nodes = [n for n in nodes if n.name not in self.shut]
        count = min(count, self.capacity(nodes))
        parts = self.fewest(self.groups(nodes, self.c.levels[0]), count)
        return sum(self.inside(g, self.c.levels[0], part) for g, part in parts)

    def balanced(self, nodes, count):
        s = self.s
        if s.required_level:
            groups = self.groups(nodes, s.required_level)
            count = min(count, max(self.capacity(g) for g in groups))
            nodes = self.tightest(groups, count)
        groups = self.groups(nodes, s.balance_level)
        room = [self.capacity(g) for g in groups]
        given = [0] * len(groups)
        for _ in range(count):
            open_groups = [i for i in range(len(groups)) if given[i] < room[i]]
            if not open_groups:
                break
            given[min(open_groups, key=lambda i: (given[i], i))] += 1
        done = sum(
            self.inside(g, s.balance_level, n) for g, n in zip(groups, given, strict=True) if n
        )
        return done + self.rest(nodes, count - done)

    def slices(self, nodes, count, least):
        groups = self.groups(nodes, self.s.required_level)
        room = [self.capacity(g) for g in groups]
        given = [0] * len(groups)
        for _ in range(count // self.s.slice_size):
            fits = [i for i in range(len(groups)) if room[i] >= self.s.slice_size]
            if not fits:
                break
            best = min(fits, key=lambda i: (room[i], i))
            room[best] -= self.s.slice_size
            given[best] += self.s.slice_size
        if sum(given) < max(least, 1):
            return 0
        return sum(
            self.inside(g, self.s.required_level, n)
            for g, n in zip(groups, given, strict=True)
            if n
        )

    def undo(self):
        for key in self.made:
            del self.c.pods[key]
        self.made.clear()

    def fill(self, want, least):
        """Place pods with the inference zone first or last, as E-Spread says; otherwise treat all
        nodes alike."""
        zone = [n for n in self.pool if n.zone]
        outside = [n for n in self.pool if not n.zone]
        if self.how not in ("e-binpack", "e-spread") or not zone:
            done = self.place(self.pool, want, least)
        elif self.how == "e-spread" and self.small_inference(want):
            self.how = "spread"
            done = self.place(zone, want, 0)
            self.how = "e-spread"
            if done < want:
                done += self.place(outside, want - done, 0)
        else:
            done = self.place(outside, want, want if self.job.gang else 0)
            if done < want:
                done += self.place(self.pool, want - done, max(least - done, 0))
        if done < least:
            self.undo()
            return 0
        return done

    def small_inference(self, want):
        if self.job.kind is not JobKind.INFERENCE or self.s.gpus >= self.top:
            return False
        return not (self.job.gang and want * self.s.gpus > self.top)


def place_one_set(cluster: Cluster, job: JobRequest, how: str, avoid=frozenset()):
    """Return places for a job of one pod set: sorted placements, () if nothing was placed.

    Books the places. A gang gets `min_count` (or `count`) pods in one pool, or nothing.
    """
    s = job.pod_sets[0]
    held = {key[2] for key in cluster.pods if key[0] == job.id}
    missing = [o for o in range(s.count) if o not in held]
    least = (s.count if s.min_count is None else s.min_count) - len(held) if job.gang else 0
    least, want = max(least, 0), len(missing)
    want -= want % s.slice_size if s.slice_size else 0
    if least > want:
        return ()
    attempts = []
    if held and job.gang and s.gpus:  # a gang keeps its GPU model
        first = min(key for key in cluster.pods if key[0] == job.id)
        s_pool = (cluster.nodes[cluster.pods[first][0].node].gpu_model,)
    else:
        s_pool = s.gpu_models
    for target in (want, least) if 0 < least < want else (want if least else 0,):
        for milli, nodes in pools(cluster, s, s_pool, avoid):
            if not want or (target and attempts):
                break
            attempt = Attempt(cluster, job, 0, milli, nodes, job.strategy or how)
            done = attempt.fill(want, target)
            if done:
                attempts.append(attempt)
                want -= 0 if target else done
            if done and s.required_level:
                break
        if attempts:
            break
    return number(cluster, job, attempts, missing)


def pools(cluster, s, models, avoid):
    """Return (GPU-milli, nodes in order) of each pool: by preferred model, by memory where
    requested."""
    nodes = [n for n in cluster.ordered() if n.name not in avoid and admits(n, s)]
    for model in models or sorted({n.gpu_model for n in nodes}):
        members = [n for n in nodes if n.gpu_model == model]
        if not s.gpu_memory_mib:
            yield s.gpu_milli, members
            continue
        sizes = {min((d.memory_mib for d in n.devices), default=0) for n in members}
        for size in sorted(sizes):
            if size >= s.gpu_memory_mib:
                yield (
                    max(s.gpu_memory_mib * MILLI // size, 1),
                    [
                        n
                        for n in members
                        if min((d.memory_mib for d in n.devices), default=0) == size
                    ],
                )


def number(cluster, job, attempts, missing):
    """Number the placed pods along the topology and return their placements."""
    placed = []
    for attempt in attempts:
        attempt.made.sort(key=lambda key: attempt.order[cluster.pods[key][0].node])
        placed += [cluster.pods.pop(key) for key in attempt.made]
    result = []
    for (p, s), ordinal in zip(placed, missing, strict=False):
        p = p._replace(ordinal=ordinal)
        cluster.pods[job.id, 0, ordinal] = (p, s)
        result.append(p)
    return tuple(result)
