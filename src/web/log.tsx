// The last lines of the broker's log, as they come.

import { useEffect, useState } from "preact/hooks";
import { reachable } from "./api.ts";
import { moment } from "./format.ts";
import { Tag } from "./parts.tsx";

interface Line { number: number; at: number; level: string; text: string }

const SHOWN = 1000;
const AGAIN_MS = 3000;

/** The lines since the broker's start, the latest first, as the broker sends them. */
function useLines(level: string, contains: string): { lines: Line[]; error: string } {
  const [lines, setLines] = useState<Line[]>([]);
  const [error, setError] = useState("");
  const found = reachable.use();
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let waiting: Line[] = []; // drawn together: the first thousand come at once
    let drawn: number | undefined;
    setLines([]);
    const source = new EventSource(`/api/v2/log?${new URLSearchParams({ level, contains })}`);
    source.addEventListener("line", (event) => {
      waiting.push(JSON.parse((event as MessageEvent<string>).data) as Line);
      setError("");
      drawn ??= requestAnimationFrame(() => {
        const more = waiting.reverse();
        waiting = [];
        drawn = undefined;
        setLines((before) => [...more, ...before].slice(0, SHOWN));
      });
    });
    source.addEventListener("failed", (event) => {
      setError((JSON.parse((event as MessageEvent<string>).data) as { detail: string }).detail);
      source.close();
    });
    source.addEventListener("error", () => {
      // A browser tries again by itself, but not after a refusal.
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(() => setError("The broker does not send its log."), AGAIN_MS);
    });
    return () => {
      source.close();
      clearTimeout(timer);
      if (drawn !== undefined) cancelAnimationFrame(drawn);
    };
  }, [level, contains, found]); // A broker that was found again counts its lines anew.
  return { lines, error };
}

export function Log() {
  const [level, setLevel] = useState("info");
  const [contains, setContains] = useState("");
  const { lines, error } = useLines(level, contains);
  return (
    <>
      <div class="title"><h1>Log</h1><span class="space" />
        <a href="/api/logs" download="logs.txt">Download</a></div>
      <section class="card">
        <p class="quiet">The last lines since the broker's start, as they come. The latest stands first.</p>
        <form class="tools" onSubmit={(event) => event.preventDefault()}>
          <input class="search" type="search" aria-label="With the text" placeholder="Filter the lines ( / )" value={contains}
            onInput={(event) => setContains(event.currentTarget.value)} />
          <select aria-label="Show" value={level} onChange={(event) => setLevel(event.currentTarget.value)}>
            <option value="debug">everything</option><option value="info">information and graver</option>
            <option value="warning">warnings and errors</option><option value="error">errors</option>
          </select>
        </form>
        {error && <p class="wrong" role="alert">{error}</p>}
        {!lines.length && <p class="empty">No line of the log is like that.</p>}
        {lines.length > 0 && (
          <div class="scroll" tabIndex={0} role="region" aria-label="Log">
            <table>
              <thead><tr><th scope="col">When</th><th scope="col">Severity</th><th scope="col">What</th></tr></thead>
              <tbody>{lines.map((line) => (
                <tr key={line.number}>
                  <td class="when">{moment(line.at)}</td>
                  <td>{line.level === "info" || line.level === "debug" ? line.level : <Tag>{line.level}</Tag>}</td>
                  <td>{line.text}</td>
                </tr>
              ))}</tbody>
            </table>
          </div>
        )}
      </section>
    </>
  );
}
