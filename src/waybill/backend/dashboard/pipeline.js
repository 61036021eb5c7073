// The pipeline's last report: its charts, and recommendations that can be applied.

import { get, may, send } from "./api.js";
import { h } from "./dom.js";
import { count, duration, exact, short } from "./format.js";
import { attempt, button, card, chart, confirmed, dialog, codeBlock, empty, header, lines, link, time } from "./parts.js";

const of = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");

export function open() {
  let report, sentAt, set = new Map();
  const self = {
    title: "Pipeline",
    async load() {
      const [found, types] = await Promise.all([get("admin/pipeline/report"), get("admin/job-types")]);
      ({ report, sent_at: sentAt } = found);
      set = new Map(types.items.map(one => [one.type, one]));
    },
    draw: () => (report ? [header("Pipeline", h("span.quiet", "report from ", time(sentAt))), tiles(), charts(), advice(), tables()] : [header("Pipeline"), none()]),
  };
  return self;

  function tiles() {
    const { totals } = report, ended = totals.completed + totals.discarded;
    const tile = (name, value, text) => h("div.stat.card.low", h("span.stat-name", name), h("span.stat-value", value), h("span.stat-text", text));
    return h("div.stats", tile("Jobs", short(totals.jobs), `${count(totals.events)} events, ${count(totals.open)} still open`), tile("Completed", of(totals.completed, ended), `${count(totals.recovered)} of them after a retry`),
      tile("Queue wait", duration(totals.queue_wait?.p50), `95 % at most ${duration(totals.queue_wait?.p95)}`), tile("Run time", duration(totals.run?.p50), `95 % at most ${duration(totals.run?.p95)}`));
  }

  function charts() {
    const line = report.timeline, at = one => exact(one.start), axis = line.length ? h("div.axis", { "aria-hidden": "true" }, h("span", at(line[0])), h("span", at(line.at(-1)))) : null;
    const times = name => [["median", line.map(one => one[name]?.p50 ?? 0), "blue"], ["95 %", line.map(one => one[name]?.p95 ?? 0), "violet"]];
    return [
      card("Throughput", h("span.legend", h("span.l-good", "completed"), h("span.l-bad", "failed attempts")), chart({ completed: line.map(one => one.completed), failed: line.map(one => one.failed), step_seconds: report.bucket_seconds }), axis),
      h("div.columns", card("Queue wait", null, lines(times("queue_wait"), duration)), card("Run time", null, lines(times("run"), duration))),
    ];
  }

  function advice() {
    const rows = report.recommendations.flatMap(one => [["retry.max_attempts", "max_attempts", one.max_attempts], ["timeout", "timeout_seconds", one.timeout_s], ["concurrency", "", one.concurrency]].filter(([, , found]) => found).map(([name, field, found]) => ({ type: one.job_type, name, field, ...found })));
    return card("Recommendations", null, rows.length ? h("div.scroll", h("table.plain", h("thead", h("tr", h("th", "Job type"), h("th", "Setting"), h("th.n", "Value"), h("th.wide", "Evidence"), h("th.n", h("span.sr", "Actions")))),
      h("tbody", rows.map(row => h("tr", { key: row.type + row.name }, h("td", row.type), h("td.mono", row.name), h("td.n", row.name === "timeout" ? `${count(row.value)} s` : count(row.value)), h("td.wide.quiet", row.evidence), h("td.n", action(row))))))) : h("p.quiet.pad", "There is not enough data yet. A job type needs a few hundred attempts."));
  }

  function action(row) {
    const known = set.get(row.type);
    if (row.field && known?.[row.field] === row.value) return h("div.actions", h("span.tag", "applied"), may("admin") && button("Undo", () => undo(row), "small"));
    return h("div.actions", button("Code", () => dialog(`${row.type}: ${row.name}`, h("div.form-rows", h("p", "For programs that push over AMQP:"), codeBlock(code(row)))), "small"), row.field && may("admin") && button("Apply", () => apply(row), "small primary"));
  }

  function code(row) {
    if (row.name === "concurrency") return `waybill worker app.jobs:jobs --concurrency ${row.value}`;
    return row.name === "timeout" ? `@jobs.handler("${row.type}", timeout=${row.value})` : `@jobs.handler("${row.type}", retry=Retry(max_attempts=${row.value}))`;
  }

  function save(row, body, done) {
    const path = `admin/job-types/${encodeURIComponent(row.type)}/defaults`;
    return attempt(() => (body.max_attempts || body.timeout_seconds ? send("PUT", path, body) : send("DELETE", path)), done).then(() => self.load()).then(() => self.redraw());
  }

  function apply(row) {
    const { max_attempts, timeout_seconds } = set.get(row.type) || {};
    confirmed("Apply the recommendation", `Jobs of type ${row.type} that are pushed over HTTP without ${row.name} now get ${row.value}.`, "Apply", "primary", () => save(row, { max_attempts, timeout_seconds, [row.field]: row.value, evidence: row.evidence.slice(0, 1000) }, "Applied"));
  }

  function undo(row) {
    const { max_attempts, timeout_seconds } = set.get(row.type);
    return save(row, { max_attempts, timeout_seconds, [row.field]: undefined }, "Undone");
  }

  function tables() {
    const types = h("div.scroll", h("table.plain", h("thead", h("tr", h("th", "Job type"), h("th.n", "Jobs"), h("th.n", "Completed"), h("th.n.wide", "Retries"), h("th.n.wide", "Wait p50 / p95"), h("th.n.wide", "Run p50 / p95"))),
      h("tbody", report.job_types.map(one => h("tr", { key: one.job_type + one.queue }, h("td", h("div.two", link(`jobs?type=${encodeURIComponent(one.job_type)}`, one.job_type), h("span.quiet", one.queue))), h("td.n", count(one.pushed)), h("td.n", of(one.completed, one.completed + one.discarded)), h("td.n.wide", count(one.retries)),
        h("td.n.wide", `${duration(one.queue_wait?.p50)} / ${duration(one.queue_wait?.p95)}`), h("td.n.wide", `${duration(one.run?.p50)} / ${duration(one.run?.p95)}`))))));
    const errors = (report.errors || []).slice(0, 10), workers = (report.workers || []).slice(0, 10);
    return [card("Job types", null, types), h("div.columns",
      card("Errors", null, errors.length ? h("ul.list", errors.map(one => h("li", h("b.line", one.error_type), h("span.n", `${count(one.failed)} ×`), h("span.n.quiet", `${count(one.retried)} retried`)))) : h("p.quiet.pad", "None.")),
      card("Workers", null, workers.length ? h("ul.list", workers.map(one => h("li", h("span.line.mono", one.worker_id), h("span.n", count(one.attempts)), one.utilisation === null ? null : h("progress", { "aria-label": `Busy share of ${one.worker_id}`, max: "1", value: String(one.utilisation) }), h("span.n.quiet", one.utilisation === null ? "" : of(one.utilisation, 1))))) : h("p.quiet.pad", "None.")))];
  }
}

function none() {
  return empty("No report yet", "The pipeline reads all events with Spark and reports rates, waits, failures and recommended settings. Upload its report here, for example every hour.", `waybill pipeline run --uri amqp://localhost/%2Fojs --data jobs-data --once
waybill pipeline report --data jobs-data --json |
  curl --json @- ${new URL("../ojs/v1/admin/pipeline/report", location.href.split("#")[0])}`);
}
