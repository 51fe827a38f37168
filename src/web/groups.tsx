// The message groups of a queue: their messages, their consumers, why they do not move, and what an operator may do.

import { useState } from "preact/hooks";
import { useAsked, useOperation } from "./api.ts";
import { count, span } from "./format.ts";
import { change, DangerButton, Tag } from "./parts.tsx";

interface Group {
  group: string;
  state: string;
  ready: number;
  unacked: number;
  owner: { tag: string; user: string; peer: string } | null;
  oldest_age_ms: number;
  attempts: number;
  why: string;
}
interface Listed { totals: { groups: number; waiting: number; waits: number }; items: Group[] }

const LIMIT = 50;
const STATES = ["", "parked", "paused", "retrying", "locked", "waiting", "idle"];

interface Props { vhost: string; queue: string }

export function Groups({ vhost, queue }: Props) {
  const [state, setState] = useState("");
  const there = useOperation("group", "list");
  const body = { vhost, queue, state, limit: LIMIT };
  const { data, again } = useAsked<Listed>(there ? "/api/v2/group/list" : null, 5, body);
  if (!data) return null; // A queue without groups.
  return (
    <section class="card">
      <div class="tools">
        <h2>Message groups</h2><span class="space" />
        <label class="inline" for="group-state">State</label>
        <select id="group-state" value={state} onChange={(event) => setState(event.currentTarget.value)}>
          {STATES.map((each) => <option key={each} value={each}>{each || "all"}</option>)}
        </select>
      </div>
      <p class="quiet">{count(data.totals.groups)} groups, {count(data.totals.waiting)} messages of them wait. Each group is
        worked on in order; the longest backlog stands first.</p>
      <div class="scroll" tabIndex={0} role="region" aria-label="Message groups">
        <table>
          <thead><tr><th scope="col">Group</th><th scope="col">State</th><th scope="col" class="right">Ready</th>
            <th scope="col" class="right">Held</th><th scope="col" class="right wide">Oldest</th>
            <th scope="col" class="wide">Why</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
          <tbody>{data.items.map((row) => (
            <tr key={row.group}>
              <td><code>{row.group}</code></td><td><Tag>{row.state}</Tag></td><td class="right">{count(row.ready)}</td>
              <td class="right">{count(row.unacked)}</td>
              <td class="right wide">{row.oldest_age_ms ? span(row.oldest_age_ms / 1000) : ""}</td>
              <td class="wide">{row.why}</td>
              <td class="right"><Actions vhost={vhost} queue={queue} row={row} again={again} /></td>
            </tr>
          ))}</tbody>
        </table>
        {!data.items.length && <p class="empty">No group is in this state.</p>}
      </div>
    </section>
  );
}

function Actions({ vhost, queue, row, again }: Props & { row: Group; again: () => void }) {
  const act = (verb: string, done: string) =>
    change(`Group ${row.group} ${done}.`, "group", verb, { vhost, queue, group: row.group }).then(again);
  if (["parked", "paused", "retrying"].includes(row.state)) {
    const verb = row.state === "paused" ? "resume" : "release";
    return (
      <>
        <button type="button" class="small" onClick={() => void act(verb, "goes on")}>Go on</button>{" "}
        <DangerButton label="Skip first" title={`Drop the first message of ${row.group}?`} text="It will be gone."
          act={() => act("skip", "lost its first message")} />
      </>
    );
  }
  return <button type="button" class="small" onClick={() => void act("pause", "is paused")}>Pause</button>;
}
