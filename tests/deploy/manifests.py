"""Read what `kubectl apply --kustomize deploy/` applies, without kustomize. All but the
namespace is made from the chart (tests/deploy/chart.py)."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
FILE = "kustomization.yaml"
Document = dict[str, Any]


def documents(folder: Path = DEPLOY) -> list[Document]:
    """Return all objects of a kustomization, in its order and with the images that it names."""
    kustomization = yaml.safe_load((folder / FILE).read_text())
    # Kustomize knows more fields; any field in use must be handled here.
    assert kustomization.keys() <= {"apiVersion", "kind", "resources", "images"}
    found: list[Document] = []
    for name in kustomization["resources"]:
        path = (folder / name).resolve()
        if path.is_dir():
            found += documents(path)
        else:
            assert path.parent == folder, f"kustomize takes no file from outside: {name}"
            found += yaml.load_all(path.read_text(), yaml.CSafeLoader)
    for image in kustomization.get("images", ()):
        for container in (each for document in found for each in containers(document)):
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    return found


def containers(document: Document) -> list[Document]:
    """Return all containers of a Deployment, including init containers; none for another object."""
    if document["kind"] != "Deployment":
        return []
    pod = document["spec"]["template"]["spec"]
    return [*pod["initContainers"], *pod["containers"]]


def deployments() -> dict[str, Document]:
    """Return {name: Deployment}."""
    return {d["metadata"]["name"]: d for d in documents() if d["kind"] == "Deployment"}


def config() -> dict[str, str]:
    """Return the settings in the ConfigMap."""
    [found] = [document for document in documents() if document["kind"] == "ConfigMap"]
    return found["data"]


def command(container: Document) -> list[str]:
    return [*container["command"], *container.get("args", ())]
