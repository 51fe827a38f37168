// Messages: publish one; look for messages in a queue without taking them; take, delete, move or copy chosen ones.

import { useEffect, useState } from "preact/hooks";
import { perform, type Refusal, useOperation } from "./api.ts";
import { count, fine, octets, plural, value } from "./format.ts";
import { Actions, DangerButton, FormButton, objectOf, say, Tag } from "./parts.tsx";

interface Publish { vhost: string; exchange: string; routingKey: string; done?: () => void }

export function PublishButton({ vhost, exchange, routingKey, done }: Publish) {
  if (!useOperation("message", "publish")) return null;
  return (
    <FormButton title="Publish" label="Publish" fields={[
      { name: "key", label: "Routing key", first: routingKey },
      { name: "payload", label: "Payload", kind: "area" },
      { name: "persistent", label: "persistent: it is there after a restart", kind: "check", first: true },
      { name: "headers", label: "Headers", kind: "json" },
      { name: "properties", label: "Other properties", kind: "json",
        help: 'Such as {"message_id": "1", "priority": 3, "content_type": "text/plain"}' },
    ]} send={async (values) => {
      const properties = { delivery_mode: values.persistent ? 2 : 1, ...objectOf(values, "properties") };
      const headers = objectOf(values, "headers");
      if (Object.keys(headers).length) properties.headers = headers;
      try {
        const { routed } = await perform<{ routed: boolean }>("message", "publish", {
          vhost, exchange: exchange || "amq.default", properties, routing_key: values.key, payload: values.payload,
        });
        say(routed ? "The message is in." : "No queue wanted the message: it was not kept.", !routed);
        done?.();
        return true;
      } catch (error) {
        say((error as Refusal).message, true);
        return false;
      }
    }} />
  );
}

interface Message {
  seq: number;
  published_at: number;
  exchange: string;
  routing_key: string;
  redelivered: boolean;
  payload: string;
  payload_bytes: number;
  payload_encoding: string;
  properties: Record<string, unknown>;
}
interface Browsed { items: Message[]; next_seq: number }
interface Place { vhost: string; queue: string }

const PAGE = 25;
const SHOWN_OCTETS = 4000;

/** Looks for messages, and does something with those that are chosen. */
export function Messages({ vhost, queue, trace, takes }: Place & { trace: (seq: number) => void; takes: boolean }) {
  const [found, setFound] = useState<Message[] | null>(null);
  const [next, setNext] = useState(0);
  const [chosen, setChosen] = useState<Set<number>>(new Set());
  const [filter, setFilter] = useState<Record<string, unknown>>({});
  const [busy, setBusy] = useState(false);
  if (!useOperation("message", "browse")) return null;
  const look = async (fields: Record<string, unknown>, from = 1) => {
    setBusy(true);
    try {
      const answer = await perform<Browsed>("message", "browse", {
        vhost, queue, count: PAGE, truncate: SHOWN_OCTETS, from_seq: from, ...fields,
      });
      setFound((before) => (from > 1 ? [...(before ?? []), ...answer.items] : answer.items));
      setNext(answer.items.length === PAGE ? answer.next_seq : 0);
      setFilter(fields);
      if (from === 1) setChosen((before) => new Set(answer.items.map((each) => each.seq).filter((seq) => before.has(seq))));
    } catch (error) {
      say((error as Refusal).message, true);
    }
    setBusy(false);
  };
  const choose = (seq: number, is: boolean) => setChosen((before) => {
    const after = new Set(before);
    if (is) after.add(seq);
    else after.delete(seq);
    return after;
  });
  // What is chosen while the list is asked for anew stays chosen.
  const wasDone = () => {
    setChosen((before) => new Set([...before].filter((seq) => !chosen.has(seq))));
    void look(filter);
  };
  const all = found !== null && found.length > 0 && found.every((each) => chosen.has(each.seq));
  return (
    <section class="card">
      <h2>Messages</h2>
      <Search busy={busy} look={(fields) => void look(fields)} />
      {found?.length === 0 && <p class="empty">There is no message that matches.</p>}
      {found && found.length > 0 && (
        <div class="tools">
          <label class="inline"><input type="checkbox" checked={all} onChange={(event) => setChosen(
            new Set(event.currentTarget.checked ? found.map((each) => each.seq) : []))} /> choose all that are shown</label>
          <span class="space" />
          {chosen.size > 0 && takes && <Chosen vhost={vhost} queue={queue} seqs={[...chosen]} done={wasDone} />}
        </div>
      )}
      {found?.map((message) => (
        <One key={message.seq} message={message} trace={trace} chosen={chosen.has(message.seq)} choose={choose} />
      ))}
      {next > 0 && <p><button type="button" disabled={busy} onClick={() => void look(filter, next)}>More</button></p>}
      {takes && <Take vhost={vhost} queue={queue} done={() => found && void look(filter)} />}
    </section>
  );
}

