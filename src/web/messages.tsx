// Messages: publish one, and look at those at the head of a queue.

import { useState } from "preact/hooks";
import { ask, inPath, type Refusal, useMethods } from "./api.ts";
import { count, octets, plural, value } from "./format.ts";
import { FormButton, objectOf, say, Tag } from "./parts.tsx";

interface Publish { vhost: string; exchange: string; routingKey: string; done?: () => void }

export function PublishButton({ vhost, exchange, routingKey, done }: Publish) {
  const path = `/api/exchanges/${inPath(vhost)}/${inPath(exchange || "amq.default")}/publish`;
  const mayPublish = useMethods("/api/exchanges/x/x/publish").has("POST");
  if (!mayPublish) return null;
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
        const { routed } = await ask<{ routed: boolean }>(path, "POST", {
          properties, routing_key: values.key, payload: values.payload, payload_encoding: "string",
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
  seq?: number;
  exchange: string;
  routing_key: string;
  redelivered: boolean;
  payload: string;
  payload_bytes: number;
  payload_encoding: string;
  message_count: number;
  properties: Record<string, unknown>;
}

const HOW = {
  "look, and give them back": "ack_requeue_true",
  "take them out of the queue": "ack_requeue_false",
  "reject them (dead-letter)": "reject_requeue_false",
} as const;

/** The first messages of a queue. */
export function GetMessages({ path, trace }: { path: string; trace: (seq: number) => void }) {
  const mayGet = useMethods("/api/queues/x/x/get").has("POST");
  const [how, setHow] = useState<keyof typeof HOW>("look, and give them back");
  const [number, setNumber] = useState("10");
  const [found, setFound] = useState<Message[] | null>(null);
  if (!mayGet) return null;
  const get = async () => {
    try {
      setFound(await ask<Message[]>(`${path}/get`, "POST", {
        count: Number(number), ackmode: HOW[how], encoding: "auto", truncate: 20000,
      }));
    } catch (error) {
      say((error as Refusal).message, true);
    }
  };
  return (
    <section class="card">
      <h2>Messages</h2>
      <div class="tools">
        <label class="inline" for="get-count">The first</label>
        <select id="get-count" value={number} onChange={(event) => setNumber(event.currentTarget.value)}>
          {["1", "10", "50"].map((each) => <option key={each}>{each}</option>)}
        </select>
        <select aria-label="What becomes of them" value={how}
          onChange={(event) => setHow(event.currentTarget.value as keyof typeof HOW)}>
          {Object.keys(HOW).map((each) => <option key={each}>{each}</option>)}
        </select>
        <button type="button" onClick={() => void get()}>Get messages</button>
      </div>
      <p class="quiet">
        {how === "look, and give them back" ? "Messages go back to their places, and are marked as redelivered."
          : "These messages will be gone from the queue."}
      </p>
      {found?.length === 0 && <p class="empty">No message is ready.</p>}
      {found?.map((message, at) => <One key={at} message={message} trace={trace} />)}
      {found && found.length > 0 && (
        <p class="quiet">{plural(found.length, "message")}; behind them {count(found[found.length - 1].message_count)}.</p>
      )}
    </section>
  );
}

function One({ message, trace }: { message: Message; trace: (seq: number) => void }) {
  const { headers, ...others } = message.properties;
  return (
    <article class="message">
      <Tag>{message.exchange || "(default)"} → {message.routing_key}</Tag>
      <Tag>{octets(message.payload_bytes)}</Tag>
      {message.redelivered && <Tag>redelivered</Tag>}
      {message.payload_encoding === "base64" && <Tag>base64</Tag>}
      {message.seq !== undefined && (
        <button type="button" class="small" onClick={() => trace(message.seq!)}>Trace {message.seq}</button>
      )}
      <pre class="payload" tabIndex={0} aria-label="Payload">{message.payload}</pre>
      <small>
        {Object.entries(others).map(([name, each]) => `${name}: ${value(each)}`).join(" · ")}
        {headers ? ` · headers: ${value(headers)}` : ""}
      </small>
    </article>
  );
}
