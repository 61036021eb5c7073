"""The routes of the binding, one file for each kind of resource."""

from __future__ import annotations

from waybill.backend.backend import Backend
from waybill.backend.router import Route
from waybill.backend.routes.admin import AdminRoutes
from waybill.backend.routes.admin_jobs import AdminJobRoutes
from waybill.backend.routes.admin_workers import AdminWorkerRoutes
from waybill.backend.routes.bulk import BulkRoutes
from waybill.backend.routes.changes import ChangeRoutes
from waybill.backend.routes.codec import CodecRoutes
from waybill.backend.routes.cron import CronRoutes
from waybill.backend.routes.dashboard import DashboardRoutes
from waybill.backend.routes.dead_letters import DeadLetterRoutes
from waybill.backend.routes.debug import DebugRoutes
from waybill.backend.routes.job_history import JobHistoryRoutes
from waybill.backend.routes.job_logs import JobLogRoutes
from waybill.backend.routes.jobs import JobRoutes
from waybill.backend.routes.maintenance import MaintenanceRoutes
from waybill.backend.routes.metrics import MetricsRoutes
from waybill.backend.routes.openapi import OpenApiRoutes
from waybill.backend.routes.operations import OperationRoutes
from waybill.backend.routes.overview import OverviewRoutes
from waybill.backend.routes.pipeline import PipelineRoutes
from waybill.backend.routes.pools import PoolRoutes
from waybill.backend.routes.priorities import PriorityRoutes
from waybill.backend.routes.progress import ProgressRoutes
from waybill.backend.routes.queue_configs import QueueConfigRoutes
from waybill.backend.routes.queues import QueueRoutes
from waybill.backend.routes.rate_limits import RateLimitRoutes
from waybill.backend.routes.route_wrappers import wrapped
from waybill.backend.routes.schemas import SchemaRoutes
from waybill.backend.routes.search import SearchRoutes
from waybill.backend.routes.sockets import SocketRoutes
from waybill.backend.routes.system import SystemRoutes
from waybill.backend.routes.tenants import TenantRoutes
from waybill.backend.routes.unique_jobs import UniqueJobRoutes
from waybill.backend.routes.version_routes import VersionRouteRoutes
from waybill.backend.routes.webhooks import WebhookRoutes
from waybill.backend.routes.workers import WorkerRoutes
from waybill.backend.routes.workflows import WorkflowRoutes
from waybill.backend.tenancy import Tenancy


def routes_of(backend: Backend) -> list[Route]:
    """Return all routes."""
    kinds = (
        SystemRoutes,
        JobRoutes,
        WorkerRoutes,
        QueueRoutes,
        QueueConfigRoutes,
        DeadLetterRoutes,
        CronRoutes,
        WorkflowRoutes,
        RateLimitRoutes,
        BulkRoutes,
        AdminRoutes,
        AdminJobRoutes,
        AdminWorkerRoutes,
        OverviewRoutes,
        SearchRoutes,
        OperationRoutes,
        PipelineRoutes,
        ChangeRoutes,
        ProgressRoutes,
        SchemaRoutes,
        WebhookRoutes,
        TenantRoutes,
        PoolRoutes,
        MaintenanceRoutes,
        MetricsRoutes,
        JobLogRoutes,
        JobHistoryRoutes,
        PriorityRoutes,
        DebugRoutes,
        CodecRoutes,
        UniqueJobRoutes,
        VersionRouteRoutes,
        SocketRoutes,
    )
    routes = [route for kind in kinds for route in kind(backend).routes()]
    routes += OpenApiRoutes(routes).routes()
    tenancy = Tenancy(backend)
    pages = DashboardRoutes().routes()
    return [wrapped(route, backend, tenancy) for route in (*routes, *pages)]
