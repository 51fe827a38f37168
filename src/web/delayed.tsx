// What a delayed exchange holds back: when each message is due; send one on before its time, or drop it.

import { useAsked } from "./api.ts";
import { count, moment, octets } from "./format.ts";
import { change, DangerButton, Failed } from "./parts.tsx";

interface Waiting {
  waiting: number;
  items: { seq: number; due_at: number; routing_key: string; payload: string; payload_bytes: number }[];
}

export function Delayed({ vhost, exchange }: { vhost: string; exchange: string }) {
  const { data, error, again } = useAsked<Waiting>("/api/v2/exchange/delayed", 5, { vhost, exchange });
  const act = (verb: string, seq: number, done: string) =>
    change(`Message ${count(seq)} ${done}.`, "exchange", verb, { vhost, exchange, seq }).then(again);
  return (
    <section class="card">
      <h2>Delayed messages</h2>
      {error && <Failed error={error} />}
      {data && <p class="quiet">{count(data.waiting)} wait. The next ones stand first, 100 at most.</p>}
      {data && data.items.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Delayed messages">
          <table>
            <thead><tr><th scope="col">Due</th><th scope="col">Routing key</th><th scope="col" class="right wide">Size</th>
              <th scope="col" class="wide">Payload</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
            <tbody>{data.items.map((row) => (
              <tr key={row.seq}>
                <td>{moment(row.due_at)}</td><td><code>{row.routing_key}</code></td>
                <td class="right wide">{octets(row.payload_bytes)}</td><td class="wide">{row.payload.slice(0, 80)}</td>
                <td class="right">
                  <button type="button" class="small" onClick={() => void act("deliver_now", row.seq, "went on")}>Deliver now</button>{" "}
                  <DangerButton label="Drop" title={`Drop message ${count(row.seq)}?`} text="It will be gone."
                    act={() => act("cancel_delayed", row.seq, "is dropped")} />
                </td>
              </tr>
            ))}</tbody>
          </table>
        </div>
      )}
    </section>
  );
}
