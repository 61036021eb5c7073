// Requests. The API key is sent in a header, so pages of other sites cannot make the browser send it. It is stored for
// this tab only or, if the user wants, on this device.

import { setClock } from "./format.js";

const BASE = new URL("../ojs/v1/", location.href.split("#")[0]);
const NAME = "waybill-key";
const RANKS = { read: 0, operate: 1, admin: 2 };

export const session = { role: "read", name: "", version: "" };
let key = sessionStorage.getItem(NAME) || localStorage.getItem(NAME) || "";

export class Refused extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function may(role) {
  return RANKS[session.role] >= RANKS[role];
}

export function hasKey() {
  return key !== "";
}

export function setKey(text, stays) {
  key = text;
  sessionStorage.removeItem(NAME);
  localStorage.removeItem(NAME);
  if (text) (stays ? localStorage : sessionStorage).setItem(NAME, text);
}

function headers() {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

export async function get(path, query) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query || {})) if (value !== "" && value !== undefined && value !== null) url.searchParams.set(name, value);
  return answer(await fetch(url, { headers: headers() }));
}

export async function send(method, path, body) {
  const content = body === undefined ? {} : { "Content-Type": "application/json" };
  return answer(await fetch(new URL(path, BASE), { method, headers: { ...headers(), ...content }, body: body === undefined ? undefined : JSON.stringify(body) }));
}

async function answer(response) {
  setClock(response.headers.get("Date"));
  const text = await response.text();
  let body = {};
  try {
    body = text ? JSON.parse(text) : {};
  } catch {
    throw new Refused(response.status, `The server answered ${response.status} without JSON.`, "");
  }
  if (!response.ok && response.status !== 207 && !(response.status === 422 && body.results)) {
    throw new Refused(response.status, body.error?.message || body.reason || `The server answered ${response.status}.`, body.error?.code);
  }
  return body;
}

export async function login() {
  Object.assign(session, await get("admin/session"));
}

// Calls `tell` when something has changed, at most once a second: when the server's stream reports a change or, without
// the stream, every few seconds. While the page is hidden, nothing is requested.
export function follow(tell, tellState) {
  let stop = new AbortController();
  let pause = 1000;
  const poll = setInterval(() => !document.hidden && tell(), 5000);
  const connect = async () => {
    try {
      const response = await fetch(new URL("admin/changes", BASE), { headers: headers(), signal: stop.signal });
      if (!response.ok) throw new Refused(response.status, "no stream", "");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        pause = 1000;
        tellState("live");
        if (value.includes("event: change") && !document.hidden) tell();
      }
    } catch (error) {
      if (stop.signal.aborted) return;
    }
    tellState("polling");
    setTimeout(connect, pause);
    pause = Math.min(pause * 2, 30000);
  };
  const look = () => {
    if (!document.hidden) tell();
  };
  document.addEventListener("visibilitychange", look);
  connect();
  return () => {
    stop.abort();
    clearInterval(poll);
    document.removeEventListener("visibilitychange", look);
  };
}
