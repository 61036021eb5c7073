import { get, may, send } from "./api.js";
import { h } from "./dom.js";
import { age, count, duration, rate } from "./format.js";
import { STATES, attempt, badge, button, card, dialog, empty, facts, header, lastHour, link } from "./parts.js";

const STEP = 50;

export function open(at) {
  let items = [], total = 0, most = STEP, part = "", timer;
  const self = {
    title: "Queues",
    async load() {
      const found = await get("admin/queue-summaries", { name: at.id, search: part, limit: most });
      ({ items } = found);
      total = found.total;
    },
    draw: () => (at.id ? one() : list()),
    close: () => clearTimeout(timer),
  };
  return self;

  function again(action, done) {
    return attempt(action, done).then(() => self.load()).then(() => self.redraw());
  }

  function turn(queue) {
    const name = encodeURIComponent(queue.name);
    return queue.paused ? button("Resume", () => again(() => send("POST", `admin/queues/${name}/resume`), `${queue.name} resumed`), "small") : button("Pause", () => again(() => send("POST", `admin/queues/${name}/pause`), `${queue.name} paused`), "small");
  }

  // How long until no job waits, at the recent rates.
  function drain(queue) {
    const gain = queue.throughput.processed_per_minute - queue.throughput.enqueued_per_minute;
    return !queue.counts.available ? "–" : gain <= 0 ? "grows" : duration((queue.counts.available / gain) * 60000);
  }

  function list() {
    const head = [["Queue", ""], ["Waiting", "n"], ["Oldest", "n"], ["Running", "n wide"], ["In / min", "n wide"], ["Out / min", "n wide"], ["Wait p50 / p95", "n wide"], ["Run p50 / p95", "n wide"], ["Drained in", "n wide"], ["", "n"]];
    return [
      header(h("span", "Queues ", h("small.quiet", count(total)))),
      h("div.filters", { role: "search", "aria-label": "Find queues" }, h("input", { id: "search", type: "search", placeholder: "Name  ( / )", "aria-label": "Find queues by name", value: part, oninput: event => {
        part = event.currentTarget.value.trim();
        clearTimeout(timer);
        timer = setTimeout(() => self.load().then(() => self.redraw()), 200);
      } })),
      items.length ? h("div.card.scroll", h("table.plain", h("thead", h("tr", head.map(([text, kind]) => h("th", { class: kind }, text || h("span.sr", "Actions"))))),
        h("tbody", items.map(queue => h("tr", { key: queue.name }, h("td", link(`queues/${encodeURIComponent(queue.name)}`, queue.name), queue.paused && h("span.tag.warn", "paused")),
          h("td.n", count(queue.counts.available)), h("td.n", queue.oldest_at ? age(queue.oldest_at) : "–"), h("td.n.wide", count(queue.counts.active)), h("td.n.wide", rate(queue.throughput.enqueued_per_minute)), h("td.n.wide", rate(queue.throughput.processed_per_minute)),
          h("td.n.wide", pair(queue.wait_ms)), h("td.n.wide", pair(queue.run_ms)), h("td.n.wide", drain(queue)), h("td.n", may("operate") && turn(queue)))))))
        : empty(part ? "No queue has this name" : "No queue yet", part ? "Try a shorter text." : "A queue appears once a job is pushed to it, or a worker consumes it.", part ? null : "waybill queue declare email"),
      items.length < total && h("p", button(`Show ${count(Math.min(STEP, total - items.length))} more`, () => ((most = Math.min(500, most + STEP)), self.load().then(() => self.redraw())))),
    ];
  }

  function one() {
    const queue = items[0];
    const crumbs = h("p.crumbs", link("queues", "Queues"), " / ", at.id);
    if (!queue) return [crumbs, header(at.id), empty("No such queue", "No job or worker uses this queue.")];
    return [
      crumbs,
      header(h("span", queue.name, " ", queue.paused && h("span.tag.warn", "paused")), may("operate") && [turn(queue), may("admin") && button("Purge…", () => purge(queue), "danger")]),
      lastHour(queue.series),
      h("div.columns",
        card("Jobs", link(`jobs?queue=${encodeURIComponent(queue.name)}`, "Show them"), h("ul.states", STATES.map(state => h("li", link(`jobs?queue=${encodeURIComponent(queue.name)}&state=${state}`, badge(state), h("b", count(queue.counts[state]))))))),
        card("Times", null, facts([["Oldest waiting", queue.oldest_at ? age(queue.oldest_at) : "no jobs wait"], ["Enqueued per minute", rate(queue.throughput.enqueued_per_minute)], ["Completed per minute", rate(queue.throughput.processed_per_minute)], ["Failed per minute", rate(queue.throughput.failed_per_minute)], ["Wait, median / 95 %", pair(queue.wait_ms)], ["Run, median / 95 %", pair(queue.run_ms)], ["Drained in", drain(queue)]]))),
    ];
  }

  async function purge(queue) {
    const name = encodeURIComponent(queue.name);
    const box = h("input", { type: "text", "aria-label": "Name of the queue", autocomplete: "off" });
    dialog("Purge the queue", h("div", h("p", `${count(queue.counts.available)} waiting jobs are cancelled. Type the name of the queue:`), box),
      close => button("Purge", async () => {
        if (box.value !== queue.name) return;
        close();
        await again(() => send("POST", `queues/${name}/purge`, { states: ["available"] }), done => `${count(done.purged)} jobs cancelled`);
      }, "danger"));
  }
}

function pair(times) {
  return times ? `${duration(times[0])} / ${duration(times[1])}` : "–";
}
