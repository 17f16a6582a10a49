"""A quota in one place: its fields, defaults and rules, as a row and as a document."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tenants.errors import FieldError
from tenants.models import MAX_MILLI, AuditRecord, GpuType, Quota, QuotaMode, Tenant

LIMITS = ("borrow_limit", "lend_limit")
AMOUNTS = ("guaranteed", *LIMITS)
# The fields of a quota, as people read them.
TITLES = {
    "guaranteed": "Guaranteed",
    "mode": "Mode",
    "borrow_limit": "May borrow",
    "lend_limit": "Lends",
}


@dataclass(frozen=True, slots=True)
class QuotaTerms:
    """What a tenant is guaranteed of a GPU type, and what it may borrow and lend, in milli-GPU. A
    limit of None = no limit."""

    guaranteed: int
    mode: str = QuotaMode.SHARED.value
    borrow_limit: int | None = None
    lend_limit: int | None = None

    @classmethod
    def given(cls, values: Mapping[str, Any]) -> "QuotaTerms":
        """Take the terms among these values; others have their defaults."""
        return cls(**{name: values[name] for name in NAMES if name in values})

    @classmethod
    def of(cls, row: Quota) -> "QuotaTerms":
        return cls(**{name: getattr(row, column) for name, column in COLUMNS.items()})

    @classmethod
    def in_gpus(cls, document: Mapping[str, Any]) -> "QuotaTerms":
        """Read a document in GPUs, as `as_document` writes it."""
        milli = {n: None if document[n] is None else round(1000 * document[n]) for n in AMOUNTS}
        return cls.given({**document, **milli})

    def columns(self) -> dict[str, Any]:
        return {COLUMNS[name]: value for name, value in asdict(self).items()}

    def faults(self) -> list[FieldError]:
        """Return what is wrong with them by themselves."""
        faults: list[FieldError] = []
        amounts = {name: getattr(self, name) for name in AMOUNTS}
        for name, milli in amounts.items():
            if milli is not None and not 0 <= milli <= MAX_MILLI:
                detail = f"Must be from 0 to {MAX_MILLI // 1000} GPUs."
                faults.append(FieldError((name,), detail))
        if self.mode not in QuotaMode.values:
            faults.append(FieldError(("mode",), f"Choose {' or '.join(QuotaMode.values)}."))
        if self.mode == QuotaMode.ISOLATED:
            text = (
                "An isolated quota neither borrows nor lends. Leave this out, or set the mode to "
                "shared."
            )
            faults += [FieldError((name,), text) for name in LIMITS if amounts[name] is not None]
        elif self.lend_limit is not None and self.lend_limit > self.guaranteed:
            detail = f"{in_words(self.lend_limit)} is more than the guaranteed "
            detail += f"{in_words(self.guaranteed)}. Lend at most what is guaranteed."
            faults.append(FieldError(("lend_limit",), detail))
        return faults


NAMES = tuple(field.name for field in fields(QuotaTerms))
COLUMNS = {name: f"{name}_milli" if name in AMOUNTS else name for name in NAMES}


def with_fields(quota: Quota | None, fields: Mapping[str, Any]) -> QuotaTerms:
    """Return a quota's terms with these fields set; a quota that becomes isolated loses its
    limits."""
    if fields.get("mode") == QuotaMode.ISOLATED:
        fields = {**dict.fromkeys(LIMITS), **fields}
    return replace(QuotaTerms.of(quota or Quota()), **fields)


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """Which quota changes, and what is recorded about the reason.

    `expected_version`: of the quota as it was read; 0 = there was none. `reverts`: the change that
    this one reverts.
    """

    tenant: Tenant
    gpu_type: GpuType
    expected_version: int
    reason: str
    source: str
    reverts: AuditRecord | None = None

    @property
    def subject(self) -> str:
        return f"{self.tenant.name} / {self.gpu_type.name}"

    @property
    def key(self) -> tuple[str, str]:
        return self.tenant.name, self.gpu_type.name


def as_document(quota: Quota | None) -> dict[str, Any] | None:
    """Return a quota as a document of the audit trail: in GPUs, not milli-GPU; null limits are
    unlimited."""
    if quota is None:
        return None
    terms = asdict(QuotaTerms.of(quota))
    amounts = {n: None if terms[n] is None else terms[n] / 1000 for n in AMOUNTS}
    return {**terms, **amounts, "mode": str(quota.mode), "version": quota.version}


def in_gpus(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert fields of terms to GPUs, as documents have them."""
    return {
        name: gpus(value) if name in AMOUNTS and value is not None else value
        for name, value in fields.items()
    }


def gpus(milli: int) -> int | float:
    """Return milli-GPU as a JSON number of GPUs; whole numbers stay integers."""
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


def in_words(milli: int) -> str:
    return f"{milli / 1000:,.10g} GPU{'s' if milli > 1000 or not milli else ''}"
