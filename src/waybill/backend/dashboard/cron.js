import { get, may, send } from "./api.js";
import { h } from "./dom.js";
import { attempt, badge, button, card, empty, facts, header, link, time } from "./parts.js";

export function open(at) {
  let jobs = [], one;
  const self = {
    title: "Cron",
    async load() {
      if (at.id) one = (await get(`cron/${encodeURIComponent(at.id)}`)).cron_job;
      else jobs = (await get("cron")).items;
    },
    draw: () => (at.id ? detail() : list()),
  };
  return self;

  function tell(job, verb, done) {
    return () => attempt(() => send("POST", `cron/${encodeURIComponent(job.name)}/${verb}`), done).then(() => self.load()).then(() => self.redraw());
  }

  function controls(job) {
    return may("operate") ? h("div.actions", button("Run now", tell(job, "trigger", `${job.name}: pushed`), "small"), job.enabled ? button("Pause", tell(job, "pause", `${job.name} paused`), "small") : button("Resume", tell(job, "resume", `${job.name} resumed`), "small")) : null;
  }

  function list() {
    return [
      header("Cron"),
      jobs.length ? h("div.card.scroll", h("table.plain", h("thead", h("tr", h("th", "Name"), h("th.wide", "Schedule"), h("th.wide", "Job"), h("th.n", "Next run"), h("th.n.wide", "Last run"), h("th.n.wide", "Runs"), h("th.n", h("span.sr", "Actions")))),
        h("tbody", jobs.map(job => h("tr", { key: job.name }, h("td", link(`cron/${encodeURIComponent(job.name)}`, job.name), !job.enabled && h("span.tag.warn", "paused"), h("div.narrow", h("span.mono.quiet", job.expression))), h("td.wide", h("div.two", h("span.mono", job.expression), h("span.quiet", job.timezone))), h("td.wide", job.type), h("td.n", time(job.next_run_at)), h("td.n.wide", time(job.last_run_at)), h("td.n.wide", job.run_count), h("td.n", controls(job)))))))
        : empty("No cron job", "Register one in your program, or over HTTP:", `curl ${new URL("../ojs/v1/cron", location.href.split("#")[0])} --json \\
  '{"name": "nightly", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "type": "report.make", "args": []}'`),
    ];
  }

  function detail() {
    const runs = one.firings || [];
    return [
      h("p.crumbs", link("cron", "Cron"), " / ", one.name),
      header(h("span", one.name, " ", !one.enabled && h("span.tag.warn", "paused")), controls(one)),
      h("div.columns",
        card("Next runs", null, one.enabled && one.next_runs?.length ? h("ol.list", one.next_runs.slice(0, 5).map(run => h("li", h("span.n", new Date(run).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })), time(run)))) : h("p.quiet.pad", "It is paused.")),
        card("Definition", null, facts([["Schedule", h("span.mono", one.expression)], ["Time zone", one.timezone], ["Job", one.type], ["Queue", link(`queues/${encodeURIComponent(one.queue)}`, one.queue)], ["If one is still running", one.overlap_policy], ["If one was missed", one.missed_policy], one.description && ["About", one.description]]))),
      card("Last runs", null, runs.length ? h("ul.list", runs.map(run => h("li", { key: run.key }, badge(run.state), run.job_id ? link(`job/${run.job_id}`, h("span.mono", run.job_id)) : h("span.quiet", run.reason || "no job"), run.kind !== "tick" ? h("span.tag", run.kind.replace("_", " ")) : null, time(run.at)))) : h("p.quiet.pad", "It has not run yet.")),
    ];
  }
}
