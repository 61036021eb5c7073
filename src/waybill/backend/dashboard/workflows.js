import { get, may, send } from "./api.js";
import { h, s } from "./dom.js";
import { between, duration } from "./format.js";
import { attempt, badge, button, card, confirmed, empty, header, link, time } from "./parts.js";

const WIDE = 168, TALL = 48, ACROSS = 56, DOWN = 16;

export function open(at) {
  let items = [], flow, more;
  const self = {
    title: "Workflows",
    async load() {
      if (at.id) flow = (await get(`workflows/${encodeURIComponent(at.id)}`)).workflow;
      else ({ items, pagination: more } = await get("workflows", { limit: 100 }));
    },
    draw: () => (at.id ? detail() : list()),
  };
  return self;

  function list() {
    return [
      header("Workflows"),
      items.length ? h("div.card.scroll", h("table.plain", h("thead", h("tr", h("th", "Workflow"), h("th", "State"), h("th.wide", "Kind"), h("th.n", "Done"), h("th.n.wide", "Started"))),
        h("tbody", items.map(one => h("tr", { key: one.id }, h("td", h("div.two", link(`workflow/${one.id}`, one.name || one.type), h("span.line.quiet.mono", one.id))), h("td", badge(one.state)), h("td.wide", one.type), h("td.n", `${one.steps_completed ?? one.jobs_completed ?? 0} / ${one.steps_total ?? one.jobs_total ?? 0}`), h("td.n.wide", time(one.created_at)))))))
        : empty("No workflow", "A chain runs steps one after another, a group in parallel, a graph by dependencies.", `curl ${new URL("../ojs/v1/workflows", location.href.split("#")[0])} --json \\
  '{"type": "chain", "steps": [{"type": "report.make", "args": [2026]}, {"type": "report.send", "args": []}]}'`),
      more?.has_more && h("p.quiet", "The newest 100 are shown."),
    ];
  }

  function detail() {
    const again = verb => () => attempt(() => send("POST", `workflows/${encodeURIComponent(flow.id)}/${verb}`), "Done").then(() => self.load()).then(() => self.redraw());
    return [
      h("p.crumbs", link("workflows", "Workflows"), " / ", h("span.mono", flow.id)),
      header(h("span", flow.name || flow.type, " ", badge(flow.state)), may("operate") && [flow.state === "failed" && button("Retry", again("retry"), "primary"), flow.state === "running" && button("Cancel", () => confirmed("Cancel this workflow", "Workers of running jobs are notified; waiting jobs do not start.", "Cancel the workflow", "danger", again("cancel")), "danger")]),
      card("Graph", h("span.quiet", flow.completed_at ? `took ${duration(between(flow.created_at, flow.completed_at))}` : time(flow.created_at)), graph()),
      card("Steps", null, h("ul.list", places().map(({ step }) => h("li", { key: step.key }, badge(step.state), step.job_id ? link(`job/${step.job_id}`, h("b", step.type || step.name), h("span.line.mono", step.job_id)) : h("b", step.type || step.name), step.error && h("span.bad.line", step.error.message), h("span.n.quiet", step.completed_at && step.started_at ? duration(between(step.started_at, step.completed_at)) : ""))))),
    ];
  }

  // The column of a step follows from its dependencies. A step that is a workflow itself is one box.
  function places() {
    const steps = (flow.steps || flow.jobs || []).map((one, index) => ({ ...one, key: String(one.id || index), after: flow.type === "chain" && index ? [flow.steps[index - 1].id] : one.depends_on || [] }));
    for (const [name, one] of Object.entries(flow.callbacks || {})) steps.push({ ...one, key: name, id: name, name, after: steps.filter(step => !steps.some(other => other.after.includes(step.id))).map(step => step.id), callback: true });
    const byId = new Map(steps.map(one => [one.id, one])), columns = new Map();
    const column = (one, depth = 0) => (one.column ??= depth > steps.length ? 0 : Math.max(-1, ...one.after.map(id => (byId.has(id) ? column(byId.get(id), depth + 1) : -1))) + 1);
    return steps.map(step => {
      const x = column(step), y = columns.get(x) || 0;
      columns.set(x, y + 1);
      return { step, x: x * (WIDE + ACROSS) + 8, y: y * (TALL + DOWN) + 8 };
    });
  }

  function graph() {
    const found = places(), byId = new Map(found.map(one => [one.step.id, one]));
    const width = Math.max(...found.map(one => one.x), 0) + WIDE + 8, height = Math.max(...found.map(one => one.y), 0) + TALL + 8;
    const lines = found.flatMap(to => to.step.after.filter(id => byId.has(id)).map(id => {
      const from = byId.get(id), x1 = from.x + WIDE, y1 = from.y + TALL / 2, y2 = to.y + TALL / 2, half = (to.x - x1) / 2;
      return s("path", { class: `edge ${from.step.state}`, d: `M${x1} ${y1}C${x1 + half} ${y1} ${to.x - half} ${y2} ${to.x} ${y2}` });
    }));
    const boxes = found.map(({ step, x, y }) => {
      const box = s("g", { class: `node s-${step.state}`, transform: `translate(${x} ${y})` }, s("rect", { width: WIDE, height: TALL, rx: 8 }), s("circle", { cx: 16, cy: 18, r: 4 }), s("text", { x: 28, y: 22 }, cut(step.type || step.name || step.key, 18)), s("text", { x: 28, y: 38, class: "small" }, step.callback ? `${step.key} · ${step.state}` : step.state));
      return step.job_id ? s("a", { href: `#/job/${step.job_id}` }, box) : box;
    });
    return h("div.graph", { tabindex: "0", role: "group", "aria-label": "Graph of the workflow" }, s("svg", { viewBox: `0 0 ${width} ${height}`, width: String(width), height: String(height) }, lines, boxes));
  }
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
