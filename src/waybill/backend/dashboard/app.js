// The frame around all pages: routing, navigation, keyboard, sign-in, and when a page is drawn again.
//
// A page is a module with `open(place)`: it returns {title, load(), draw(), table?, close?}. `load` asks the server,
// `draw` returns elements. Addresses are `#/page/id?filter=...`, so that each can be shared.

import { follow, hasKey, login, may, session, setKey } from "./api.js";
import { h, icon, show } from "./dom.js";
import { button, dialog, toast } from "./parts.js";
import * as audit from "./audit.js";
import * as broker from "./broker.js";
import * as cron from "./cron.js";
import * as enqueue from "./enqueue.js";
import * as failures from "./failures.js";
import * as job from "./job.js";
import * as jobs from "./jobs.js";
import * as operations from "./operations.js";
import * as overview from "./overview.js";
import * as pipeline from "./pipeline.js";
import * as queues from "./queues.js";
import * as workers from "./workers.js";
import * as workflows from "./workflows.js";

const PAGES = { overview, jobs, job, failures, queues, workers, cron, workflows, workflow: workflows, enqueue, operations, audit, broker, pipeline };
const SECTIONS = [
  ["", [["overview", "Overview", "o"], ["jobs", "Jobs", "j"], ["failures", "Failures", "f"]]],
  ["Run", [["queues", "Queues", "q"], ["workers", "Workers", "w"], ["cron", "Cron", "c"], ["workflows", "Workflows", "l"], ["operations", "Operations", "p"]]],
  ["System", [["broker", "Broker", "b"], ["pipeline", "Pipeline", "i"], ["audit", "Audit log", "a", "admin"]]],
];
// Pages about all tenants, which no single tenant may see.
const SHARED = new Set(["audit", "broker", "pipeline"]);
const PARENTS = { job: "jobs", workflow: "workflows" };
const THEMES = ["system", "light", "dark"];
const THEME = "waybill-theme";

const app = document.getElementById("app");
const main = h("main", { id: "main", tabindex: "0" });
const aside = h("aside");
let page, address, live = "polling", loading = 0, pending = "", isOpen = false, unfollow;

// Routing -------------------------------------------------------------------------------------------------------------

export function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = (path || "overview").split("/");
  return { name: PAGES[name] ? name : "overview", id: decodeURIComponent(rest.join("/")), raw: path || "overview", query: Object.fromEntries(new URLSearchParams(query)) };
}

async function go() {
  const found = place();
  const same = page && address === `${found.name}/${found.id}` && page.change;
  address = `${found.name}/${found.id}`;
  if (same) return page.change(found);
  page?.close?.();
  page = PAGES[found.name].open(found);
  page.ready = false;
  isOpen = false;
  page.redraw = () => page?.ready && drawPage();
  document.title = `${page.title} · Waybill`;
  drawAside(found.name);
  show(main, h("div.loading", { "aria-busy": "true" }));
  main.scrollTop = 0;
  await refresh();
  main.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  main.focus({ preventScroll: true });
}

async function refresh() {
  const mine = page, round = ++loading;
  try {
    await mine.load();
  } catch (error) {
    if (error.status === 401) return ask(error.message);
    if (mine !== page) return;
    if (mine.ready) return;
    show(main, h("div.empty", { role: "alert" }, h("h1", error.status === 404 ? "Not found" : error.status === 403 ? "Not allowed" : "The server does not respond"), h("p", error.message), button("Try again", refresh)));
    return;
  }
  if (mine !== page || round < loading - 1) return;
  mine.ready = true;
  drawPage();
}

function drawPage() {
  show(main, page.draw());
}

export { refresh };

// Navigation ----------------------------------------------------------------------------------------------------------

function drawAside(name) {
  const here = PARENTS[name] || name;
  const shown = items => items.filter(([id, , , role]) => may(role || "read") && (id !== "broker" || session.broker) && !(session.tenant && SHARED.has(id)));
  const item = ([id, text, letter]) => h("li", h("a", { href: `#/${id}`, "aria-current": here === id ? "page" : null, title: `${text} (g ${letter})` }, icon(id), h("span", text)));
  show(aside, [
    h("a.brand", { href: "#/overview" }, h("img", { src: "icon.svg", alt: "", width: "24", height: "24" }), h("span", "Waybill")),
    h("button", { type: "button", class: "icon-button menu", "aria-label": "Menu", "aria-expanded": String(isOpen), onclick: () => ((isOpen = !isOpen), drawAside(name)) }, icon("menu")),
    h("nav", { "aria-label": "Pages", class: isOpen ? "open" : null }, SECTIONS.map(([title, items]) => [title && h("p.nav-title", title), h("ul", shown(items).map(item))]),
      may("operate") && h("a.button.primary.enqueue", { href: "#/enqueue", "aria-current": here === "enqueue" ? "page" : null }, icon("enqueue"), h("span", "Enqueue"))),
    h("div.foot",
      h("span", { class: `live ${live}`, title: live === "live" ? "Changes appear as they happen" : "Refreshes every 5 seconds" }, h("i", { "aria-hidden": "true" }), live),
      h("button", { type: "button", class: "icon-button", "aria-label": `Theme: ${theme()}`, title: `Theme: ${theme()}`, onclick: nextTheme }, icon("theme")),
      hasKey() && h("button", { type: "button", class: "icon-button", "aria-label": "Sign out", title: `Sign out ${session.name}`, onclick: signOut }, icon("key")),
      h("button", { type: "button", class: "icon-button", "aria-label": "Keyboard help", title: "Keyboard (?)", onclick: help }, "?")),
  ]);
}

