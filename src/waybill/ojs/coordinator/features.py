"""Features of a coordinator beyond single jobs, and what they share.

A feature adds its fold here, before that of the claims; the handlers of its requests; and its loop, which acts if this
coordinator leads. It stores its state in rows (`feature_fold`), `leader` decides who acts, and its jobs are claimed
(`claims`).
"""

from __future__ import annotations

from collections.abc import Callable

from waybill.ojs.client import Jobs
from waybill.ojs.coordinator.admission import Admissions
from waybill.ojs.coordinator.claim_pusher import ClaimPusher
from waybill.ojs.coordinator.claims import ClaimFold
from waybill.ojs.coordinator.feature_fold import FeatureFolds
from waybill.ojs.coordinator.leader import Leader
from waybill.ojs.coordinator.markers import MarkerFold
from waybill.ojs.coordinator.records import RecordFold
from waybill.ojs.coordinator.responder import Answer, Responder
from waybill.ojs.coordinator.staged import StagedFold
from waybill.ojs.cron.cron_fold import CronFold
from waybill.ojs.cron.cron_requests import CronRequests
from waybill.ojs.cron.scheduler import CronScheduler
from waybill.ojs.workflow.actor import WorkflowActor
from waybill.ojs.workflow.answers import WorkflowAnswers
from waybill.ojs.workflow.fold import WorkflowFold
from waybill.ojs.workflow.rows import WORKFLOW
from waybill.ojs.workflow.values import Plans


class Features:
    """The features of one coordinator."""

    def __init__(self, is_trusted: Callable[[str | None], bool]) -> None:
        """`is_trusted` returns whether a user, verified by the broker, may be a coordinator's."""
        self.plans = Plans()
        self._workflows = WorkflowFold(self.plans, is_trusted)
        self.records = RecordFold(is_trusted)
        self.folds = FeatureFolds(
            [CronFold(is_trusted), self._workflows, StagedFold(), ClaimFold(is_trusted), self.records, MarkerFold()]
        )
        self._is_trusted = is_trusted
        self._leader: Leader | None = None

    async def start(self, responder: Responder, coordinator: str, jobs: Jobs) -> dict[str, Answer]:
        """Start; returns the handlers by kind of request. `coordinator` is the id of this one."""
        self._leader = leader = Leader(responder.broker, coordinator, self._is_trusted)
        pusher = ClaimPusher(responder.broker, responder.view, leader, coordinator, describes=jobs.describes_jobs)
        workflows = WorkflowActor(responder, leader, jobs, self.plans)
        pusher.makers[WORKFLOW] = workflows.make_job
        keeper = CronScheduler(responder.broker, responder.view, leader, coordinator)
        pusher.before_push["cron"] = keeper.before_push
        pusher.on_pushed["cron"] = keeper.on_pushed
        pusher.definers |= {"cron": keeper.definer_of, WORKFLOW: workflows.definer_of}
        responder.spawn(pusher.run())
        responder.spawn(keeper.run())
        responder.spawn(workflows.run())
        responder.view.leads = lambda: leader.leads
        leader.on_change.append(responder.view.share_anew)
        await leader.start()
        cron = CronRequests(responder, leader, coordinator)
        answers = WorkflowAnswers(responder, self._workflows, self.plans).answers()
        return Admissions(responder).answers() | cron.answers() | answers

    async def close(self) -> None:
        """Stop leading."""
        if self._leader is not None:
            await self._leader.close()
