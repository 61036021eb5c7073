"""OpenLineage: tells a lineage service, such as Marquez, which tables a run has made from which stream.

    OPENLINEAGE_URL=http://localhost:5000 python lineage.py

Other transports (files, Kafka) are set up as https://openlineage.io/docs/client/python says.
"""

import os
from datetime import UTC, datetime
from urllib.parse import unquote, urlsplit

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import error_message_run, output_statistics_output_dataset
from openlineage.client.uuid import generate_new_uuid
from pipeline_run import TABLES, RunFailed, update

PRODUCER = "https://waybill.example/pipeline"
STREAM = "ojs.events"


def source(uri: str) -> InputDataset:
    """The stream, named by the broker's address: never by the password."""
    parts = urlsplit(uri)
    return InputDataset(f"amqp://{parts.hostname}:{parts.port or 5672}", f"{unquote(parts.path[1:]) or '/'}/{STREAM}")


def tables(data: str, events: int) -> list[OutputDataset]:
    """The tables below `data`."""
    counted = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=events)
    return [
        OutputDataset("file", f"{data}/{name}", {"outputStatistics": counted} if name == "bronze/events" else {})
        for name in TABLES
    ]


def main() -> None:
    uri = os.environ.get("WAYBILL_URI", "amqp://guest:guest@localhost:5672/%2Fojs")
    data = os.environ.get("WAYBILL_DATA", "/srv/waybill/events")
    client, run, job = OpenLineageClient(), Run(str(generate_new_uuid())), Job("waybill", "pipeline.run")

    def tell(state: RunState, outputs: list[OutputDataset]) -> None:
        client.emit(
            RunEvent(
                eventTime=datetime.now(UTC).isoformat(),
                producer=PRODUCER,
                run=run,
                job=job,
                eventType=state,
                inputs=[source(uri)],
                outputs=outputs,
            )
        )

    tell(RunState.START, [])
    try:
        done = update(uri, data)
    except RunFailed as problem:
        run.facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(str(problem), "python")
        tell(RunState.FAIL, [])
        raise
    tell(RunState.COMPLETE, tables(data, done["events"]))
    print(f"{done['events']} events are in {len(TABLES)} tables")


if __name__ == "__main__":
    main()
