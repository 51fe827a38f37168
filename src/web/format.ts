// Numbers, times and values as people read them.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (value: number | undefined | null): string => (value == null ? "–" : whole.format(value));

export function rate(value: number | undefined | null): string {
  if (value == null) return "–";
  return value > 0 && value < 10 ? `${short.format(value)}/s` : `${whole.format(Math.round(value))}/s`;
}

export function octets(value: number | undefined | null): string {
  if (value == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${short.format(value)} ${units[at]}`;
}

export function span(seconds: number): string {
  const parts: [number, string][] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = parts.findIndex(([size]) => seconds >= size);
  if (at < 0) return "0 s";
  const [size, unit] = parts[at];
  const first = Math.floor(seconds / size);
  const next = parts[at + 1];
  const rest = next && first < 10 ? Math.floor((seconds % size) / next[0]) : 0;
  return rest ? `${first} ${unit} ${rest} ${next[1]}` : `${first} ${unit}`;
}

/** A moment in ms since the epoch. */
export const moment = (ms: number): string => new Date(ms).toLocaleString();

/** A moment in ns since the epoch, to the microsecond. */
export function fine(ns: number): string {
  const date = new Date(ns / 1e6);
  const micro = String(Math.floor(ns / 1e3) % 1e6).padStart(6, "0");
  return `${date.toLocaleDateString()} ${date.toLocaleTimeString([], { hour12: false })}.${micro}`;
}

export const value = (each: unknown): string => (typeof each === "string" ? each : JSON.stringify(each));
export const plural = (number: number, word: string): string =>
  `${count(number)} ${number === 1 ? word : word.endsWith("y") ? `${word.slice(0, -1)}ies` : `${word}s`}`;
