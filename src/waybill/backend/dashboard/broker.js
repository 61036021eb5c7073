// The broker, over RabbitMQ's management API: queues, exchanges, connections, channels, users and policies.

import { get, may, send } from "./api.js";
import { h } from "./dom.js";
import { bytes, count, duration, rate, short } from "./format.js";
import * as rights from "./rights.js";
import { attempt, button, card, codeBlock, confirmed, dialog, empty, facts, header, lines, link, toast } from "./parts.js";

const STEP = 100;
const TABS = [["", "Overview"], ["queues", "Queues"], ["streams", "Streams"], ["exchanges", "Exchanges"], ["connections", "Connections"], ["channels", "Channels"], ["users", "Users"], ["policies", "Policies"]];
// The time ranges that the broker keeps: name, length and step in seconds.
const SPANS = [["10 min", 600, 5], ["2 hours", 7200, 60], ["1 day", 86400, 600]];
const part = encodeURIComponent;
const of = one => `${part(one.vhost)}/${part(one.name)}`;
const speed = (one, name) => one.message_stats?.[`${name}_details`]?.rate ?? 0;
const named = one => one.name || "(default)";

// The columns of each list: [title, class, cell]. The broker sorts by the field `sort` at first.
const LISTS = {
  queues: { sort: "messages", columns: [["Queue", "", one => h("div.two", link(`broker/queues/${of(one)}`, one.name), h("span.line.quiet", one.vhost))], ["Kind", "wide", kind], ["Ready", "n", one => count(one.messages_ready)], ["Unacked", "n wide", one => count(one.messages_unacknowledged)], ["In / s", "n wide", one => rate(speed(one, "publish"))], ["Out / s", "n wide", one => rate(speed(one, "deliver_get"))], ["Consumers", "n", one => count(one.consumers)], ["Memory", "n wide", one => bytes(one.memory)]] },
  streams: { sort: "type", columns: [["Stream", "", one => h("div.two", link(`broker/queues/${of(one)}`, one.name), h("span.line.quiet", one.vhost))], ["Messages", "n", one => count(one.messages)], ["Size", "n", one => bytes(one.message_bytes)], ["First offset", "n wide", one => count(one.first_offset)], ["Next offset", "n wide", one => count(one.next_offset)], ["In / s", "n wide", one => rate(speed(one, "publish"))], ["Out / s", "n wide", one => rate(speed(one, "deliver_get"))], ["Readers", "n", one => count(one.consumers)], ["Kept", "wide", one => h("span.mono.quiet", kept(one.arguments))]] },
  exchanges: { sort: "name", columns: [["Exchange", "", one => h("div.two", link(`broker/exchanges/${of(one)}`, named(one)), h("span.line.quiet", one.vhost))], ["Kind", "", one => h("span.tags", one.type, one.durable ? null : h("span.tag", "transient"), one.internal ? h("span.tag", "internal") : null)], ["In / s", "n", one => rate(speed(one, "publish_in"))], ["Out / s", "n", one => rate(speed(one, "publish_out"))]] },
  connections: { sort: "name", columns: [["Connection", "", one => h("div.two", h("b", one.user_provided_name || one.client_properties?.connection_name || one.name), h("span.line.quiet", [one.client_properties?.product, one.client_properties?.version, one.name].filter(Boolean).join(" ")))], ["User", "wide", one => h("div.two.keep", h("span", one.user), h("span.quiet", one.vhost))], ["Protocol", "wide", one => h("span.keep", one.protocol, one.ssl ? h("span.tag", "TLS") : null)], ["State", "wide", one => one.state], ["Channels", "n wide", one => count(one.channels)], ["In / s", "n wide", one => bytes(one.recv_oct_details?.rate)], ["Out / s", "n wide", one => bytes(one.send_oct_details?.rate)], ["", "n", close]] },
  channels: { sort: "messages_unacknowledged", columns: [["Channel", "", one => h("div.two", h("b", one.name), h("span.line.quiet", one.vhost))], ["User", "wide", one => one.user], ["Mode", "wide", one => [one.confirm && "confirms", one.transactional && "transactions"].filter(Boolean).join(", ") || "–"], ["Unacked", "n", one => count(one.messages_unacknowledged)], ["Unconfirmed", "n wide", one => count(one.messages_unconfirmed)], ["Prefetch", "n", one => (one.prefetch_count || one.global_prefetch_count ? count(one.prefetch_count || one.global_prefetch_count) : "any")], ["Consumers", "n wide", one => count(one.consumer_count)], ["Acks / s", "n wide", one => rate(speed(one, "ack"))]] },
  users: { sort: "name", columns: [["User", "", one => h("b", one.name)], ["Tags", "", one => (Array.isArray(one.tags) ? one.tags : String(one.tags || "").split(",")).filter(Boolean).map(tag => h("span.tag", tag))], ["May", "wide", one => one.permissions?.map(each => h("div", h("span.mono", each.vhost), ` configure ${each.configure || "nothing"}, write ${each.write || "nothing"}, read ${each.read || "nothing"}`))]] },
  policies: { sort: "name", columns: [["Policy", "", one => h("div.two", h("b", one.name), h("span.line.quiet", one.vhost))], ["Pattern", "wide", one => h("span.mono", one.pattern)], ["Applies to", "wide", one => one["apply-to"]], ["Priority", "n wide", one => count(one.priority)], ["Definition", "", one => h("span.mono.line", JSON.stringify(one.definition))]] },
};

