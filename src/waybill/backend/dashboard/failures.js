import { get, may, send } from "./api.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { attempt, button, card, codeBlock, confirmed, empty, facts, header, inBulk, link, time } from "./parts.js";
import { found } from "./jobs.js";

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
      groups.length ? h("div.card.scroll", h("table.plain", h("thead", h("tr", h("th", "Error"), h("th.wide", "Job"), h("th.n", "Count"), h("th.n.wide", "First seen"), h("th.n", "Last seen"))),
        h("tbody", groups.map(one => h("tr", { key: one.fingerprint, class: one.dismissed ? "faded" : "" },
          h("td", h("div.two", link(`failures/${one.fingerprint}`, one.error_type), h("span.line.quiet.mono", one.message))),
          h("td.wide", h("div.two", h("span", one.type), h("span.quiet", one.queue))), h("td.n", count(one.count)), h("td.n.wide", time(one.first_at)), h("td.n", time(one.last_at)))))))
        : empty("Nothing has failed for good", "A job that has used up its attempts is listed here, with others whose errors are alike.", `@jobs.handler("report.make", retry=Retry(max_attempts=5))
async def make(year: int) -> None: ...`),
    ];
  }

  function group() {
    const one = groups.find(group => group.fingerprint === at.id);
    if (!one) return [crumbs(at.id), header("Failures"), empty("This group is empty", "Its jobs were retried, or are forgotten.")];
    const error = sample?.error || {}, lines = error.backtrace || error.stack_trace;
    return [
      crumbs(one.error_type),
      header(one.error_type, may("operate") && [
        button("Retry all…", () => redrive(one), "primary"), button("Discard…", () => discard(one), "danger"),
        !one.dismissed && button("Dismiss", () => attempt(() => send("POST", `admin/failures/${one.fingerprint}/dismiss`), "Dismissed until it fails again").then(() => (location.hash = "#/failures"))),
      ]),
      h("p.mono.message.card.pad", one.message || "no message"),
      h("div.columns.job",
        h("div", lines ? card("Last traceback", null, codeBlock(Array.isArray(lines) ? lines.join("\n") : lines)) : card("Last traceback", null, h("p.quiet.pad", "None was sent."))),
        h("div", card("Group", link(`jobs?fingerprint=${one.fingerprint}`, "Show its jobs"), facts([["Jobs", count(one.count)], ["Type", one.type], ["Queue", link(`queues/${encodeURIComponent(one.queue)}`, one.queue)], ["First seen", time(one.first_at)], ["Last seen", time(one.last_at)], ["Last job", link(`job/${one.last_job}`, one.last_job.slice(0, 13))]])))),
    ];
  }

  function crumbs(text) {
    return h("p.crumbs", link("failures", "Failures"), " / ", text);
  }

  async function redrive(one) {
    const plan = await attempt(() => send("POST", "jobs/bulk/retry", { filter: { fingerprint: one.fingerprint, state: "discarded" }, dry_run: true }));
    if (plan) confirmed("Retry the group", `${count(plan.matched)}${plan.has_more ? " or more" : ""} jobs go back into their queues.`, "Retry them", "primary", async () => {
      await inBulk("Retrying jobs", () => found({ fingerprint: one.fingerprint, state: "discarded" }), async ids => (await send("POST", "jobs/bulk/retry", { job_ids: ids })).succeeded ?? 0);
      await self.load();
      self.redraw();
    });
  }

  async function discard(one) {
    const ids = [];
    for await (const page of found({ fingerprint: one.fingerprint, state: "discarded" })) ids.push(...page);
    const plan = await attempt(() => send("POST", "dead-letter/purge", { ids, dry_run: true }));
    if (plan) confirmed("Discard the group", `${count(plan.matched)} dead letters are dropped: they cannot be retried then. The jobs stay listed as failed.`, "Discard them", "danger", async () => {
      await attempt(() => send("POST", "dead-letter/purge", { ids }), done => `${count(done.purged)} discarded`);
      await attempt(() => send("POST", `admin/failures/${one.fingerprint}/dismiss`));
      location.hash = "#/failures";
    });
  }
}
