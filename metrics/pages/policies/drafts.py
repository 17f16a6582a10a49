"""A change of a policy on its way from the form to the save: the policy as shown, and the settings
to change.

Pages pass it on in hidden fields, so no input is lost, whatever somebody else saves in between.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metrics.models import Replay
from scheduling.models import Cluster, ClusterPolicy
from scheduling.pages.forms import DAMAGED
from scheduling.policy.document import effective, faults
from scheduling.policy.settings import (
    Settings,
    differing,
    is_same,
    policy_from,
    revised,
    settings_of,
)
from scheduling.queries.wording import Difference, policy_differences
from scheduling.services.policies.changes import change_policy, changes_of, policy_of
from tenants.errors import Invalid, NotFound
from tenants.models import AuditRecord, User
from tenants.services.audit import PAGE

RECORDS = 50  # newest records searched for who has changed something in between


class Damaged(Invalid):
    """A page sent something that no such page sends."""


@dataclass(frozen=True, slots=True)
class Draft:
    """`shown`: the whole policy that the form was shown with, of `version`. `changes`: the settings
    to change in it."""

    cluster: Cluster
    shown: Mapping[str, Any]
    version: int
    changes: Settings

    @property
    def policy(self) -> dict[str, Any]:
        """The whole policy as it would be. Its values may be invalid."""
        return policy_from({**settings_of(self.shown), **self.changes})

    def hidden(self) -> dict[str, str]:
        """Return the fields that carry it to the next page."""
        return {
            "shown": json.dumps(self.shown),
            "version": str(self.version),
            "changes": json.dumps(self.changes),
        }

    def save(self, actor: User, *, reason: str = "", dry_run: bool = False) -> ClusterPolicy:
        """Make the change; raise as `change_policy`."""
        return change_policy(
            actor,
            self.cluster,
            revised(policy_of(self.cluster).document, self.changes),
            expected_version=self.version,
            reason=reason,
            source=PAGE,
            dry_run=dry_run,
        )

    def rebased(self) -> tuple["Draft", list[Difference]]:
        """Return the same change against the current policy, and what others have changed in
        between."""
        row = policy_of(self.cluster)
        now = effective(row.document)
        settings = settings_of(now)
        left = {k: v for k, v in self.changes.items() if not is_same(k, v, settings.get(k))}
        draft = replace(self, shown=now, version=row.version, changes=left)
        return draft, policy_differences(self.shown, now)


@dataclass(frozen=True, slots=True)
class Foreign:
    """What somebody else has set since the draft began; `record` None = too long ago to find it."""

    difference: Difference
    record: AuditRecord | None


def foreign(cluster: Cluster, differences: Sequence[Difference]) -> list[Foreign]:
    """Return these differences with the records of the changes that made them."""
    made: dict[str, AuditRecord] = {}
    for record in changes_of(cluster)[:RECORDS] if differences else ():
        before, after = settings_of(record.before or {}), settings_of(record.after or {})
        for key in differing(before, after):
            made.setdefault(key, record)
    return [Foreign(one, made.get(one.key)) for one in differences]


def draft_of_now(cluster: Cluster) -> Draft:
    """Return an empty draft. Raises NotFound if a newer version of Kant has set the policy."""
    row = policy_of(cluster)
    return Draft(cluster, _readable(row.document), row.version, {})


def draft_like(replay: Replay) -> tuple[Draft, list[Difference]]:
    """Return what a replay tried, as a change of the current policy, and what has changed since the
    replay was requested. Raises NotFound as `draft_of_now`."""
    draft = draft_of_now(replay.cluster)
    before, tried = _readable(replay.policy_before), settings_of(_readable(replay.policy))
    changes = {key: tried.get(key, 0) for key in differing(settings_of(before), tried)}
    found, _ = replace(draft, changes=changes).rebased()
    return found, policy_differences(before, draft.shown)


def sent_draft(cluster: Cluster, sent: Mapping[str, str]) -> Draft:
    """Return the draft that a page carries; without `changes` if the form itself sends them. Raises
    Damaged, and NotFound as `draft_of_now`."""
    draft_of_now(cluster)
    version = sent.get("version", "")
    shown, changes = _object(sent.get("shown", "")), _object(sent.get("changes", "{}"))
    if not (version.isascii() and version.isdigit() and len(version) < 19) or faults(shown):
        raise Damaged(DAMAGED)
    known = settings_of(effective({}))
    if not all(key in known or key.startswith("spare_nodes.") for key in changes):
        raise Damaged(DAMAGED)
    draft = Draft(cluster, effective(shown), int(version), changes)
    # When it was sent, it could be saved on the policy that it was shown with.
    if faults(draft.policy):
        raise Damaged(DAMAGED)
    return draft


def _readable(document: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return effective(document)
    except (TypeError, ValueError):
        detail = "A newer version of Kant has set this policy, and this version cannot read it."
        raise NotFound(detail) from None


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Damaged(DAMAGED)
    return found
