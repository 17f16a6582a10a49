"""Render deploy/chart with Helm's own engine.

`python -m tests.deploy.chart` writes the chart's copies of Kant's definitions, alerts and
dashboards, and the files made from the chart: the manifests of deploy/ for kustomize, and Kant's
rights on a further cluster.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from metrics.benches.apiserver import ServerUnavailable, helm
from metrics.prometheus.alerts import prometheus_rules
from metrics.prometheus.dashboards import BOARDS, text_of
from tests.deploy.manifests import DEPLOY, ROOT
from tests.requirements import missing

CHART = DEPLOY / "chart"
RIGHTS = ROOT / "scheduling" / "kube" / "rbac.yaml"
# Kustomize sets the name and tag of the image (`images` in kustomization.yaml).
FOR_KUSTOMIZE = {"image": "kant", "monitoring": {"enabled": True}}
HEADER = "# Made of deploy/chart by `make manifests`; change it there.\n"
MADE_OF_CHART = f"""{HEADER}# Apply it to another cluster with
#   kubectl create namespace kant && kubectl --namespace kant create serviceaccount kant
#   kubectl apply --filename scheduling/kube/rbac.yaml --filename deploy/admission.yaml
"""


class Refused(ValueError):
    """Helm rejects a chart or its values; the message is Helm's."""


def rendered(values: Mapping[str, Any]) -> dict[str, str]:
    """Return {template name: rendered text} of all templates that render to something."""
    ran = subprocess.run(
        [str(helm(build=False)), str(CHART)],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise Refused(ran.stderr)
    texts = json.loads(ran.stdout)
    return {Path(path).name: text.lstrip("\n") for path, text in texts.items() if text.strip()}


def needs_helm() -> None:
    """Skip a test, or fail it in CI, if Helm's engine was not built."""
    try:
        helm(build=False)
    except ServerUnavailable as error:
        missing("Helm's engine", str(error))


def chart_documents(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all objects that the chart renders with these values, for a test."""
    needs_helm()
    texts = [text for name, text in rendered(values).items() if name.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def made() -> dict[Path, str]:
    """Return {file of the checkout: text} of all files made from the chart."""
    own = rendered(FOR_KUSTOMIZE)
    files = {
        DEPLOY / ("monitoring" if name == "monitoring.yaml" else ".") / name: HEADER + text
        for name, text in own.items()
        if name != "NOTES.txt"
    }
    return files | {RIGHTS: MADE_OF_CHART + rendered({"otherCluster": True})["rights.yaml"]}


def watched() -> dict[Path, str]:
    """Return {file of the chart: text}: the alerts, and the dashboards as JSON."""
    rules = yaml.safe_dump(prometheus_rules(), sort_keys=False, allow_unicode=True, width=100)
    boards = {CHART / "monitoring" / f"{board.uid}.json": text_of(board) for board in BOARDS}
    return {CHART / "monitoring" / "alerts.yaml": rules} | boards


def main() -> None:
    for files in (watched, made):
        for path, text in files().items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.rstrip("\n") + "\n")


if __name__ == "__main__":
    main()
