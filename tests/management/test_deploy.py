"""The Grafana dashboards and the alert rules of deploy/ ask for metrics that there are."""

import json
import re
from pathlib import Path

from tests.management.api import running

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
NAME = re.compile(r"\brabbitmq_[a-z_]+")


async def test_dashboards_and_alerts_ask_for_what_there_is() -> None:
    async with running() as api:
        text = (await api.ask("GET", "//metrics", login=None)).octets.decode()
    there = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    dashboard = json.loads((DEPLOY / "grafana" / "broker.json").read_text())
    asked = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    asked += (DEPLOY / "prometheus" / "alerts.yml").read_text()
    assert set(NAME.findall(asked)) <= there
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_metrics_of_jobs_and_pipeline_are_in_the_reference() -> None:
    reference = (DEPLOY.parent / "docs" / "reference" / "metrics.md").read_text()
    files = (
        DEPLOY / "grafana" / "jobs.json",
        DEPLOY / "grafana" / "pipeline.json",
        DEPLOY / "prometheus" / "alerts.yml",
    )
    asked = "".join(file.read_text() for file in files)
    names = {name.removesuffix("_bucket") for name in re.findall(r"\bojs_[a-z_]+", asked)}
    assert names
    assert {name for name in names if name not in reference} == set()
