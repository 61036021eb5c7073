"""Airflow: updates the tables each five minutes, and makes the report each hour.

Put this file and pipeline_run.py into the folder of DAGs. Test it with `python airflow_dag.py`.
"""

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, BaseOperator, Context
from pipeline_run import update

URI = os.environ.get("WAYBILL_URI", "amqp://guest:guest@localhost:5672/%2Fojs")
DATA = os.environ.get("WAYBILL_DATA", "/srv/waybill/events")


class WaybillPipelineOperator(BaseOperator):
    """Updates all tables. Its result, in XCom, is what `run --once --json` prints."""

    template_fields = ("data",)

    def __init__(self, *, uri: str, data: str, **more: Any) -> None:  # noqa: ANN401 - what any operator takes
        super().__init__(**more)
        self.uri = uri
        self.data = data

    def execute(self, context: Context) -> dict[str, Any]:
        return update(self.uri, self.data)


# Two runs at once would wait for each other's lock.
with DAG(
    "waybill_tables",
    schedule="*/5 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
) as dag:
    updated = WaybillPipelineOperator(
        task_id="update", uri=URI, data=DATA, retries=3, retry_delay=timedelta(seconds=30)
    )
    updated >> BashOperator(
        task_id="report",
        bash_command="waybill pipeline report --data $DATA --html $DATA/report.html",
        env={"DATA": DATA},
        append_env=True,
    )

if __name__ == "__main__":
    dag.test()
