// The change log: who changed what, through which face, and what was refused.

import { useState } from "preact/hooks";
import { useAsked, useOperation } from "./api.ts";
import { count, moment } from "./format.ts";
import { change, DangerButton, Failed, Tag } from "./parts.tsx";

interface Change {
  at: number; user: string; face: string; address: string; operation: string; request: Record<string, unknown>;
  done: boolean; text: string; undo: number;
}

export function Changes() {
  const [filter, setFilter] = useState<object>({});
  const mayUndo = useOperation("message", "undo");
  const { data, error, again } = useAsked<{ items: Change[] }>("/api/v2/change/list", 5, { count: 200, ...filter });
  const [user, setUser] = useState("");
  const [operation, setOperation] = useState("");
  const [failed, setFailed] = useState(false);
  return (
    <>
      <div class="title"><h1>Changes</h1></div>
      <section class="card">
        <p class="quiet">Who changed what through brokerctl, these pages or HTTP. The last change stands first.</p>
        <form class="tools" onSubmit={(event) => { event.preventDefault(); setFilter({ user, operation, failed }); }}>
          <input class="short" aria-label="User" placeholder="User" value={user}
            onInput={(event) => setUser(event.currentTarget.value)} />
          <input class="search" type="search" aria-label="Operation" placeholder="Operation, such as queue delete ( / )" value={operation}
            onInput={(event) => setOperation(event.currentTarget.value)} />
          <label class="inline"><input type="checkbox" checked={failed}
            onChange={(event) => setFailed(event.currentTarget.checked)} /> refused only</label>
          <button type="submit">Show</button>
        </form>
        {error && <Failed error={error} />}
        {data && !data.items.length && <p class="empty">Nothing has been changed.</p>}
        {data && data.items.length > 0 && (
          <div class="scroll" tabIndex={0} role="region" aria-label="Changes">
            <table>
              <thead><tr><th scope="col">When</th><th scope="col">Who</th><th scope="col" class="wide">From</th>
                <th scope="col">What</th><th scope="col">Outcome</th></tr></thead>
              <tbody>{data.items.map((row) => (
                <tr key={`${row.at} ${row.operation}`}>
                  <td class="when">{moment(row.at)}</td><td class="when">{row.user || "the broker\u2019s owner"}</td>
                  <td class="wide when">{row.face}{row.address && ` ${row.address}`}</td>
                  <td><b>{row.operation}</b> <code>{JSON.stringify(row.request)}</code></td>
                  <td>{row.done ? "done" : <Tag>{row.text}</Tag>}{" "}{mayUndo && row.undo > 0 && (
                    <DangerButton label="Undo" title={`Undo ${row.operation}, change ${count(row.undo)}?`}
                      text="What it moved and is still there goes back, behind what is in its queue now."
                      act={() => change(`Change ${count(row.undo)} is undone.`, "message", "undo",
                        { number: row.undo, vhost: row.request.vhost ?? "/" }).then((fine) => (again(), fine))} />)}</td>
                </tr>
              ))}</tbody>
            </table>
          </div>
        )}
      </section>
    </>
  );
}
