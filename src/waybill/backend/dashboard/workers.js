import { get, may, send } from "./api.js";
import { h } from "./dom.js";
import { age, count } from "./format.js";
import { attempt, button, card, confirmed, empty, header, link, time } from "./parts.js";

export function open() {
  let workers = [], total = 0;
  const self = {
    title: "Workers",
    async load() {
      const found = await get("admin/workers", { per_page: 100, jobs: "true" });
      workers = found.items;
      total = found.summary.total;
    },
    draw() {
      return [
        header(h("span", "Workers ", h("small.quiet", count(total)))),
        workers.length ? workers.map(one) : empty("No workers", "Workers appear within seconds over AMQP, and with their first fetch over HTTP.", "waybill worker app.jobs:jobs"),
      ];
    },
  };
  return self;

  function one(worker) {
    const own = worker.jobs;
    const name = `admin/workers/${encodeURIComponent(worker.id)}`;
    const tell = (verb, done) => () => attempt(() => send("POST", `${name}/${verb}`), done).then(() => self.load()).then(() => self.redraw());
    const later = worker.protocol === "http" ? ", with its next heartbeat" : "";
    const controls = may("admin") && worker.state !== "stale" ? h("div.actions",
      worker.state === "quiet" ? button("Resume", tell("resume", "The worker takes jobs again"), "small") : button("Quiet", tell("quiet", `The worker takes no more jobs${later}`), "small"),
      button("Terminate", () => confirmed("Terminate this worker", `The worker finishes its jobs and stops${later}. Its supervisor may start another.`, "Terminate", "danger", tell("terminate", `The worker finishes its jobs${later}`)), "small danger"))
      : may("admin") && worker.protocol === "http" ? button("Forget", () => attempt(() => send("DELETE", name), "Forgotten").then(() => self.load()).then(() => self.redraw()), "small") : null;
    return h("section", { key: worker.id, class: "card worker" }, h("div.card-head", h("h2", h("span", { class: `dot ${worker.state}`, "aria-hidden": "true" }), h("span.mono", worker.id), h("span", { class: `tag ${worker.state === "running" ? "" : "warn"}` }, worker.state), h("span.tag", worker.protocol)), controls),
      h("p.quiet.line.pad", "takes ", worker.queues.length ? worker.queues.join(", ") : "unknown", ` · ${count(own.length || worker.active_jobs)}${worker.concurrency ? ` of ${count(worker.concurrency)}` : ""} running · heartbeat `, time(worker.last_heartbeat_at), " · since ", time(worker.started_at)),
      own.length ? h("ul.list", own.map(job => h("li", { key: job.id }, link(`job/${job.id}`, h("b", job.type), h("span.line.mono", job.id)), job.progress !== undefined && h("progress", { "aria-label": `Progress of ${job.type}`, max: "1", value: String(job.progress) }), h("span.n", `for ${age(job.started_at)}`)))) : null);
  }
}