function Search({ busy, look }: { busy: boolean; look: (fields: Record<string, unknown>) => void }) {
  const [contains, setContains] = useState("");
  const [key, setKey] = useState("");
  const [header, setHeader] = useState("");
  const send = (event: Event) => {
    event.preventDefault();
    const fields: Record<string, unknown> = {};
    if (contains) fields.contains = contains;
    if (key) fields.routing_key = key;
    if (header) {
      const [name, ...rest] = header.split("=");
      fields.properties = { headers: { [name.trim()]: wordOrNumber(rest.join("=").trim()) } };
    }
    look(fields);
  };
  return (
    <form class="tools" onSubmit={send}>
      <input class="short" aria-label="Payload contains" placeholder="payload contains" value={contains}
        onInput={(event) => setContains(event.currentTarget.value)} />
      <input class="short" aria-label="Routing key is" placeholder="routing key is" value={key}
        onInput={(event) => setKey(event.currentTarget.value)} />
      <input class="short" aria-label="Header is" placeholder="header = value" value={header}
        onInput={(event) => setHeader(event.currentTarget.value)} />
      <button type="submit" disabled={busy}>Browse</button>
      <small>Browsing takes nothing and disturbs no order.</small>
    </form>
  );
}

const wordOrNumber = (text: string) => (/^-?\d+$/.test(text) ? Number(text) : text);

interface Redriven { messages: number; left: number; reasons: { why: string }[] }
interface ChosenProps extends Place { seqs: number[]; done: () => void }

function Chosen({ vhost, queue, seqs, done }: ChosenProps) {
  const mayDelete = useOperation("message", "delete");
  const mayMove = useOperation("message", "move");
  const mayRedrive = useOperation("message", "redrive");
  const what = plural(seqs.length, "message");
  const act = async (verb: string, word: string, fields: object) => {
    try {
      const { messages } = await perform<{ messages: number }>("message", verb, {
        vhost, queue, seqs: seqs.join(","), count: seqs.length, ...fields,
      });
      say(`${plural(messages, "message")} ${word}.`);
      done();
      return true;
    } catch (error) {
      say((error as Refusal).message, true);
      return false;
    }
  };
  return (
    <>
      <span>{what} chosen</span>
      <Actions>
        {mayMove && (
          <FormButton title="Move or copy" label="Do it" fields={[
            { name: "verb", label: "What", kind: "choice", choices: ["move", "copy"] },
            { name: "to", label: "To queue", required: true, help: `${what}, in their order. The queue must be there.` },
          ]} send={({ verb, to }) => act(verb as string, verb === "move" ? "moved" : "copied", { to })} />
        )}
        {mayRedrive && (
          <FormButton title="Redrive" label="Put back" fields={[
            { name: "to", label: "To queue", help: `${what}. Empty: for each dead letter the queue in which it died first.` },
          ]} send={async ({ to }) => {
            try {
              const { messages, left, reasons } = await perform<Redriven>("message", "redrive", {
                vhost, queue, seqs: seqs.join(","), count: seqs.length, to,
              });
              say(`${plural(messages, "message")} put back${left ? `, ${count(left)} not: ${reasons[0].why}` : ""}.`, left > 0);
              done();
              return true;
            } catch (error) {
              say((error as Refusal).message, true);
              return false;
            }
          }} />
        )}
        {mayDelete && <DangerButton label="Delete chosen" title={`Delete ${what}?`} text="They will be gone."
          act={() => act("delete", "deleted", {})} />}
      </Actions>
    </>
  );
}

/** Takes the first messages out of the queue. */
function Take({ vhost, queue, done }: Place & { done: () => void }) {
  const [taken, setTaken] = useState<Message[]>([]);
  useEffect(() => setTaken([]), [queue]);
  if (!useOperation("message", "get")) return null;
  const take = async (ackmode: string) => {
    try {
      setTaken((await perform<{ items: Message[] }>("message", "get", { vhost, queue, ackmode, count: 1 })).items);
      done();
    } catch (error) {
      say((error as Refusal).message, true);
    }
  };
  return (
    <>
      <div class="tools">
        <span class="quiet">The first message:</span>
        <DangerButton label="Get and ack" title="Take the first message?" act={() => take("ack_requeue_false")}
          text="It leaves the queue, and is shown here." />
        <DangerButton label="Get and reject" title="Reject the first message?" act={() => take("reject_requeue_false")}
          text="It leaves the queue, and is dead-lettered if the queue says so." />
      </div>
      {taken.map((message) => <One key={message.seq} message={message} />)}
    </>
  );
}

interface OneProps {
  message: Message;
  trace?: (seq: number) => void;
  chosen?: boolean;
  choose?: (seq: number, is: boolean) => void;
}

function One({ message, trace, chosen, choose }: OneProps) {
  const { headers, ...others } = message.properties;
  const { seq } = message;
  return (
    <article class="message">
      {choose && <input type="checkbox" aria-label={`Choose message ${seq}`} checked={chosen}
        onChange={(event) => choose(seq, event.currentTarget.checked)} />}{" "}
      <b>{count(seq)}</b>{" "}
      <Tag>{message.exchange || "(default)"} → {message.routing_key}</Tag>
      <Tag>{octets(message.payload_bytes)}</Tag>
      {message.redelivered && <Tag>redelivered</Tag>}
      {message.payload_encoding === "base64" && <Tag>base64</Tag>}
      <small>{fine(message.published_at)}</small>{" "}
      {trace && <button type="button" class="small" onClick={() => trace(seq)}>Trace {seq}</button>}
      <pre class="payload" tabIndex={0} role="region" aria-label={`Payload of message ${seq}`}>{message.payload}</pre>
      <small>
        {Object.entries(others).map(([name, each]) => `${name}: ${value(each)}`).join(" · ")}
        {headers ? ` · headers: ${value(headers)}` : ""}
      </small>
    </article>
  );
}
