// Formats numbers, durations and times, in the same way on every view.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const UNKNOWN = "–";

export function count(value) {
  return value === null || value === undefined ? UNKNOWN : WHOLE.format(value);
}

/** 12.3K, 4.5M; numbers below 1,000 have no decimals. */
export function short(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return value < 1000 ? WHOLE.format(value) : SHORT.format(value);
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return UNKNOWN;
  if (perSecond === 0) return "0";
  if (perSecond < 0.1) return `${short(Math.max(1, perSecond * 3600))} an hour`;
  return `${perSecond < 10 ? perSecond.toFixed(1) : short(perSecond)}/s`;
}

/** The period that a line's rate covers. */
export function mean({ rate_ms: ms }) {
  return ms ? `${duration(ms)} mean` : "";
}

export function duration(ms) {
  if (ms === null || ms === undefined) return UNKNOWN;
  const s = Math.max(ms, 0) / 1000;
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return both(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min");
  const days = Math.floor(s / 86400);
  return both(days, "d", days < 100 ? Math.floor((s % 86400) / 3600) : 0, "h");
}

function both(n, unit, rest, smaller) {
  return rest ? `${n} ${unit} ${rest} ${smaller}` : `${n} ${unit}`;
}

export function ago(ms, now) {
  return ms === null || ms === undefined ? "never" : `${duration(now - ms)} ago`;
}

/** 2013-12-30 15:00, UTC; only the time if it is today. */
export function moment(ms, now) {
  if (ms === null || ms === undefined) return UNKNOWN;
  const iso = new Date(ms).toISOString();
  const today = now && iso.slice(0, 10) === new Date(now).toISOString().slice(0, 10);
  return today ? iso.slice(11, 19) : `${iso.slice(0, 10)} ${iso.slice(11, 16)}`;
}

const MOMENT = /(?<![\w:-])(\d{4}-\d\d-\d\d)(?:T(\d\d)(?::(\d\d))?| (\d\d):(\d\d))(?::(\d\d))?(?:\.\d+)?(?:Z|\+00:00)?(?![\w+-]|[:.]\d)/g;

/** Return a text with all times and hourly windows in the page's format: 2013-12-30 15:00 (UTC), with seconds unless they are 0. */
export function times(text) {
  return text.replace(MOMENT, (_, day, hour, minute = "00", plainHour, plainMinute, second = "00") => `${day} ${hour ?? plainHour}:${hour ? minute : plainMinute}${second === "00" ? "" : `:${second}`}`);
}

/** Return one time in this format, if it is known. */
export function iso(text) {
  return text ? times(text) : UNKNOWN;
}

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  if (!unit) return counted(Math.round(size), "byte");
  return `${size < 10 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

export function counted(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}