export function open(at) {
  const [tab = "", vhost, name] = at.raw.split("/").slice(1).map(decodeURIComponent);
  let data = {}, page = 1, wanted = "", span = 0, timer;
  const self = {
    title: TABS.find(([id]) => id === tab)?.[1] || "Broker",
    async load() {
      data = name !== undefined ? await loadOne() : tab ? await loadList() : await loadOverview();
    },
    draw: () => (name !== undefined ? (tab === "queues" ? queue() : exchange()) : [header("Broker"), tabs(), tab ? list() : overview()]),
    close: () => clearTimeout(timer),
  };
  return self;

  function history() {
    const [, age, incr] = SPANS[span];
    return { msg_rates_age: age, msg_rates_incr: incr, lengths_age: age, lengths_incr: incr };
  }

  // Only the totals of the broker are kept for a day.
  function spans() {
    const choose = index => () => ((span = index), self.load().then(() => self.redraw()));
    return h("div.chips.small", { role: "group", "aria-label": "Time range" }, SPANS.slice(0, tab ? 2 : 3).map(([text], index) => h("button", { type: "button", class: "chip", "aria-pressed": String(index === span), onclick: choose(index) }, text)));
  }

  function tabs() {
    return h("nav.tabs", { "aria-label": "Sections of the broker" }, TABS.map(([id, text]) => h("a", { href: `#/broker${id && `/${id}`}`, "aria-current": id === tab ? "page" : null }, text)));
  }

  function again(action, done) {
    return attempt(action, done).then(() => self.load()).then(() => self.redraw());
  }

  async function loadOverview() {
    const [all, nodes] = await Promise.all([get("broker/overview", history()), get("broker/nodes")]);
    return { all, nodes };
  }

  async function loadList() {
    const { sort } = LISTS[tab];
    if (tab === "streams") return streams();
    const found = await get(`broker/${tab}`, { page, page_size: STEP, name: wanted, pagination: true, sort, sort_reverse: sort !== "name" });
    if (tab === "users") {
      const permissions = await get("broker/permissions").catch(() => []);
      for (const one of found.items) one.permissions = permissions.filter(each => each.user === one.name);
    }
    return found;
  }

  // Sorted by type in descending order, streams come first.
  async function streams() {
    const found = await get("broker/queues", { page: 1, page_size: 500, name: wanted, pagination: true, sort: "type", sort_reverse: true });
    const items = found.items.filter(one => one.type === "stream");
    return { items, filtered_count: items.length, page_count: 1 };
  }

  async function loadOne() {
    const path = `broker/${tab}/${part(vhost)}/${part(name)}`;
    const [one, bindings] = await Promise.all([get(path, history()), get(`${path}/bindings${tab === "exchanges" ? "/source" : ""}`)]);
    return { one, bindings, path };
  }

  function overview() {
    const { all, nodes } = data, stats = all.message_stats || {}, totals = all.queue_totals || {}, objects = all.object_totals || {};
    const tile = (title, value, text) => h("div.stat.card.low", h("span.stat-name", title), h("span.stat-value", value), h("span.stat-text", text));
    return [
      h("div.stats", tile("Ready", count(totals.messages_ready ?? 0), `${count(totals.messages_unacknowledged ?? 0)} unacknowledged`), tile("In", `${rate(stats.publish_details?.rate)}/s`, `${short(stats.publish || 0)} in all`),
        tile("Out", `${rate(stats.deliver_get_details?.rate)}/s`, `${short(stats.deliver_get || 0)} in all`), tile("Connections", count(objects.connections), `${count(objects.channels)} channels, ${count(objects.consumers)} consumers`)),
      h("div.columns", rates(stats, spans()), lengths(totals)),
      nodes.map(node => card(node.name, h("span.quiet", `up ${duration(node.uptime)}`), h("div.columns.flush",
        facts([["Memory of the process", bytes(node.mem_used)], ["Messages in memory", `${bytes(node.message_bytes_in_memory)} of ${bytes(node.mem_limit)}`], ["Free disk", `${bytes(node.disk_free)}, at least ${bytes(node.disk_free_limit)}`], (node.mem_alarm || node.disk_free_alarm) && ["Alarm", h("span.tag.warn", "publishers are blocked")]]),
        facts([["Queues", link("broker/queues", count(objects.queues))], ["Exchanges", link("broker/exchanges", count(objects.exchanges))], ["Descriptors", `${count(node.fd_used)} of ${count(node.fd_total)}`]])))),
    ];
  }

  function list() {
    const isChanged = tab === "users" || tab === "policies", again = () => self.load().then(() => self.redraw());
    const { items } = data, columns = [...LISTS[tab].columns, ...(isChanged && may("admin") ? [["", "n", one => rights.changes(tab, one, again)]] : [])];
    const turn = by => () => ((page += by), self.load().then(() => self.redraw()));
    return [
      h("div.filters.one", { role: "search", "aria-label": `Find ${tab}` }, h("input", { id: "search", type: "search", placeholder: "Name  ( / )", "aria-label": `Find ${tab} by name`, value: wanted, oninput: event => {
        wanted = event.currentTarget.value.trim();
        page = 1;
        clearTimeout(timer);
        timer = setTimeout(() => self.load().then(() => self.redraw()), 200);
      } }), h("span.quiet", `${count(data.filtered_count)} found`), rights.adds(tab, again)),
      items.length ? h("div.card.scroll", table(columns, items, one => one.name + (one.vhost || ""))) : empty(`No ${tab}`, wanted ? "No match." : NONE[tab]?.[0] || "None yet.", wanted ? null : NONE[tab]?.[1]),
      data.page_count > 1 && h("div.actions", page > 1 && button("Previous", turn(-1)), h("span.quiet", `Page ${page} of ${count(data.page_count)}`), page < data.page_count && button("Next", turn(1))),
    ];
  }

  function crumbs() {
    return h("p.crumbs", link("broker", "Broker"), " / ", link(`broker/${tab}`, tab), ` / ${vhost}`);
  }

  function queue() {
    const { one, bindings, path } = data, isStream = one.type === "stream";
    return [
      crumbs(),
      header(h("span", one.name, " ", kind(one)), may("operate") && [!isStream && may("admin") && button("Peek", () => peek(path)), button("Publish…", () => publish(vhost, "", one.name)),
        may("admin") && [!isStream && button("Purge…", () => confirmed("Purge the queue", `${count(one.messages_ready)} messages are deleted.`, "Purge", "danger", () => again(() => send("DELETE", `${path}/contents`), "Purged")), "danger"),
          button("Delete…", () => confirmed("Delete the queue", `${one.name}, with its ${count(one.messages)} messages and its bindings.`, "Delete", "danger", async () => (await attempt(() => send("DELETE", path), "Deleted")) && (location.hash = "#/broker/queues")), "danger")]]),
      h("div.columns", rates(one.message_stats || {}, spans()), lengths(one)),
      h("div.columns",
        card("Queue", null, facts([["Ready", count(one.messages_ready)], ["Unacknowledged", count(one.messages_unacknowledged)], ["Consumers", count(one.consumers)], ["Memory", bytes(one.memory)], ["Policy", one.policy || "–"], ...(isStream ? [["First offset", count(one.first_offset)], ["Next offset", count(one.next_offset)]] : []), ...settings(one)])),
        card("Bindings", null, bound(bindings.filter(each => each.source), each => link(`broker/exchanges/${part(vhost)}/${part(each.source)}`, each.source)))),
      one.consumer_details?.length ? card("Consumers", null, h("ul.list", one.consumer_details.map(each => h("li", h("span.line", h("b", each.consumer_tag), h("span.line.quiet", each.channel_details?.name)), h("span.n.quiet", `prefetch ${each.prefetch_count || "any"}`))))) : null,
    ];
  }

  function exchange() {
    const { one, bindings } = data;
    const target = each => (each.destination_type === "queue" ? link(`broker/queues/${part(vhost)}/${part(each.destination)}`, each.destination) : link(`broker/exchanges/${part(vhost)}/${part(each.destination)}`, each.destination, h("span.tag", "exchange")));
    return [
      crumbs(),
      header(h("span", named(one), " ", h("span.tag", one.type)), may("operate") && button("Publish…", () => publish(vhost, one.name, ""))),
      h("div.columns", card("Exchange", null, facts([["Kind", one.type], ["Durable", one.durable ? "yes" : "no"], ["In / s", rate(speed(one, "publish_in"))], ["Out / s", rate(speed(one, "publish_out"))], ["Policy", one.policy || "–"], ...settings(one)])), card(`Bindings (${count(bindings.length)})`, null, bound(bindings, target))),
    ];
  }

  async function peek(path) {
    const found = await attempt(() => send("POST", `${path}/get`, { count: 10, ackmode: "ack_requeue_true", encoding: "auto", truncate: 10000 }));
    if (found) dialog("The first messages", found.length ? h("div.peek", found.map(one => h("div", h("p.quiet", `${one.exchange || "(default)"} · ${one.routing_key} · ${bytes(one.payload_bytes)}${one.redelivered ? " · redelivered" : ""}`), codeBlock(one.payload)))) : h("p", "No message is ready."));
  }
}

