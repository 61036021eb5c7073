"""The tables of the outbox."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Creates the tables of the outbox."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar = [
        migrations.CreateModel(
            name="OutboxJob",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("job_id", models.CharField(max_length=36)),
                ("envelope", models.TextField()),
                ("options", models.TextField()),
                ("error", models.TextField(blank=True, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "verbose_name": "job in the outbox",
                "verbose_name_plural": "jobs in the outbox",
                "ordering": ["id"],
            },
        ),
        migrations.CreateModel(
            name="OutboxTurn",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("owner", models.CharField(default="", max_length=36)),
                ("until", models.FloatField(default=0.0)),
            ],
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
            ],
            options={"managed": False, "default_permissions": ("view", "change")},
        ),
    ]
