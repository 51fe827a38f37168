// Requests to the broker: the session, its token, errors in words, and whether the broker answers at all.

import { useEffect, useRef, useState } from "preact/hooks";

export interface Session {
  user: string;
  tags: string[];
  csrf_token: string | null;
}

/** What the broker refused, or that it did not answer (status 0). */
export class Refusal extends Error {
  constructor(readonly status: number, text: string) {
    super(text);
  }
}

/** A value that views follow. */
export class Followed<T> {
  private readonly followers = new Set<() => void>();
  constructor(private held: T) {}
  get value(): T {
    return this.held;
  }
  set value(value: T) {
    if (value === this.held) return;
    this.held = value;
    for (const tell of [...this.followers]) tell();
  }
  use(): T {
    const [, redraw] = useState(0);
    const shown = this.held;
    useEffect(() => {
      const tell = () => redraw((count) => count + 1);
      this.followers.add(tell);
      if (this.held !== shown) tell(); // It changed between the drawing and now: an effect runs later than that.
      return () => void this.followers.delete(tell);
    }, []);
    return this.held;
  }
}

/** undefined: it was not asked for yet; null: no user is logged in. */
export const session = new Followed<Session | null | undefined>(undefined);
/** Whether the broker answers. */
export const reachable = new Followed(true);
/** Counts how often the broker was found again: queries ask anew. */
const findings = new Followed(0);

/** Says that a page asks, so that a refusal does not make the browser ask for a password. */
const OF_PAGE = { "x-requested-with": "brokerd" };
const AGAIN_MS = 1500;
let looking = false;

/** One request.  The answer's JSON; undefined where it has no content. */
export async function ask<T>(path: string, method = "GET", body?: unknown): Promise<T> {
  const headers: Record<string, string> = { ...OF_PAGE, accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (method !== "GET" && session.value?.csrf_token) headers["x-csrf-token"] = session.value.csrf_token;
  let response: Response;
  let text: string;
  try {
    response = await fetch(path, {
      method, headers, credentials: "same-origin", body: body === undefined ? undefined : JSON.stringify(body),
    });
    text = await response.text();
  } catch {
    lose();
    throw new Refusal(0, "The broker does not answer.");
  }
  if (response.status === 503 && !path.includes("/health/")) lose();
  else if (response.status < 500) reachable.value = true;
  const found = parse(text);
  if (response.ok) return found as T;
  const named = found as { detail?: string; reason?: string } | undefined;
  const why = named?.detail ?? named?.reason ?? `${response.status} ${response.statusText}`;
  if (response.status === 401 && session.value && !(await isLoggedIn())) session.value = null;
  throw new Refusal(response.status, why);
}

function parse(text: string): unknown {
  try {
    return text ? JSON.parse(text) : undefined;
  } catch {
    return undefined;
  }
}

/** An operation of /api/v2. */
export function perform<T>(noun: string, verb: string, body: object = {}): Promise<T> {
  return ask<T>(`/api/v2/${noun}/${verb}`, "POST", body);
}

// RabbitMQ says 401 also to a user who lacks a right: only the session tells whether it has ended.
async function isLoggedIn(): Promise<boolean> {
  try {
    return (await fetch("/api/v2/session", { headers: OF_PAGE, credentials: "same-origin" })).status !== 401;
  } catch {
    return true;
  }
}

export async function findSession(): Promise<void> {
  try {
    session.value = await ask<Session>("/api/v2/session");
  } catch (error) {
    if ((error as Refusal).status) session.value = null;
  }
}

export async function logIn(user: string, password: string): Promise<void> {
  session.value = await ask<Session>("/api/v2/session", "POST", { user, password });
}

export async function logOut(): Promise<void> {
  await ask("/api/v2/session", "DELETE").catch(() => undefined);
  session.value = null;
}

/** Whether the user's tags include this one. */
export function hasTag(tag: "management" | "policymaker" | "monitoring" | "administrator"): boolean {
  const tags = session.value?.tags ?? [];
  if (tags.includes("administrator")) return true;
  if (tag === "management") return tags.some((each) => ["management", "policymaker", "monitoring"].includes(each));
  return tags.includes(tag);
}

// --- the broker is lost, and found again

function lose(): void {
  reachable.value = false;
  if (looking) return;
  looking = true;
  setTimeout(look, AGAIN_MS);
}

async function look(): Promise<void> {
  looking = false;
  try {
    const response = await fetch("/api/v2/session", { headers: OF_PAGE, credentials: "same-origin" });
    if (response.status >= 500) throw new Error();
    if (response.status === 401) session.value = null;
    else if (!session.value) session.value = await response.json();
    reachable.value = true;
    findings.value += 1;
  } catch {
    lose();
  }
}

// --- what views ask for

export interface Asked<T> {
  data: T | undefined;
  error: Refusal | undefined;
  again: () => void;
}

/** What stands at a path, asked for anew each few seconds while the page is seen.  null: ask for nothing. */
export function useAsked<T>(path: string | null, everySeconds = 5, body?: object): Asked<T> {
  const [state, setState] = useState<{ path: string | null; data?: T; error?: Refusal }>({ path });
  const [count, setCount] = useState(0);
  const found = findings.use();
  const bodyText = body && JSON.stringify(body);
  const number = useRef(0);
  useEffect(() => {
    if (path === null) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let ended = false;
    const once = async () => {
      const mine = ++number.current;
      const begin = performance.now();
      let next: { path: string; data?: T; error?: Refusal };
      try {
        next = { path, data: await ask<T>(path, body ? "POST" : "GET", body) };
      } catch (error) {
        next = { path, error: error as Refusal };
      }
      if (ended || mine !== number.current) return;
      // What was seen stays while the broker is away or cannot say it, and so do the forms that are open there.
      const status = next.error?.status;
      setState((before) => {
        if (before.path !== path || before.data === undefined) return next;
        return status === 0 ? { ...before } : status !== undefined && status >= 500 ? { ...before, error: next.error } : next;
      });
      // What costs the broker much is asked for less often.
      if (everySeconds) timer = setTimeout(tick, Math.max(1000 * everySeconds, 10 * (performance.now() - begin)));
    };
    const tick = () => {
      if (document.hidden) timer = setTimeout(tick, 1000);
      else void once();
    };
    void once();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [path, bodyText, everySeconds, count, found]);
  const mine = state.path === path;
  return {
    data: state.data, error: mine ? state.error : undefined, again: () => setCount((before) => before + 1),
  };
}

const allowed = new Map<string, Promise<Set<string>>>();
/** How many paths the broker was asked about, and has not answered. */
export const methodsAsked = new Followed(0);

/** The methods that the broker has at such a path: what it cannot do is not offered. */
export function useMethods(path: string): Set<string> {
  const [methods, setMethods] = useState<Set<string>>(new Set());
  useEffect(() => {
    if (!allowed.has(path)) {
      const asked = fetch(path, { method: "OPTIONS", credentials: "same-origin" }).then((response) =>
        new Set((response.ok ? response.headers.get("allow") ?? "" : "").split(/\s*,\s*/)));
      methodsAsked.value += 1;
      asked.catch(() => allowed.delete(path)).finally(() => { methodsAsked.value -= 1; });
      allowed.set(path, asked);
    }
    void allowed.get(path)!.then(setMethods, () => undefined);
  }, [path]);
  return methods;
}

/** Whether the broker has that operation. */
export const useOperation = (noun: string, verb: string): boolean =>
  useMethods(`/api/v2/${noun}/${verb}`).has("POST");

/** A name in a path. */
export const inPath = encodeURIComponent;
