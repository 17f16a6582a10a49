"""The quota that a row of a body names."""

from collections.abc import Mapping
from typing import Any

from tenants import selectors
from tenants.errors import FieldError, Invalid, NotFound, Path
from tenants.models import GpuType, Tenant
from tenants.permissions import Access


def cell_named(access: Access, row: Mapping[str, Any], at: Path) -> tuple[Tenant, GpuType]:
    """Return the tenant and the GPU type of a row at path `at`. Raises Invalid, naming the field,
    when one of them does not exist or is not visible."""
    field = "tenant"
    try:
        tenant = selectors.tenant_by_name(access, row["tenant"])
        field = "gpu_type"
        return tenant, selectors.gpu_type_by_name(row["gpu_type"])
    except NotFound as error:
        raise Invalid.fields([FieldError((*at, field), error.detail)]) from None
