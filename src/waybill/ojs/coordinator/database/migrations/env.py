"""Alembic's entry point. `database.schema` passes the connection, and holds its transaction."""

from alembic import context

from waybill.ojs.coordinator.database.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=context.config.attributes["version_table"],
    transactional_ddl=True,
    on_version_apply=context.config.attributes["on_version_apply"],
)
context.run_migrations()
