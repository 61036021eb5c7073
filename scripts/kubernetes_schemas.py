"""Write the schemas of Kubernetes as kubeconform takes them, from those that the package kubernetes-validate brings.

python -m scripts.kubernetes_schemas PACKAGE DIRECTORY

kubeconform's own place for them is on GitHub. Here each kind of resource gets the definitions that it refers to.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

KINDS: Final = ("configmap-v1", "deployment-apps-v1", "secret-v1", "service-v1", "statefulset-apps-v1")
SHARED: Final = "_definitions.json"


def newest(package: Path) -> Path:
    """Return the strict schemas of the newest version."""
    found = (package / "kubernetes-json-schema").glob("v*-local-strict")
    return max(found, key=lambda path: [int(part) for part in path.name.split("-")[0][1:].split(".")])


def main(package: str, directory: str) -> None:
    """Write a file for each kind."""
    source, target = newest(Path(package)), Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    definitions = (source / SHARED).read_text(encoding="utf-8").replace(f'"{SHARED}#', '"#')
    for kind in KINDS:
        text = (source / f"{kind}.json").read_text(encoding="utf-8").replace(f'"{SHARED}#', '"#')
        schema = {**json.loads(text), **json.loads(definitions)}
        (target / f"{kind}.json").write_text(json.dumps(schema), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
