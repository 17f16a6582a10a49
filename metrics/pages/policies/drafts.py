"""A change of a policy on its way from the form to the save: what was shown, and what is to differ.

Between the pages it travels in hidden fields, so that nothing of what was typed is lost, whatever
somebody else saves meanwhile.
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

RECORDS = 50  # newest ones, in which is looked for who has changed something meanwhile


class Damaged(Invalid):
    """What a page sent is not what such a page sends."""


@dataclass(frozen=True, slots=True)
class Draft:
    """`shown`: the whole policy that the form was shown with, of `version`. `changes`: settings
    that are to be others than there."""

    cluster: Cluster
    shown: Mapping[str, Any]
    version: int
    changes: Settings

    @property
    def policy(self) -> dict[str, Any]:
        """The whole policy as it would be. Its values may be wrong."""
        return policy_from({**settings_of(self.shown), **self.changes})

    def hidden(self) -> dict[str, str]:
        """What carries it to the next page, by names of fields."""
        return {
            "shown": json.dumps(self.shown),
            "version": str(self.version),
            "changes": json.dumps(self.changes),
        }

    def save(self, actor: User, *, reason: str = "", dry_run: bool = False) -> ClusterPolicy:
        """Make the change; raises as `change_policy`."""
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
        """The same change of the policy as it is now, and what others have changed meanwhile."""
        row = policy_of(self.cluster)
        now = effective(row.document)
        settings = settings_of(now)
        left = {k: v for k, v in self.changes.items() if not is_same(k, v, settings.get(k))}
        draft = replace(self, shown=now, version=row.version, changes=left)
        return draft, policy_differences(self.shown, now)


@dataclass(frozen=True, slots=True)
class Foreign:
    """What somebody else has set since the draft was begun; `record` is None where it is too many
    changes ago."""

    difference: Difference
    record: AuditRecord | None


def foreign(cluster: Cluster, differences: Sequence[Difference]) -> list[Foreign]:
    """These differences with the records of the changes that made them."""
    made: dict[str, AuditRecord] = {}
    for record in changes_of(cluster)[:RECORDS] if differences else ():
        before, after = settings_of(record.before or {}), settings_of(record.after or {})
        for key in differing(before, after):
            made.setdefault(key, record)
    return [Foreign(one, made.get(one.key)) for one in differences]


def draft_of_now(cluster: Cluster) -> Draft:
    """No change yet. Raises NotFound where a newer version of Kant has set the policy."""
    row = policy_of(cluster)
    return Draft(cluster, _readable(row.document), row.version, {})


def draft_like(replay: Replay) -> tuple[Draft, list[Difference]]:
    """What a replay tried, as a change of the policy as it is now, and what was changed since the
    replay was asked for. Raises NotFound as `draft_of_now`."""
    draft = draft_of_now(replay.cluster)
    before, tried = _readable(replay.policy_before), settings_of(_readable(replay.policy))
    changes = {key: tried.get(key, 0) for key in differing(settings_of(before), tried)}
    found, _ = replace(draft, changes=changes).rebased()
    return found, policy_differences(before, draft.shown)


def sent_draft(cluster: Cluster, sent: Mapping[str, str]) -> Draft:
    """The draft that a page carries, its `changes` left out where it is the form that sends them.
    Raises Damaged, NotFound as `draft_of_now`."""
    draft_of_now(cluster)
    version = sent.get("version", "")
    shown, changes = _object(sent.get("shown", "")), _object(sent.get("changes", "{}"))
    if not (version.isascii() and version.isdigit() and len(version) < 19) or faults(shown):
        raise Damaged(DAMAGED)
    known = settings_of(effective({}))
    if not all(key in known or key.startswith("spare_nodes.") for key in changes):
        raise Damaged(DAMAGED)
    draft = Draft(cluster, effective(shown), int(version), changes)
    # It could be saved when it was sent, on the policy that it was shown with.
    if faults(draft.policy):
        raise Damaged(DAMAGED)
    return draft


def _readable(document: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return effective(document)
    except (TypeError, ValueError):
        detail = "A newer version of Kant has set this policy, and this one cannot read it."
        raise NotFound(detail) from None


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Damaged(DAMAGED)
    return found
