// Formats numbers, times and durations, the same on all pages.

const whole = new Intl.NumberFormat("en");
const moment = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
let skew = 0;

export function setClock(header) {
  const found = Date.parse(header) - Date.now();
  if (Math.abs(found) > 2000 && Math.abs(found - skew) > 2000) skew = found;
}

export const now = () => Date.now() + skew;

export function count(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

export function short(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) return `${(value / (unit === "k" ? 1e3 : size)).toFixed(1).replace(/\.0$/, "")}${unit}`;
  }
  return whole.format(value);
}

export function rate(value) {
  return value >= 100 ? whole.format(Math.round(value)) : value >= 10 ? value.toFixed(1) : (value || 0).toFixed(2).replace(/\.?0+$/, "") || "0";
}

export function bytes(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  for (const [size, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (value >= size) return `${(value / size).toFixed(value >= 10 * size ? 0 : 1)} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 1) return "< 1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function between(first, second) {
  const passed = Date.parse(second) - Date.parse(first);
  return Number.isNaN(passed) ? undefined : Math.max(0, passed);
}

export function ago(text) {
  const passed = now() - Date.parse(text);
  if (Number.isNaN(passed)) return "–";
  if (passed < 0) return `in ${coarse(-passed)}`;
  return passed < 1500 ? "now" : `${coarse(passed)} ago`;
}

export function age(text) {
  const passed = now() - Date.parse(text);
  return Number.isNaN(passed) ? "–" : coarse(Math.max(0, passed));
}

function coarse(ms) {
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

// The time of day to the millisecond; with the date unless it is that of `since`.
export function precise(text, since) {
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) return String(text);
  const clock = `${time.toLocaleTimeString("en-GB")}.${String(time.getMilliseconds()).padStart(3, "0")}`;
  return since && new Date(since).toDateString() === time.toDateString() ? clock : `${day.format(time)}, ${clock}`;
}

export function exact(text) {
  const time = Date.parse(text);
  return Number.isNaN(time) ? String(text) : moment.format(time);
}
