"""Dagster: the tables as assets, updated each five minutes. `dagster dev -f dagster_assets.py` shows them.

Test it with `python dagster_assets.py`.
"""

import os
from collections.abc import Iterator

import dagster as dg
from pipeline_run import TABLES, update


class WaybillPipeline(dg.ConfigurableResource):
    """Where the events come from, and where the tables are."""

    uri: str
    data: str


@dg.multi_asset(
    specs=[
        dg.AssetSpec(
            name.split("/"),
            group_name="waybill",
            automation_condition=dg.AutomationCondition.on_cron("*/5 * * * *"),
        )
        for name in TABLES
    ],
    # Two runs at once would wait for each other's lock.
    pool="waybill_tables",
    retry_policy=dg.RetryPolicy(max_retries=3, delay=30),
)
def waybill_tables(pipeline: WaybillPipeline) -> Iterator[dg.MaterializeResult]:
    """All tables of `waybill pipeline run`."""
    done = update(pipeline.uri, pipeline.data)
    for name in TABLES:
        metadata = {"seconds": done["tables"].get(name, 0.0), "path": f"{pipeline.data}/{name}"}
        if name == "bronze/events":
            metadata |= {"events": done["events"], "malformed": done["malformed"]}
        yield dg.MaterializeResult(asset_key=name.split("/"), metadata=metadata)


definitions = dg.Definitions(
    assets=[waybill_tables],
    resources={
        "pipeline": WaybillPipeline(
            uri=os.environ.get("WAYBILL_URI", "amqp://guest:guest@localhost:5672/%2Fojs"),
            data=os.environ.get("WAYBILL_DATA", "/srv/waybill/events"),
        )
    },
)

if __name__ == "__main__":
    result = dg.materialize([waybill_tables], resources=dict(definitions.resources or {}))
    for made in result.get_asset_materialization_events():
        print(made.step_materialization_data.materialization.asset_key.to_user_string())
