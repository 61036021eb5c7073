import { get } from "./api.js";
import { h } from "./dom.js";
import { age, count, rate, short } from "./format.js";
import { STATES, badge, card, empty, header, lastHour, link, spark, time } from "./parts.js";

export function open() {
  let data, groups;
  return {
    title: "Overview",
    async load() {
      // Rows have no keys, so they are rewritten in place and never move.
      [data, groups] = await Promise.all([get("admin/overview"), get("admin/failures", { limit: 6 })]);
    },
    draw() {
      const { counts, rates, series } = data;
      const total = Object.values(counts).reduce((sum, one) => sum + one, 0);
      if (!total && !data.workers.total) return [header("Overview"), first()];
      return [
        header("Overview"),
        h("div.stats",
          stat("Waiting", count(counts.available), data.oldest_at ? `oldest ${age(data.oldest_at)}` : "no jobs wait", series.enqueued, "blue", "jobs?state=available"),
          stat("Running", count(counts.active), `${count(data.workers.running)} ${data.workers.running === 1 ? "worker" : "workers"}`, null, "", "jobs?state=active"),
          stat("Completed", `${rate(rates.completed)}/s`, `${short(counts.completed)} in all`, series.completed, "green", "jobs?state=completed"),
          stat("Failed", count(counts.discarded), `${rate(rates.failed * 60)} per minute`, series.failed, "red", "failures")),
        lastHour(series),
        card("States", null, h("ul.states", STATES.map(one => h("li", link(`jobs?state=${one}`, badge(one), h("b", count(counts[one] || 0))))))),
        h("div.columns", queues(), failures()),
      ];
    },
  };

  function queues() {
    return card("Queues", link("queues", `All ${count(data.queues_total)}`), data.queues.length ? h("table.plain",
      h("thead", h("tr", h("th", "Queue"), h("th.n", "Waiting"), h("th.n", "Running"), h("th.n", "Oldest"))),
      h("tbody", data.queues.map(one => h("tr", h("td", link(`queues/${encodeURIComponent(one.name)}`, one.name), one.paused && h("span.tag", "paused")),
        h("td.n", count(one.counts.available)), h("td.n", count(one.counts.active)), h("td.n", one.oldest_at ? age(one.oldest_at) : "–"))))) : h("p.quiet.pad", "No queues yet."));
  }

  function failures() {
    const { items } = groups;
    return card("Latest failures", link("failures", "All"), items.length ? h("ul.list", items.map(one => h("li",
      link(`failures/${one.fingerprint}`, h("b", one.error_type), h("span.line", one.message)), h("span.n.quiet", `${short(one.count)} ×`), time(one.last_at)))) : h("p.quiet.pad", "No discarded jobs."));
  }
}

function stat(name, value, text, values, kind, address) {
  return h("a.stat.card", { href: `#/${address}` }, h("span.stat-name", name), h("span.stat-value", value), h("span.stat-text", text),
    values ? spark(values, kind, `${name} in the last hour`) : null);
}

function first() {
  const url = new URL("../ojs/v1/jobs", location.href.split("#")[0]);
  return empty("No job yet", "Push one from a terminal, or from your program. It appears here immediately.", `curl ${url} --json '{"type": "hello", "args": ["world"]}'

# jobs.py, run by: waybill up jobs:jobs
from waybill import Jobs

jobs = Jobs()

@jobs.handler("hello")
async def hello(name: str) -> str:
    return f"hello, {name}"`);
}
