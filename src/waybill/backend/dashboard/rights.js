// Users, permissions and policies of the broker.

import { get, may, send } from "./api.js";
import { h } from "./dom.js";
import { attempt, button, confirmed, dialog, toast } from "./parts.js";

const part = encodeURIComponent;
const KINDS = ["queues", "classic_queues", "quorum_queues", "streams", "exchanges", "all"];
const TAGS = ["", "management", "policymaker", "monitoring", "administrator"];

// The buttons above a list and in its rows. `again` loads the list again.
export function adds(tab, again) {
  if (!may("admin")) return null;
  return tab === "users" ? button("Add a user…", () => user(again), "primary") : tab === "policies" ? button("Add a policy…", () => policy(null, again), "primary") : null;
}

export function changes(tab, one, again) {
  if (!may("admin")) return null;
  if (tab === "users") return h("div.actions", button("Permissions…", () => permissions(one, again), "small"), remove("user", one.name, `users/${part(one.name)}`, "Its connections are closed.", again));
  return h("div.actions", button("Edit…", () => policy(one, again), "small"), remove("policy", one.name, `policies/${part(one.vhost)}/${part(one.name)}`, "Its settings no longer apply.", again));
}

function remove(what, name, path, outcome, again) {
  return button("Delete…", () => confirmed(`Delete the ${what}`, `${name}: ${outcome}`, "Delete", "danger", () => attempt(() => send("DELETE", `broker/${path}`), "Deleted").then(again)), "small danger");
}

function form(title, verb, fields, save, again) {
  const place = h("div.form-rows", fields.map(([text, input]) => h("div.field", h("label", { for: input.id }, text), input)));
  dialog(title, place, close => button(verb, async () => {
    const wrong = place.querySelector(":invalid");
    if (wrong) return wrong.reportValidity();
    if ((await attempt(save, "Saved")) !== undefined) (close(), await again());
  }, "primary"));
}

function choice(id, values, chosen) {
  return h("select", { id }, values.map(one => h("option", { value: one, selected: one === chosen }, one || "none")));
}

function text(id, value, more = {}) {
  return h("input", { id, value, autocomplete: "off", ...more });
}

async function hosts() {
  return (await get("broker/vhosts", { columns: "name" })).map(one => one.name);
}

function user(again) {
  const name = text("u-name", "", { required: true }), password = text("u-password", "", { type: "password", autocomplete: "new-password", required: true }), tag = choice("u-tag", TAGS, "");
  form("Add a user", "Add", [["Name", name], ["Password", password], ["Role in the management API", tag]], () => send("PUT", `broker/users/${part(name.value)}`, { password: password.value, tags: tag.value }), again);
}

async function permissions(one, again) {
  const known = await attempt(hosts);
  if (!known) return;
  const host = choice("u-host", known, one.permissions?.[0]?.vhost), rights = ["configure", "write", "read"].map(name => text(`u-${name}`, ".*"));
  const fill = () => {
    const own = one.permissions?.find(each => each.vhost === host.value);
    ["configure", "write", "read"].forEach((name, index) => (rights[index].value = own ? own[name] : ".*"));
  };
  host.onchange = fill;
  fill();
  form(`Permissions of ${one.name}`, "Save", [["Virtual host", host], ["Configure: names that match", rights[0]], ["Write", rights[1]], ["Read", rights[2]]],
    () => send("PUT", `broker/permissions/${part(host.value)}/${part(one.name)}`, { configure: rights[0].value, write: rights[1].value, read: rights[2].value }), again);
}

async function policy(one, again) {
  const known = one ? [one.vhost] : await attempt(hosts);
  if (!known) return;
  const name = text("y-name", one?.name || "", { required: true, readonly: Boolean(one) }), host = choice("y-host", known, one?.vhost), pattern = text("y-pattern", one?.pattern || "^orders", { required: true });
  const kind = choice("y-kind", KINDS, one?.["apply-to"] || "queues"), priority = text("y-priority", String(one?.priority ?? 0), { type: "number" });
  const definition = h("textarea", { id: "y-definition", rows: "5", class: "mono", spellcheck: "false" });
  definition.value = JSON.stringify(one?.definition || { "max-length": 100000, "overflow": "reject-publish" }, null, 2);
  form(one ? "Edit the policy" : "Add a policy", "Save", [["Name", name], ["Virtual host", host], ["Names that match", pattern], ["Applies to", kind], ["Priority", priority], ["Definition, a JSON object", definition]], async () => {
    let wanted;
    try {
      wanted = JSON.parse(definition.value);
    } catch (error) {
      toast(`Not JSON: ${error.message}`, "bad");
      return undefined;
    }
    return send("PUT", `broker/policies/${part(host.value)}/${part(name.value)}`, { pattern: pattern.value, "apply-to": kind.value, priority: Number(priority.value), definition: wanted });
  }, again);
}
