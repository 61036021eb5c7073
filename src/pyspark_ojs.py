"""Spark finds `format("ojs")` by this module's name. It is imported in every Spark program, so it stays light."""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """The job events of a stream queue, as typed columns: `waybill.pipeline.source` says how."""

    @classmethod
    def name(cls) -> str:
        return "ojs"

    def schema(self) -> StructType:
        from waybill.pipeline.schemas import EVENT  # noqa: PLC0415

        return EVENT

    def reader(self, schema: StructType) -> DataSourceReader:
        from waybill.pipeline.source import event_reader  # noqa: PLC0415

        return event_reader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from waybill.pipeline.source import event_stream_reader  # noqa: PLC0415

        return event_stream_reader(self.options)
