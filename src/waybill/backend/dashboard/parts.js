// The building blocks of pages.

import { h, s } from "./dom.js";
import { ago, count, duration, exact } from "./format.js";

export const STATES = ["available", "active", "scheduled", "retryable", "pending", "completed", "discarded", "cancelled"];

export function badge(state) {
  return h("span", { class: `badge s-${state}` }, h("i", { "aria-hidden": "true" }), state);
}

// The maximum is left out for jobs that have ended: their handler or error may have lowered it since the push.
export function attempts(job, of) {
  const isOver = job.state === "completed" || job.state === "discarded" || job.state === "cancelled";
  return `${job.attempt}${job.max_attempts && !isOver ? `${of}${job.max_attempts}` : ""}`;
}

export function time(text) {
  return text ? h("time", { datetime: text, title: exact(text) }, ago(text)) : h("span.quiet", "–");
}

export function link(address, ...content) {
  return h("a", { href: `#/${address}` }, ...content);
}

export function button(text, onclick, kind = "", more = {}) {
  return h("button", { type: "button", class: `button ${kind}`, onclick, ...more }, text);
}

export function header(title, ...actions) {
  return h("header.head", h("h1", { id: "title" }, title), h("div.actions", ...actions));
}

export function card(title, more, ...content) {
  return h("section.card", title && h("div.card-head", h("h2", title), more), ...content);
}

export function empty(title, text, code) {
  return h("div.empty", h("h2", title), h("p", text), code && codeBlock(code));
}

export function codeBlock(text) {
  const copy = async event => {
    const place = event.currentTarget;
    await navigator.clipboard.writeText(text);
    place.textContent = "Copied";
    setTimeout(() => (place.textContent = "Copy"), 1500);
  };
  return h("div.code", h("pre", { tabindex: "0" }, h("code", text)), button("Copy", copy, "small"));
}

// A traceback, innermost frame last. Frames of libraries are faded: the cause is mostly in the program's own files.
export function traceBlock(trace) {
  const text = Array.isArray(trace) ? trace.join("\n") : trace;
  const box = codeBlock(text);
  box.querySelector("code").replaceChildren(...text.split("\n").map(line => h("span", { class: /[/\\](site-packages|dist-packages|waybill|lib[/\\]python[\d.]+)[/\\]/.test(line) ? "quiet" : null }, line, "\n")));
  return box;
}

export function facts(pairs) {
  return h("dl.facts", pairs.filter(Boolean).map(([name, value]) => h("div", h("dt", name), h("dd", value ?? "–"))));
}

// A sparkline. `values` has null where nothing is known.
export function spark(values, kind, label) {
  const width = 160, height = 36;
  const top = Math.max(1, ...values.map(one => one || 0));
  const step = width / (values.length - 1);
  const points = values.map((one, index) => [index * step, height - 2 - ((one || 0) / top) * (height - 6)]);
  const line = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
  return s("svg", { class: `spark ${kind}`, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("polygon", { points: `0,${height} ${line} ${width},${height}` }), s("polyline", { points: line }));
}

// A line chart with a scale and the current values; `series` are [name, values, colour].
export function lines(series, write) {
  const width = 600, height = 120, known = series.filter(([, values]) => values.length > 1);
  const top = Math.max(1, ...known.flatMap(([, values]) => values));
  const curve = ([, values, kind]) => s("polyline", { class: kind, points: values.map((one, index) => `${((index * width) / (values.length - 1)).toFixed(1)},${(height - 4 - (one / top) * (height - 8)).toFixed(1)}`).join(" ") });
  return h("div.lines", h("span.scale", { "aria-hidden": "true" }, write(top)),
    s("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": known.length ? series.map(([name, values]) => `${name} ${write(values.at(-1) || 0)}`).join(", ") : "nothing yet" }, [4, height - 4].map(y => s("line", { x1: 0, x2: width, y1: y, y2: y })), known.map(curve)),
    h("p.legend", series.map(([name, values, kind]) => h("span", { class: `l-${kind}` }, `${name} `, h("b", write(values.at(-1) || 0))))));
}

// The last hour of all jobs or of one queue.
export function lastHour(series) {
  if (![...series.completed, ...series.failed].some(Boolean)) return card("Last hour", null, h("p.quiet.pad", "No job has ended."));
  return card("Last hour", h("span.legend", h("span.l-good", "completed"), h("span.l-bad", "failed")), chart(series),
    h("div.axis", { "aria-hidden": "true" }, h("span", "60 min ago"), h("span", "30 min ago"), h("span", "now")));
}

// A bar for each step: completed jobs, and below the line failed ones.
export function chart(series) {
  const width = 720, height = 132, base = 104;
  const { completed, failed } = series;
  const top = Math.max(1, ...completed.map(one => one || 0));
  const worst = Math.max(1, ...failed.map(one => one || 0));
  const step = width / completed.length;
  const bars = completed.flatMap((one, index) => {
    const x = index * step + 1, tall = ((one || 0) / top) * (base - 12), deep = ((failed[index] || 0) / worst) * 20;
    const title = s("title", `${one || 0} completed, ${failed[index] || 0} failed`);
    return [s("g", title, s("rect", { class: "hit", x, y: 0, width: step - 2, height }),
      s("rect", { class: "good", x, y: base - tall, width: step - 2, height: tall, rx: 1 }),
      s("rect", { class: "bad", x, y: base + 3, width: step - 2, height: deep, rx: 1 }))];
  });
  return h("div.chart-box", h("span.scale", { "aria-hidden": "true" }, `${count(top)} in ${series.step_seconds === 60 ? "a minute" : duration(series.step_seconds * 1000)}`),
    s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `Jobs completed and failed in each step of ${series.step_seconds} seconds` },
      [12, base / 2 + 6, base + 1].map(y => s("line", { x1: 0, x2: width, y1: y, y2: y })), bars));
}

// JSON as a tree. Large parts are collapsed at first.
export function tree(value, name, depth = 0) {
  const label = name === undefined ? null : h("span.t-name", `${name}: `);
  if (value === null || typeof value !== "object") {
    const kind = value === null ? "null" : typeof value;
    return h("div.t-leaf", label, h("span", { class: `t-${kind}` }, JSON.stringify(value)));
  }
  const entries = Object.entries(value);
  const what = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  if (!entries.length) return h("div.t-leaf", label, h("span.quiet", Array.isArray(value) ? "[]" : "{}"));
  const shown = entries.slice(0, 200);
  return h("details.t", { open: depth < 2 && entries.length <= 50 }, h("summary", label, h("span.quiet", what)),
    shown.map(([key, one]) => tree(one, key, depth + 1)), entries.length > 200 && h("p.quiet", `and ${entries.length - 200} more`));
}

export function toast(text, kind = "") {
  const one = h("div", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(one);
  setTimeout(() => one.remove(), kind === "bad" ? 8000 : 4000);
}

// Runs the action of a button, and shows its result or error.
export async function attempt(action, done) {
  try {
    const found = await action();
    if (done) toast(typeof done === "function" ? done(found) : done);
    return found;
  } catch (error) {
    toast(error.message, "bad");
    return undefined;
  }
}

export function dialog(title, content, ...actions) {
  const close = () => box.close();
  const box = h("dialog", { "aria-labelledby": "dialog-title", onclose: () => box.remove() },
    h("h2", { id: "dialog-title" }, title), content, h("div.actions", ...actions.map(one => one(close)), button("Close", close)));
  document.body.append(box);
  box.showModal();
  return box;
}

export function confirmed(title, text, verb, kind, action) {
  dialog(title, h("p", text), close => button(verb, async () => (close(), await action()), kind));
}
