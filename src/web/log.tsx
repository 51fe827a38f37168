// The last lines of the broker's log, as they come.

import { useEffect, useState } from "preact/hooks";
import { perform, reachable, type Refusal } from "./api.ts";
import { moment } from "./format.ts";
import { Failed, Tag } from "./parts.tsx";

interface Line { number: number; at: number; level: string; text: string }

const EVERY_MS = 2000;
const SHOWN = 1000;

/** The lines since the broker's start, the latest first; asked for anew each two seconds, only what is new. */
function useLines(level: string, contains: string): { lines: Line[]; error: Refusal | undefined } {
  const [lines, setLines] = useState<Line[]>([]);
  const [error, setError] = useState<Refusal>();
  const found = reachable.use();
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let ended = false;
    let after = 0;
    setLines([]);
    const once = async () => {
      if (!document.hidden) {
        try {
          const more = await perform<{ items: Line[]; last: number }>("node", "log", { after, level, contains });
          if (ended) return;
          after = more.last;
          setError(undefined);
          if (more.items.length) setLines((before) => [...more.items.reverse(), ...before].slice(0, SHOWN));
        } catch (refusal) {
          if (!ended && (refusal as Refusal).status) setError(refusal as Refusal);
        }
      }
      if (!ended) timer = setTimeout(() => void once(), EVERY_MS);
    };
    void once();
    return () => {
      ended = true;
      clearTimeout(timer);
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
      <div class="title"><h1>Log</h1></div>
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
        {error && <Failed error={error} />}
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
