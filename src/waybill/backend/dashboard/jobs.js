import { get, may, send } from "./api.js";
import { h } from "./dom.js";
import { between, count, duration, now, short } from "./format.js";
import { begin } from "./operations.js";
import { STATES, attempt, attempts, badge, button, confirmed, empty, header, link, time, toast } from "./parts.js";
import { Table } from "./table.js";

const PAGE = 200;
const FIELDS = ["text", "queue", "type", "state", "since", "until", "fingerprint", "id"];
const TIMES = [["", "Any time"], ["15m", "Last 15 minutes"], ["1h", "Last hour"], ["24h", "Last day"], ["7d", "Last week"]];
const SECONDS = { "15m": 900, "1h": 3600, "24h": 86400, "7d": 604800 };
const LIKE_ID = /^[0-9a-f]{6,}[0-9a-f-]*$/i;

export const columns = picked => [
  picked && { label: "Select", class: "c-pick", cell: row => h("input", { type: "checkbox", "aria-label": `Select ${row.id}`, checked: picked.has(row.id), onchange: () => picked.table.toggle(row.id) }) },
  { name: "Job", class: "c-main", cell: row => h("div.two", link(`job/${row.id}`, row.type), h("span.line.quiet.mono", row.error && row.state !== "completed" ? `${row.error.type || row.error.code}: ${row.error.message}` : row.args_preview ?? "")) },
  { name: "State", class: "c-state", cell: row => badge(row.state) },
  { name: "Queue", class: "c-queue wide", cell: row => link(`queues/${encodeURIComponent(row.queue)}`, row.queue) },
  { name: "Attempt", class: "c-n wide n", cell: row => attempts(row, " / ") },
  { name: "Ran", class: "c-n wide n", cell: row => duration(between(row.started_at, row.completed_at || row.discarded_at || row.cancelled_at || (row.state === "active" ? new Date(now()).toISOString() : ""))) },
  { name: "Enqueued", class: "c-time n", cell: row => time(row.enqueued_at) },
].filter(Boolean);

