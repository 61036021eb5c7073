"""The Django application."""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class WaybillConfig(AppConfig):
    """Imports the handlers in the module `jobs` of each installed application."""

    name = "waybill.django"
    label = "waybill"
    verbose_name = "Waybill"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import the modules, which registers their handlers."""
        autodiscover_modules("jobs")
