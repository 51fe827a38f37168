// What clients hold of a queue: which consumer has which message, and since when.

import { useState } from "preact/hooks";
import { useAsked, useOperation } from "./api.ts";
import { count, moment, span } from "./format.ts";
import { Tag } from "./parts.tsx";

interface Row {
  seq: number;
  held_ms: number;
  since: number;
  by: "consumer" | "get" | "receipt";
  consumer_tag: string | null;
  connection_name: string | null;
  user: string | null;
  delivery_tag: number;
  connection: number;
  channel: number;
  failed: number;
}

const SHOWN = 50;
const WAYS = { consumer: "", get: "basic.get", receipt: "a receipt over HTTP" };

interface Props { vhost: string; queue: string; unacked: number; trace: ((seq: number) => void) | null }

/** Shown where something is held; the list is asked for when it is opened. */
export function HeldMessages({ vhost, queue, unacked, trace }: Props) {
  const [open, setOpen] = useState(false);
  const there = useOperation("message", "unacked");
  const { data } = useAsked<{ items: Row[] }>(there && open ? "/api/v2/message/unacked" : null, 5, { vhost, queue, count: SHOWN });
  if (!there || (!unacked && !open)) return null;
  const rows = data?.items ?? [];
  return (
    <section class="card">
      <div class="tools">
        <h2>Messages that clients hold</h2>
        <span class="space" />
        <button type="button" aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "Hide" : `Show the ${count(unacked)} unacked`}</button>
      </div>
      {open && data && !rows.length && <p class="quiet">No client holds a message now.</p>}
      {open && rows.length > 0 && (
        <>
          <p class="quiet">The one that is held longest stands first{unacked > SHOWN && `; ${SHOWN} of ${count(unacked)}`}.</p>
          <div class="scroll" tabIndex={0} role="region" aria-label="Messages that clients hold">
            <table>
              <thead><tr><th scope="col" class="right">Number</th><th scope="col">Held for</th><th scope="col">By</th>
                <th scope="col" class="wide">Since</th><th scope="col" class="wide">User</th>
                <th scope="col" class="right wide">Failed before</th></tr></thead>
              <tbody>{rows.map((row) => (
                <tr key={`${row.connection}/${row.channel}/${row.delivery_tag}`}>
                  <td class="right">{trace ? <button type="button" class="small" aria-label={`Trace message ${row.seq}`}
                    onClick={() => trace(row.seq)}>{count(row.seq)}</button> : count(row.seq)}</td>
                  <td>{span(row.held_ms / 1000)}</td>
                  <td>{row.consumer_tag !== null && <code>{row.consumer_tag} </code>}{WAYS[row.by] && <Tag>{WAYS[row.by]}</Tag>}
                    {row.connection_name && <><br /><small>{row.connection_name} ({row.channel})</small></>}</td>
                  <td class="wide when">{moment(row.since)}</td><td class="wide">{row.user}</td>
                  <td class="right wide">{count(row.failed)}</td>
                </tr>
              ))}</tbody>
            </table>
          </div>
        </>
      )}
    </section>
  );
}