function close(one) {
  const path = `broker/connections/${part(one.name)}`;
  return may("admin") && button("Close", () => confirmed("Close this connection", `${one.name}: its client may reconnect.`, "Close", "danger", () => attempt(() => send("DELETE", path), "Closed")), "small danger");
}

function publish(vhost, exchange, key) {
  const route = h("input", { id: "p-key", value: key }), payload = h("textarea", { id: "p-payload", rows: "6", class: "mono", spellcheck: "false" });
  const persistent = h("input", { type: "checkbox", checked: true });
  dialog(`Publish to ${exchange || "the default exchange"}`, h("div.form-rows", h("div.field", h("label", { for: "p-key" }, "Routing key"), route), h("div.field", h("label", { for: "p-payload" }, "Payload"), payload), h("label.check", persistent, "Persistent")),
    close => button("Publish", async () => {
      const body = { properties: { delivery_mode: persistent.checked ? 2 : 1 }, routing_key: route.value, payload: payload.value, payload_encoding: "string" };
      const done = await attempt(() => send("POST", `broker/exchanges/${part(vhost)}/${part(exchange || "amq.default")}/publish`, body));
      if (!done) return;
      toast(done.routed ? "Published" : "Published, but unroutable: no queue is bound for it", done.routed ? "" : "bad");
      close();
    }, "primary"));
}

