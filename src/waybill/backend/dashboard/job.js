import { get, may, send, session } from "./api.js";
import { h } from "./dom.js";
import { between, duration, exact, now, precise } from "./format.js";
import { attempt, attempts, badge, button, card, codeBlock, confirmed, dialog, facts, header, link, time, toast, traceBlock, tree } from "./parts.js";

const ENDED = new Set(["completed", "discarded", "cancelled"]);

export function open(at) {
  let job, why, dead, events = [], logs = [];
  const path = `jobs/${encodeURIComponent(at.id)}`;
  const self = {
    title: "Job",
    async load() {
      const found = await get(`admin/${path}`);
      job = found.job || found;
      // The server may not know the arguments of a job that was pushed over AMQP. Those of a dead letter can be read
      // from the broker, which is done once.
      if (job.args_known === false && job.state === "discarded") {
        dead ??= (await get(`dead-letter/${encodeURIComponent(at.id)}`).catch(() => null)) || {};
        if (dead.args) job = { ...job, args: dead.args, args_known: true, args_redacted: dead.args_redacted };
      }
      const [reasons, listed, logged] = await Promise.all([ENDED.has(job.state) ? null : get(`admin/${path}/why`), get("events", { subject: at.id, limit: 100 }), get(`${path}/logs`, { limit: 200 })]);
      [why, events, logs] = [reasons, listed.events || [], logged.entries];
    },
    draw() {
      const errors = (job.errors || (job.error ? [job.error] : [])).slice().reverse();
      return [
        h("p.crumbs", link("jobs", "Jobs"), " / ", h("span.mono", job.id)),
        header(h("span", job.type, " ", badge(job.state)), ...actions()),
        job.state === "active" && progress(),
        why?.reasons.length && job.state !== "active" ? h("div.note.why", h("b", "Why it is not running"), h("ul", why.reasons.map(one => h("li", one.text, one.until ? [" Due ", time(one.until), "."] : null)))) : null,
        h("div.columns.job",
          h("div", card("Timeline", null, timeline()), errors.length ? card(errors.length > 1 ? `Errors (${errors.length})` : "Error", null, errors.map(failure)) : null,
            job.result !== undefined ? card("Result", null, h("div.tree", tree(job.result))) : null,
            logs.length ? card("Logs", null, codeBlock(logs.map(one => `${one.timestamp} ${one.severity} ${one.message}`).join("\n"))) : null,
            card("Arguments", null, job.args_known === false ? unknown() : h("div.tree", tree(job.args)))),
          h("div", card("Details", null, details()), job.meta && Object.keys(job.meta).length ? card("Metadata", null, h("div.tree", tree(job.meta))) : null)),
      ];
    },
  };
  return self;

  function actions() {
    if (!may("operate")) return [];
    const again = done => attempt(done, "Done").then(() => self.load()).then(() => self.redraw());
    return [
      job.args_known !== false && !job.args_redacted && button(job.state === "discarded" ? "Edit and retry" : "Push a copy", edit),
      job.state === "discarded" && button("Retry", () => again(() => send("POST", `admin/${path}/retry`)), "primary"),
      job.state === "pending" && button("Activate", () => again(() => send("POST", `${path}/activate`)), "primary"),
      !ENDED.has(job.state) && button("Cancel", () => confirmed("Cancel this job", job.state === "active" ? "Its worker is notified. A handler that ignores cancellation keeps running." : "It will not run.", "Cancel the job", "danger", () => again(() => send("POST", `admin/${path}/cancel`))), "danger"),
    ];
  }

  function edit() {
    const area = h("textarea", { rows: "10", spellcheck: "false", "aria-label": "Arguments as JSON", class: "mono" });
    area.value = JSON.stringify(job.args, null, 2);
    const isDead = job.state === "discarded";
    dialog(isDead ? "Edit and retry" : "Push a copy", h("div", h("p.hint", isDead ? "The job runs again with these arguments." : "A new job with these arguments."), area),
      close => button(isDead ? "Retry" : "Push", async () => {
        let args;
        try {
          args = JSON.parse(area.value);
        } catch (error) {
          return toast(`Not JSON: ${error.message}`, "bad");
        }
        const done = await attempt(() => isDead ? send("POST", `dead-letter/${encodeURIComponent(job.id)}/retry`, { override: { args } }) : send("POST", "jobs", { type: job.type, args, options: { queue: job.queue, priority: job.priority, tags: job.tags } }), "Pushed");
        if (!done) return;
        close();
        if (!isDead) location.hash = `#/job/${done.job?.id || done.id}`;
        else (await self.load(), self.redraw());
      }, "primary"));
  }

  function progress() {
    const value = job.progress;
    return h("div.progress-line", value !== undefined && [h("progress", { "aria-label": "Progress", max: "1", value: String(value) }), h("span.n", `${Math.round(value * 100)} %`)],
      h("span.quiet", job.progress_message || `Running for ${duration(between(job.started_at, new Date(now()).toISOString()))} on ${job.worker_id || "a worker"}`));
  }

  // The phases of the job, from the events that the server still has: queue waits, attempts, retry waits.
  function steps() {
    const known = events.slice().reverse(), found = [];
    let since = job.enqueued_at, attemptNumber = 0, wait = "queue wait";
    const due = job.scheduled_at && job.scheduled_at > since ? job.scheduled_at : null;
    if (due) (found.push({ kind: "later", name: "scheduled", from: since, to: due }), since = due);
    for (const one of known) {
      if (one.type === "job.started") {
        if (since) found.push({ kind: wait === "queue wait" ? "wait" : "later", name: wait, from: since, to: one.time });
        (since = one.time), attemptNumber = one.data.attempt || attemptNumber + 1;
      } else if (/^job\.(completed|discarded|cancelled|failed|retrying)$/.test(one.type) && since && one.type !== "job.failed") {
        const last = found.at(-1);
        if (last?.open !== false && attemptNumber) found.push({ kind: one.type === "job.completed" ? "good" : one.type === "job.cancelled" ? "wait" : "bad", name: `attempt ${attemptNumber}`, from: since, to: one.time });
        since = one.type === "job.retrying" ? one.time : null;
        wait = "retry wait";
      }
    }
    if (!known.some(one => one.type === "job.started")) return stored(found.slice(0, due ? 1 : 0));
    if (since && !ENDED.has(job.state)) found.push(job.state === "active" ? { kind: "run", name: `attempt ${attemptNumber}`, from: since, to: null } : { kind: "later", name: wait, from: since, to: null });
    return found;
  }

  // The same from the job itself, which has the times at which earlier attempts failed, but not when they started.
  function stored(found) {
    let since = found[0]?.to || job.enqueued_at, wait = "queue wait";
    const failed = (job.errors || (job.error ? [job.error] : [])).filter(one => one.occurred_at);
    for (const one of failed.filter(one => one.attempt < job.attempt)) {
      found.push({ kind: "bad", name: `until attempt ${one.attempt} failed`, from: since, to: one.occurred_at });
      since = one.occurred_at;
      wait = "retry wait";
    }
    const end = job.completed_at || job.discarded_at || job.cancelled_at || (job.state === "active" ? null : failed.find(one => one.attempt === job.attempt)?.occurred_at);
    if (job.started_at) {
      found.push({ kind: wait === "queue wait" ? "wait" : "later", name: wait, from: since, to: job.started_at });
      found.push({ kind: job.state === "completed" ? "good" : job.state === "active" ? "run" : job.state === "cancelled" ? "wait" : "bad", name: `attempt ${job.attempt || 1}`, from: job.started_at, to: end || null });
      if (job.state !== "active" && !ENDED.has(job.state) && end) found.push({ kind: "later", name: "retry wait", from: end, to: null });
    } else if (!end) found.push({ kind: "wait", name: wait, from: since, to: null });
    return found;
  }

  function timeline() {
    const found = steps(), present = new Date(now()).toISOString();
    const lengths = found.map(one => between(one.from, one.to || present) || 0);
    const widths = lengths.map(one => Math.sqrt(one) + 0.02 * Math.sqrt(Math.max(...lengths, 1)));
    const sum = widths.reduce((all, one) => all + one, 0) || 1;
    return h("div", h("div.bar", { "aria-hidden": "true" }, found.map((one, index) => h("span", { class: `b-${one.kind}`, style: { "flex-grow": String(widths[index] / sum) } }))),
      h("ol.steps", h("li", h("i.b-wait"), h("span", "enqueued"), h("span.n.quiet", ""), h("time", { datetime: job.enqueued_at, title: exact(job.enqueued_at), class: "quiet n" }, precise(job.enqueued_at))),
        found.map((one, index) => h("li", h("i", { class: `b-${one.kind}` }), h("span", one.name), h("span.n", duration(lengths[index])), h("time", { datetime: one.to || present, title: one.to ? exact(one.to) : null, class: "quiet n" }, one.to ? precise(one.to, job.enqueued_at) : "now")))));
  }

  function failure(error, index) {
    const trace = error.backtrace || error.stack_trace || traceOf(error.attempt);
    return h("div.failure", h("div.failure-head", h("b", error.type || error.code || "error"), error.attempt ? h("span.quiet", `attempt ${error.attempt}`) : null, time(error.occurred_at)),
      h("p.mono.message", error.message || ""), trace ? h("details", { open: !index }, h("summary", "Traceback"), traceBlock(trace)) : null, error.details ? h("details", h("summary", "Details"), h("div.tree", tree(error.details))) : null);
  }

  // A job has the traceback of its last error only. Earlier ones may be in the events that the server still has.
  function traceOf(attempt) {
    return events.find(one => one.type === "job.failed" && one.data.attempt === attempt)?.data.error?.stack_trace;
  }

  // W3C trace context: version, trace, span, flags.
  function trace() {
    const parent = job.meta?.traceparent, id = /^[0-9a-f]{2}-([0-9a-f]{32})-/.exec(parent)?.[1];
    return id && session.trace_url ? h("a", { href: session.trace_url.replaceAll("{trace_id}", id), rel: "noreferrer", target: "_blank", class: "mono" }, id) : h("span.mono", parent);
  }

  function unknown() {
    return [h("p.quiet.pad", "The job was pushed over AMQP, and only its message has the arguments. To see those of future jobs here, set this in the program that pushes them:"), codeBlock(`jobs = Jobs(describe_jobs=True)   # or WAYBILL_DESCRIBE_JOBS=1`)];
  }

  function details() {
    return facts([
      ["Queue", link(`queues/${encodeURIComponent(job.queue)}`, job.queue)], ["Attempt", attempts(job, " of ")], ["Priority", job.priority], job.worker_id && ["Worker", link("workers", h("span.mono.id", { title: job.worker_id }, job.worker_id))],
      ["Enqueued", time(job.enqueued_at)], job.scheduled_at && ["Scheduled", time(job.scheduled_at)], job.next_attempt_at && ["Next attempt", time(job.next_attempt_at)], job.started_at && ["Started", time(job.started_at)],
      job.completed_at && job.state === "completed" && ["Completed", time(job.completed_at)], job.discarded_at && ["Failed", time(job.discarded_at)], job.cancelled_at && ["Cancelled", time(job.cancelled_at)], job.expires_at && ["Expires", time(job.expires_at)],
      job.tags?.length && ["Tags", job.tags.map(one => link(`jobs?text=${encodeURIComponent(one)}`, h("span.tag", one)))], job.meta?.traceparent && ["Trace", trace()],
    ]);
  }
}
