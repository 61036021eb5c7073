// Operations on many jobs. The server runs them in the background, at a chosen rate, even if this page is closed.

import { get, may, send } from "./api.js";
import { h, show } from "./dom.js";
import { count, rate } from "./format.js";
import { attempt, badge, button, dialog, empty, header, link, time } from "./parts.js";

const TEXTS = {
  retry: ["Retry", "Retry them", "primary", "go back into their queues"],
  cancel: ["Cancel", "Cancel them", "danger", "are cancelled; workers of running jobs are notified"],
  discard: ["Discard", "Discard them", "danger", "lose their dead letters and cannot be retried. They stay listed as failed"],
};

export function open() {
  let items = [];
  const self = {
    title: "Operations",
    async load() {
      items = (await get("admin/operations")).items;
    },
    draw: () => [
      header("Operations"),
      items.length ? h("div.card.scroll", h("table.plain", h("thead", h("tr", h("th", "Operation"), h("th", "State"), h("th", "Progress"), h("th.n.wide", "Per second"), h("th.n.wide", "Started"), h("th.n.wide", "By"), h("th.n", h("span.sr", "Actions")))),
        h("tbody", items.map(one => h("tr", { key: one.id }, h("td", h("div.two", h("b", `${TEXTS[one.action][0]} ${count(one.matched)}`), link(`jobs?${new URLSearchParams(one.filter)}`, h("span.line.quiet.mono", text(one.filter))))), h("td", badge(one.state)),
          h("td", bar(one)), h("td.n.wide", one.rate ? rate(one.rate) : "–"), h("td.n.wide", time(one.started_at)), h("td.n.wide", one.actor || "–"),
          h("td.n", one.state === "running" && may("operate") && button("Stop", () => stop(one).then(() => self.load()).then(() => self.redraw()), "small")))))))
        : empty("No operation", "Retry, cancel or discard many jobs from the failures or from a filtered list of jobs. Operations are shown here with their progress."),
    ],
  };
  return self;
}

function text(filter) {
  return Object.entries(filter).map(([name, value]) => `${name} ${value}`).join(", ");
}

function bar(one) {
  return h("div.bar-line", h("progress", { "aria-label": "Progress", max: String(one.matched || 1), value: String(one.matched ? one.done + one.failed : 1) }),
    h("span.quiet", `${count(one.done)} of ${count(one.matched)}${one.failed ? `, ${count(one.failed)} not changed` : ""}`));
}

function stop(one) {
  return attempt(() => send("POST", `admin/operations/${one.id}/stop`));
}

// Shows how many jobs would change, asks for confirmation, and starts. `then` is called at the end, if the dialog is
// still open.
export async function begin(action, filter, then) {
  const [verb, doIt, kind, outcome] = TEXTS[action];
  const plan = await attempt(() => send("POST", "admin/operations", { action, filter, dry_run: true }));
  if (!plan) return;
  const speed = h("input", { id: "rate", type: "number", min: "0", max: "100000", placeholder: "as fast as possible" });
  const content = h("div.form-rows", h("p", h("b", `${count(plan.matched)}${plan.has_more ? " or more" : ""} jobs`), ` ${outcome}.`),
    plan.matched ? h("div.field", h("label", { for: "rate" }, "Maximum jobs per second"), speed) : null);
  dialog(`${verb} all that match`, content, close => plan.matched ? button(doIt, async () => {
    const begun = await attempt(() => send("POST", "admin/operations", { action, filter, rate_per_second: Number(speed.value) || 0 }));
    if (begun) (close(), follow(begun, verb, then));
  }, kind) : null);
}

function follow(operation, verb, then) {
  const place = h("div", { role: "status" });
  const draw = () => show(place, [h("p", bar(operation)), operation.error && h("p.bad", operation.error), operation.ended_at && h("p", `${operation.state === "done" ? "Done" : operation.state}.`)]);
  const box = dialog(`${verb} jobs`, h("div.form-rows", place, h("p.hint", "It continues if you close this: see ", h("a", { href: "#/operations", onclick: () => box.close() }, "operations"), ".")),
    () => button("Stop", () => stop(operation)));
  const look = async () => {
    draw();
    if (operation.ended_at) {
      await then?.();
      if (!operation.failed && operation.state === "done") setTimeout(() => box.open && box.close(), 900);
      return;
    }
    setTimeout(async () => {
      operation = (await attempt(() => get(`admin/operations/${operation.id}`))) || { ...operation, state: "failed", ended_at: "now" };
      look();
    }, 250);
  };
  look();
}