export function open(at) {
  let filter = read(at.query), pages = [], total = null, timer;
  const picked = new Set();
  const table = new Table({
    label: "Jobs", columns: columns(may("operate") ? picked : null), key: row => row.id, open: row => (location.hash = `#/job/${row.id}`), picked, onpick: () => self.redraw?.(),
    more: async () => {
      const last = pages.at(-1);
      if (last?.next_cursor) (pages.push(await ask(last.next_cursor)), fill());
    },
  });
  picked.table = table;

  const ask = cursor => get("admin/search", { ...asked(filter), limit: PAGE, cursor });
  const fill = () => {
    const seen = new Set();
    table.set(pages.flatMap(one => one.items).filter(one => !seen.has(one.id) && seen.add(one.id)), Boolean(pages.at(-1)?.next_cursor));
  };

  const self = {
    title: "Jobs", table,
    async load() {
      // Only the first page is requested again. Further pages stay as they were loaded.
      const mine = filter, found = await ask("");
      if (mine !== filter) return;
      const old = pages.flatMap(one => one.items), known = new Set(found.items.map(one => one.id)), lowest = found.items.at(-1)?.id;
      total = found.total;
      const rest = pages.length > 1 ? [{ ...pages.at(-1), items: old.filter(one => !known.has(one.id) && lowest && one.id < lowest) }] : [];
      pages = [found, ...rest];
      fill();
    },
    change(next) {
      filter = read(next.query);
      pages = [];
      picked.clear();
      table.scroller.scrollTop = 0;
      return self.load().then(() => self.redraw());
    },
    draw() {
      const isFiltered = Object.values(asked(filter)).some(Boolean);
      const rows = table.rows.length;
      return [
        header(h("span", "Jobs ", h("small.quiet", total !== null ? count(total) : rows ? `${short(rows)}${table.hasMore ? "+" : ""}` : "")),
          may("operate") && picked.size ? [button(`Cancel ${picked.size}`, () => change("cancel", [...picked])), button(`Retry ${picked.size}`, () => change("retry", [...picked])), button("Clear", () => (picked.clear(), table.soon(), self.redraw()))]
            : may("operate") && isFiltered && rows ? [button("Cancel all…", () => all("cancel")), button("Retry all…", () => all("retry"))] : null),
        h("div.filters", { role: "search", "aria-label": "Filter jobs" },
          h("input", { id: "search", type: "search", placeholder: "Search: id, argument, tag, error  ( / )", "aria-label": "Search jobs", value: filter.id || filter.text || "", oninput: event => later({ text: event.currentTarget.value.trim() }) }),
          h("input", { type: "text", placeholder: "Type", "aria-label": "Job type", value: filter.type || "", oninput: event => later({ type: event.currentTarget.value.trim() }) }),
          h("input", { type: "text", placeholder: "Queue", "aria-label": "Queue", value: filter.queue || "", oninput: event => later({ queue: event.currentTarget.value.trim() }) }),
          h("select", { "aria-label": "Enqueued within", onchange: event => set({ since: event.currentTarget.value }) }, TIMES.map(([value, text]) => h("option", { value, selected: (filter.since || "") === value }, text))),
          isFiltered && button("Reset", () => (location.hash = "#/jobs"), "small")),
        h("div.chips", { role: "group", "aria-label": "State" }, ["", ...STATES].map(one => h("button", { type: "button", class: "chip", "aria-pressed": String((filter.state || "") === one), onclick: () => set({ state: one }) }, one || "all"))),
        filter.fingerprint && h("p.note", "Only failures of one group. ", link(`failures/${filter.fingerprint}`, "Show the group")),
        rows ? table.element : table.hasMore ? h("div.empty", h("h2", "No match among the newest jobs"), h("p", "Each search covers 20,000 jobs."), button("Search further", () => table.more().then(() => self.redraw())))
          : isFiltered ? empty("No job matches", "Use fewer conditions, or a shorter text.") : empty("No job yet", "Push one:", `curl ${new URL("../ojs/v1/jobs", location.href.split("#")[0])} --json '{"type": "hello", "args": ["world"]}'`),
      ];
    },
    close: () => (table.close(), clearTimeout(timer)),
  };
  if (at.query.focus) setTimeout(() => document.getElementById("search")?.focus(), 200);
  return self;

  function later(next) {
    clearTimeout(timer);
    timer = setTimeout(() => set(next), 250);
  }

  function set(next) {
    const merged = { ...filter, ...next };
    if ("text" in next) {
      const isId = LIKE_ID.test(next.text);
      Object.assign(merged, { text: isId ? "" : next.text, id: isId ? next.text.toLowerCase() : "" });
    }
    const query = new URLSearchParams(Object.entries(merged).filter(([name, value]) => FIELDS.includes(name) && value));
    history.replaceState(null, "", `#/jobs${query.size ? `?${query}` : ""}`);
    return self.change({ query: Object.fromEntries(query) });
  }

  function all(action) {
    const wanted = asked(filter);
    return begin(action, Object.fromEntries(Object.entries(wanted).filter(([, value]) => value)), () => self.load().then(() => self.redraw()));
  }

  function change(action, ids) {
    const text = action === "cancel" ? "Cancel" : "Retry";
    confirmed(`${text} ${count(ids.length)} jobs`, "Jobs that are running, or have ended in the meantime, may not change.", text, action === "cancel" ? "danger" : "primary", async () => {
      let done = 0;
      for (let start = 0; start < ids.length; start += 500) done += (await attempt(() => send("POST", `jobs/bulk/${action}`, { job_ids: ids.slice(start, start + 500) })))?.succeeded ?? 0;
      toast(`${count(done)} of ${count(ids.length)} jobs changed`);
      picked.clear();
      await self.load();
      self.redraw();
    });
  }
}

function read(query) {
  return Object.fromEntries(FIELDS.filter(name => query[name]).map(name => [name, query[name]]));
}

function asked(filter) {
  const since = SECONDS[filter.since] ? new Date(now() - SECONDS[filter.since] * 1000).toISOString() : filter.since;
  return { ...filter, since };
}
