"""Spark finds `format("amqp")` by this module's name. It is imported in every Spark program, so it stays light."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """The messages of a stream queue of an AMQP broker, by offset: `waybill.pipeline.source` says how."""

    @classmethod
    def name(cls) -> str:
        return "amqp"

    def schema(self) -> StructType:
        from waybill.pipeline.source import message_schema  # noqa: PLC0415

        return message_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from waybill.pipeline.source import message_reader  # noqa: PLC0415

        return message_reader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from waybill.pipeline.source import message_stream_reader  # noqa: PLC0415

        return message_stream_reader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        from waybill.pipeline.sink import MessageSender, SinkWriter, check_mode  # noqa: PLC0415

        check_mode(overwrite=overwrite)
        return SinkWriter(MessageSender(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 - Spark's
        from waybill.pipeline.sink import MessageSender, SinkStreamWriter  # noqa: PLC0415

        return SinkStreamWriter(MessageSender(self.options, schema))
