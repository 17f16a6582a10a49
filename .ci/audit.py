"""Check whether a package that is installed here has a known vulnerability.

pip-audit reads advisories from the package index. If the index has none or cannot be reached, the
output says so. The list ADVISORIES is checked in any case. Exits with 1 for a finding that is not
in REASONED.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import date
from importlib.metadata import distributions
from typing import Any

from packaging.version import Version

# When the list was last reviewed. Without the index: it holds public advisories up to the end of
# 2025 only.
LOOKED_THROUGH = date(2026, 11, 25)
OLD_AFTER_DAYS = 180
# Package: (first fixed version, advisory).
ADVISORIES: dict[str, tuple[tuple[str, str], ...]] = {
    "aiohttp": (("3.12.14", "CVE-2025-53643"), ("3.10.11", "CVE-2024-52304")),
    "authlib": (("1.6.5", "CVE-2025-61920"), ("1.6.4", "CVE-2025-59420")),
    "celery": (("5.2.2", "CVE-2021-23727"),),
    "certifi": (("2024.7.4", "CVE-2024-39689"),),
    "cryptography": (("44.0.1", "CVE-2024-12797"),),
    "django": (("5.2.8", "CVE-2025-64459"), ("5.2.7", "CVE-2025-59681")),
    "djangorestframework": (("3.15.2", "CVE-2024-21520"),),
    "h11": (("0.16.0", "CVE-2025-43859"),),
    "idna": (("3.7", "CVE-2024-3651"),),
    "jinja2": (("3.1.6", "CVE-2025-27516"),),
    "pyyaml": (("5.4", "CVE-2020-14343"),),
    "requests": (("2.32.4", "CVE-2024-47081"), ("2.32.0", "CVE-2024-35195")),
    "tqdm": (("4.66.3", "CVE-2024-34062"),),
    "urllib3": (("2.5.0", "CVE-2025-50181"), ("2.2.2", "CVE-2024-37891")),
    "uvicorn": (("0.11.7", "CVE-2020-7694"),),
    "werkzeug": (("3.0.6", "CVE-2024-49767"),),
}
# Advisory: why it does not concern Kant.
REASONED: dict[str, str] = {}


def installed() -> dict[str, str]:
    """Return {package name in lower case: version}."""
    return {each.metadata["Name"].lower(): each.version for each in distributions()}


def known(versions: Mapping[str, str]) -> list[str]:
    """Return what ADVISORIES say about these versions."""
    return [
        f"{name} {version}: {advisory}, mended in {mended}"
        for name, version in sorted(versions.items())
        for mended, advisory in ADVISORIES.get(name, ())
        if Version(version) < Version(mended) and advisory not in REASONED
    ]


def reported(document: Mapping[str, Any]) -> tuple[list[str], int]:
    """Return (findings, number of packages checked) from the JSON output of pip-audit."""
    looked = [each for each in document["dependencies"] if "vulns" in each]
    found = [
        f"{each['name']} {each['version']}: {one['id']}, mended in "
        f"{', '.join(one['fix_versions']) or 'no version yet'}"
        for each in looked
        for one in each["vulns"]
        if REASONED.keys().isdisjoint({one["id"], *one.get("aliases", ())})
    ]
    return found, len(looked)


def asked() -> list[str]:
    """Ask the package index; return nothing if it cannot be reached or has no advisories."""
    command = [sys.executable, "-m", "pip_audit", "--local", "--format", "json"]
    command += ["--progress-spinner", "off", "--timeout", "10"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        found, looked = reported(json.loads(ran.stdout))
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        print(f"audit: the index gives no advisories ({type(error).__name__}).")
        return []
    print(f"audit: the index knows {looked} of the packages.")
    return found


def main() -> int:
    age = (date.today() - LOOKED_THROUGH).days
    if age > OLD_AFTER_DAYS:
        print(f"audit: the list is {age} days old; look through it again.")
    found = [*known(installed()), *asked()]
    for each in found:
        print(f"audit: {each}")
    if not found:
        print(f"audit: nothing is known against what is installed (list of {LOOKED_THROUGH}).")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
