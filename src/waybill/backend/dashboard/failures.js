import { get, may, send } from "./api.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { begin } from "./operations.js";
import { attempt, button, card, empty, facts, header, link, spark, time, traceBlock } from "./parts.js";

export function open(at) {
  let groups = [], all = false, sample;
  const self = {
    title: "Failures",
    async load() {
      groups = (await get("admin/failures", { all: all || at.id ? "true" : "" })).items;
      const one = groups.find(group => group.fingerprint === at.id);
      if (one && sample?.id !== one.last_job) sample = (await get(`admin/jobs/${encodeURIComponent(one.last_job)}`).catch(() => null))?.job;
    },
    draw: () => (at.id ? group() : list()),
  };
  return self;

  function list() {
    return [
      header("Failures", h("label.check", h("input", { type: "checkbox", checked: all, onchange: event => ((all = event.currentTarget.checked), self.load().then(() => self.redraw())) }), "Show dismissed")),
      groups.length ? h("div.card.scroll", h("table.plain", h("thead", h("tr", h("th", "Error"), h("th.wide", "Job"), h("th.wide", "Last 24 hours"), h("th.n", "Count"), h("th.n.wide", "First seen"), h("th.n", "Last seen"))),
        h("tbody", groups.map(one => h("tr", { key: one.fingerprint, class: one.dismissed ? "faded" : "" },
          h("td", h("div.two", link(`failures/${one.fingerprint}`, one.error_type), h("span.line.quiet.mono", one.message))),
          h("td.wide", h("div.two", h("span", one.type), h("span.quiet", one.queue))), h("td.wide.c-spark", hours(one)), h("td.n", count(one.count)), h("td.n.wide", time(one.first_at)), h("td.n", time(one.last_at)))))))
        : empty("No discarded jobs", "Jobs that have used up their attempts are listed here, grouped by error.", `@jobs.handler("report.make", retry=Retry(max_attempts=5))
async def make(year: int) -> None: ...`),
    ];
  }

  function group() {
    const one = groups.find(group => group.fingerprint === at.id);
    if (!one) return [crumbs(at.id), header("Failures"), empty("This group is empty", "Its jobs were retried or deleted.")];
    const error = sample?.error || {}, lines = error.backtrace || error.stack_trace;
    return [
      crumbs(one.error_type),
      header(one.error_type, may("operate") && [
        button("Retry all…", () => begin("retry", of(one), again), "primary"), button("Discard…", () => begin("discard", of(one), again), "danger"),
        !one.dismissed && button("Dismiss", () => attempt(() => send("POST", `admin/failures/${one.fingerprint}/dismiss`), "Dismissed until it fails again").then(() => (location.hash = "#/failures"))),
      ]),
      h("p.mono.message.card.pad", one.message || "no message"),
      h("div.columns.job",
        h("div", lines ? card("Last traceback", null, traceBlock(lines)) : card("Last traceback", null, h("p.quiet.pad", "None was recorded."))),
        h("div", card("Last 24 hours", null, hours(one), h("div.axis", { "aria-hidden": "true" }, h("span", "24 h ago"), h("span", "now"))), card("Group", link(`jobs?fingerprint=${one.fingerprint}`, "Show its jobs"), facts([["Jobs", count(one.count)], ["Type", one.type], ["Queue", link(`queues/${encodeURIComponent(one.queue)}`, one.queue)], ["First seen", time(one.first_at)], ["Last seen", time(one.last_at)], ["Last job", link(`job/${one.last_job}`, one.last_job.slice(0, 13))]])))),
    ];
  }

  function crumbs(text) {
    return h("p.crumbs", link("failures", "Failures"), " / ", text);
  }

  function again() {
    return self.load().then(() => self.redraw());
  }
}

function of(group) {
  return { fingerprint: group.fingerprint, state: "discarded" };
}

function hours(group) {
  const most = Math.max(...group.series), sum = group.series.reduce((all, one) => all + one, 0);
  return spark(group.series, "red", `${count(sum)} failures in the last 24 hours, at most ${count(most)} per hour`);
}