// What an empty list says, with a command that creates a first entry.
const NONE = {
  streams: ["A stream keeps its messages: any number of readers can read it, each from any offset.", `channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream", "x-max-age": "7D"})`],
  policies: ["A policy sets limits, dead lettering and more for all queues whose names match, even while they are in use.", `waybill broker policy set long '^orders' '{"max-length": 100000}'`],
};

function settings(one) {
  return Object.entries(one.arguments).map(([name, value]) => [h("span.mono", name), h("span.mono", typeof value === "string" ? value : JSON.stringify(value))]);
}

function kept(given) {
  return ["x-max-age", "x-max-length-bytes"].filter(name => given[name] !== undefined).map(name => (name === "x-max-age" ? given[name] : bytes(given[name]))).join(", ") || "all";
}

function kind(one) {
  return h("span.tags", h("span.tag", one.type || "classic"), one.durable ? null : h("span.tag", "transient"), one.exclusive ? h("span.tag", "exclusive") : null, one.policy ? h("span.tag", one.policy) : null);
}

function table(columns, items, key) {
  return h("table.plain", h("thead", h("tr", columns.map(([text, kind]) => h("th", { class: kind }, text || h("span.sr", "Actions"))))),
    h("tbody", items.map(one => h("tr", { key: key(one) }, columns.map(([, kind, cell]) => h("td", { class: kind }, cell(one)))))));
}

function bound(bindings, target) {
  return bindings.length ? h("ul.list", bindings.slice(0, 200).map(one => h("li", { key: one.properties_key + one.destination + one.source }, h("span.line", target(one)), h("span.mono.quiet", one.routing_key || "–")))) : h("p.quiet.pad", "None.");
}

function samples(found, isCount) {
  const values = (found?.samples || []).slice().reverse();
  if (!isCount) return values.map(one => one.sample);
  // Samples are running totals: draw their differences, per second.
  return values.slice(1).map((one, index) => Math.max(0, (one.sample - values[index].sample) / ((one.timestamp - values[index].timestamp) / 1000 || 1)));
}

function rates(stats, spans) {
  return card("Messages per second", spans, lines([["in", samples(stats.publish_details, true), "blue"], ["out", samples(stats.deliver_get_details, true), "green"], ["acknowledged", samples(stats.ack_details, true), "violet"]], rate));
}

function lengths(totals) {
  return card("Messages", null, lines([["ready", samples(totals.messages_ready_details), "blue"], ["unacknowledged", samples(totals.messages_unacknowledged_details), "amber"]], short));
}
