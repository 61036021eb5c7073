import { get } from "./api.js";
import { h } from "./dom.js";
import { button, empty, header, time } from "./parts.js";

export function open() {
  let items = [], most = 100;
  const self = {
    title: "Audit log",
    async load() {
      items = (await get("admin/audit", { limit: most })).items;
    },
    draw: () => [
      header("Audit log"),
      items.length ? h("div.card.scroll", h("table.plain", h("thead", h("tr", h("th", "When"), h("th.wide", "Who"), h("th", "What"), h("th.n", "Answer"), h("th.wide", "Request"))),
        h("tbody", items.map(one => h("tr", { key: one.id }, h("td", time(one.time)), h("td.wide", one.actor || h("span.quiet", "this machine")), h("td", h("span.mono", h("b", one.method), " ", decodeURIComponent(one.path.replace("/ojs/v1/", "")))),
          h("td.n", h("span", { class: one.status < 400 ? "" : "bad" }, String(one.status))), h("td.wide.mono.quiet", one.request_id.slice(0, 20)))))))
        : empty("No changes yet", "Pauses of queues, retries and cancellations of jobs, and changes of settings are listed here for thirty days. Pushes are not, since each job records its own."),
      items.length >= most && most < 1000 && h("p", button("Show more", () => ((most = Math.min(1000, most + 200)), self.load().then(() => self.redraw())))),
    ],
  };
  return self;
}
