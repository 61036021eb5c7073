import { get, may, send } from "./api.js";
import { h, keep } from "./dom.js";
import { button, card, empty, header, toast } from "./parts.js";

export function open(at) {
  let queues, types, schema, wrong = "", timer;
  const form = keep(h("form.card.form", { onsubmit: submit },
    field("Type", h("input", { id: "f-type", name: "type", required: true, value: at.query.type || "", list: "types", placeholder: "email.send", autocomplete: "off", oninput: look, "data-own": true })),
    h("datalist", { id: "types" }),
    field("Arguments, a JSON array", h("textarea", { id: "f-args", name: "args", rows: "6", class: "mono", spellcheck: "false", oninput: check })),
    h("p", { id: "f-hint", class: "hint", role: "status" }, "[] is a job without arguments."),
    h("div.pair", field("Queue", h("input", { id: "f-queue", name: "queue", list: "queues", placeholder: "default", autocomplete: "off", "data-own": true })), field("Priority", h("input", { id: "f-priority", name: "priority", type: "number", min: "-100", max: "100", placeholder: "0", "data-own": true }))),
    h("datalist", { id: "queues" }),
    h("div.pair", field("Not before", h("input", { id: "f-at", name: "at", type: "datetime-local", "data-own": true })), field("Comma-separated tags", h("input", { id: "f-tags", name: "tags", autocomplete: "off", "data-own": true }))),
    h("div.actions", h("button", { type: "submit", class: "button primary" }, "Enqueue"))));
  form.elements.args.value = "[]";
  const self = {
    title: "Enqueue",
    async load() {
      if (queues) return;
      const [found, jobs] = await Promise.all([get("admin/queue-summaries", { limit: 100 }), get("admin/search", { limit: 200 })]);
      queues = found.items.map(one => one.name);
      types = [...new Set(jobs.items.map(one => one.type))].sort();
      form.querySelector("#queues").replaceChildren(...queues.map(one => h("option", { value: one })));
      form.querySelector("#types").replaceChildren(...types.map(one => h("option", { value: one })));
      if (at.query.type) look();
    },
    draw: () => (may("operate") ? [header("Enqueue a job"), form] : [header("Enqueue a job"), empty("Not allowed", "Your key is read-only.")]),
    close: () => clearTimeout(timer),
  };
  return self;

  function field(text, input) {
    return h("div.field", h("label", { for: input.id }, text), input);
  }

  function setHint(text, isBad) {
    const place = form.querySelector("#f-hint");
    place.textContent = text;
    place.className = isBad ? "hint bad" : "hint";
  }

  function look() {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const type = form.elements.type.value.trim();
      schema = type ? await get(`schemas/${encodeURIComponent(type)}`).catch(() => undefined) : undefined;
      check();
    }, 250);
  }

  // A quick check while typing. The server validates against the whole schema.
  function check() {
    let args;
    try {
      args = JSON.parse(form.elements.args.value);
      wrong = Array.isArray(args) ? "" : "The arguments must be an array: [ … ]";
    } catch (error) {
      wrong = `Not JSON: ${error.message}`;
    }
    const rules = schema?.schema?.schema;
    if (!wrong && rules?.type === "object") {
      const missing = (rules.required || []).filter(name => !(args[0] && name in Object(args[0])));
      if (missing.length) wrong = `The schema of this type requires ${missing.join(", ")}.`;
      else for (const [name, one] of Object.entries(rules.properties || {})) if (args[0]?.[name] !== undefined && !fits(args[0][name], one.type)) wrong = `${name} must be ${one.type}.`;
    }
    setHint(wrong || (rules ? `Passes a quick check against the schema ${schema.version}.` : "This type has no schema."), Boolean(wrong));
    return args;
  }

  async function submit(event) {
    event.preventDefault();
    const args = check(), { type, queue, priority, at: when, tags } = form.elements;
    if (wrong) return form.elements.args.focus();
    const options = { queue: queue.value.trim() || undefined, priority: priority.value === "" ? undefined : Number(priority.value), delay_until: when.value ? new Date(when.value).toISOString() : undefined, tags: tags.value.trim() ? tags.value.split(",").map(one => one.trim()).filter(Boolean) : undefined };
    try {
      const done = await send("POST", "jobs", { type: type.value.trim(), args, options });
      toast("Enqueued");
      location.hash = `#/job/${done.job?.id || done.id}`;
    } catch (error) {
      setHint(error.message, true);
    }
  }
}

function fits(value, type) {
  const own = value === null ? "null" : Array.isArray(value) ? "array" : Number.isInteger(value) ? "integer" : typeof value;
  return type === undefined || [type].flat().some(one => one === own || (one === "number" && own === "integer"));
}
