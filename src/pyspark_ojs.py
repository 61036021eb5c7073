"""Spark finds `format("ojs")` by this module's name. It is imported in every Spark program, so it stays light."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """The job events of a stream queue as typed columns, or dead letters; written to, each row is a job.

    `waybill.pipeline.source`, `dead_letters` and `sink` say how.
    """

    @classmethod
    def name(cls) -> str:
        return "ojs"

    def schema(self) -> StructType:
        from waybill.pipeline.schemas import DEAD_LETTER  # noqa: PLC0415
        from waybill.pipeline.source import event_schema, selects_dead_letters  # noqa: PLC0415

        return DEAD_LETTER if selects_dead_letters(self.options) else event_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from waybill.pipeline.source import event_reader, selects_dead_letters  # noqa: PLC0415

        if selects_dead_letters(self.options):
            from waybill.pipeline.dead_letters import DeadLetterReader  # noqa: PLC0415

            return DeadLetterReader(self.options)
        return event_reader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from waybill.pipeline.source import event_stream_reader  # noqa: PLC0415

        return event_stream_reader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        from waybill.pipeline.sink import JobSender, SinkWriter, check_mode  # noqa: PLC0415

        check_mode(overwrite=overwrite)
        return SinkWriter(JobSender(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 - Spark's
        from waybill.pipeline.sink import JobSender, SinkStreamWriter  # noqa: PLC0415

        return SinkStreamWriter(JobSender(self.options, schema))
