"""Makes valid jobs from callers' arguments, with options that are not part of their envelopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

import msgspec

from waybill.ojs.handler import AnyHandler, MadeJob, NewJob, Options
from waybill.ojs.push.new_envelope import envelope_of, stamp
from waybill.ojs.push.option_types import check_property
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.push.template import PushTemplates
from waybill.ojs.spec.envelope import Envelope, parse_envelope, validate
from waybill.ojs.spec.unique import read_unique, unique_key


class JobMaker:
    """Makes jobs, with templates for the jobs of each handler. For use in one thread."""

    def __init__(self, handlers: Mapping[str, AnyHandler]) -> None:
        """`handlers` may grow; arguments are checked against their annotations."""
        self.templates = PushTemplates()
        self._handlers = handlers

    def make(self, job: NewJob | MadeJob | Envelope | dict[str, object], now: datetime, time: str) -> Outgoing:
        """Make a valid envelope with the system-managed fields; `time` is `now` as text."""
        options: Options = {}
        if isinstance(job, NewJob):
            options = job.options
            if job.unique_key is not None:
                check_property("unique_key", job.unique_key)
            template = self.templates.find(job)
            if template is not None:
                made = Outgoing(template.envelope(job.args, time, job.id), options, template, job.unique_key)
                made.has_new_id = job.id is None
                return made
            envelope = envelope_of(job, now)
            validate(envelope, now)
        elif isinstance(job, dict):
            envelope = parse_envelope(job, now)
            self._check_args(envelope)
        elif isinstance(job, MadeJob):
            envelope, options = job
            validate(envelope, now)
        else:
            envelope = job
            validate(envelope, now)
            self._check_args(envelope)
        stamp(envelope, now)
        if isinstance(job, NewJob):
            self.templates.learn(job, envelope, now)
        own_key = job.unique_key if isinstance(job, NewJob) else None
        made = Outgoing(envelope, options, None, options.get("unique_key") if own_key is None else own_key)
        made.has_new_id = isinstance(job, NewJob) and job.id is None and "id" not in options
        if envelope.unique is not None:
            # The caller's arguments, before a middleware encrypts them (ojs-encryption section 15.3).
            made.unique_key = unique_key(envelope, read_unique(envelope.unique))
        return made

    def decoder_of(self, job_type: str) -> Callable[[bytes], object]:
        """Return the decoder of a job's result; without a handler here, it decodes plain JSON."""
        handler = self._handlers.get(job_type)
        return msgspec.json.decode if handler is None else handler.result.decode

    def _check_args(self, envelope: Envelope) -> None:
        handler = self._handlers.get(envelope.type)
        if handler is not None:
            handler.arguments.check(envelope.args)