function theme() {
  return localStorage.getItem(THEME) || "system";
}

function nextTheme() {
  localStorage.setItem(THEME, THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
  setTheme();
  drawAside(place().name);
}

function setTheme() {
  document.documentElement.dataset.theme = theme();
}

// Keyboard ------------------------------------------------------------------------------------------------------------

const KEYS = [
  ["/", "Search jobs"], ["j k", "Next and previous row"], ["Enter", "Open the row"], ["x", "Select the row"], ["g o", "Overview"], ["g j", "Jobs"], ["g f", "Failures"],
  ["g q", "Queues"], ["g w", "Workers"], ["g c", "Cron"], ["g l", "Workflows"], ["g p", "Operations"], ["g b", "Broker"], ["g i", "Pipeline"], ["g a", "Audit log"], ["n", "Enqueue a job"], ["t", "Change the theme"], ["Esc", "Close, or leave a field"], ["?", "This help"],
];

function help() {
  if (document.querySelector("dialog[open]")) return;
  dialog("Keyboard", h("dl.keys", KEYS.map(([key, text]) => h("div", h("dt", key.split(" ").map(one => h("kbd", one))), h("dd", text)))));
}

function press(event) {
  const at = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (at.matches("input:not([type=checkbox]), textarea, select")) {
    if (event.key === "Escape") at.blur();
    return;
  }
  if (pending === "g") {
    pending = "";
    const found = SECTIONS.flatMap(([, items]) => items).find(([, , letter]) => letter === event.key);
    if (found) (event.preventDefault(), location.hash = `#/${found[0]}`);
    return;
  }
  const table = page?.table;
  const actions = {
    g: () => (pending = "g", setTimeout(() => (pending = ""), 1500)),
    "/": () => (document.getElementById("search") ? document.getElementById("search").focus() : location.hash = "#/jobs?focus=1"),
    j: () => table?.move(1), k: () => table?.move(-1), x: () => table?.pick(), n: () => may("operate") && (location.hash = "#/enqueue"),
    "?": help, t: nextTheme,
  };
  if (event.key === "Enter" && table && !at.matches("a, button, input, summary")) table.enter();
  else if (actions[event.key]) (event.preventDefault(), actions[event.key]());
}

// Sign-in -------------------------------------------------------------------------------------------------------------

function ask(text) {
  unfollow?.();
  unfollow = undefined;
  page?.close?.();
  page = undefined;
  const enter = async event => {
    event.preventDefault();
    const form = event.currentTarget;
    setKey(form.elements.key.value.trim(), form.elements.stays.checked);
    start();
  };
  app.className = "";
  show(app, h("main", { id: "main", class: "login" }, h("form.card", { onsubmit: enter },
    h("img", { src: "icon.svg", alt: "", width: "40", height: "40" }), h("h1", "Sign in to Waybill"),
    h("label", { for: "key" }, "API key"), h("input", { id: "key", name: "key", type: "password", autocomplete: "current-password", required: true, placeholder: "wb_…", autofocus: true }),
    h("p.hint", "An operator creates one: ", h("code", "waybill key add keys.json NAME --role read")),
    h("label.check", h("input", { type: "checkbox", name: "stays" }), "Keep it on this device"),
    text && h("p.bad", { role: "alert" }, text), h("button.button.primary", { type: "submit" }, "Sign in"))));
  document.getElementById("key").focus();
}

function signOut() {
  setKey("", false);
  location.reload();
}

async function start() {
  setTheme();
  try {
    await login();
  } catch (error) {
    if (error.status === 401) return ask(hasKey() ? error.message : "");
    show(app, h("main", { id: "main", class: "login" }, h("div.empty", { role: "alert" }, h("h1", "The server does not respond"), h("p", error.message), button("Try again", start))));
    return;
  }
  app.className = "frame";
  show(app, []);
  app.append(aside, main);
  unfollow?.();
  unfollow = follow(() => page?.ready && refresh(), state => state !== live && ((live = state), drawAside(place().name)));
  await go();
}

addEventListener("hashchange", () => session.version && app.className === "frame" && go());
addEventListener("keydown", press);
addEventListener("unhandledrejection", event => toast(event.reason?.message || "Something went wrong", "bad"));
setInterval(() => page?.ready && !document.hidden && drawPage(), 1000);
start();
