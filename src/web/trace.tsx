// The life of one message, by its number in the queue.

import { useEffect, useState } from "preact/hooks";
import { perform, type Refusal } from "./api.ts";
import { count, fine, octets } from "./format.ts";
import { Tag } from "./parts.tsx";

interface Life {
  seq: number;
  priority: number | null;
  record: { ts: number; exchange: string; routing_key: string; message_id: string | null; body_octets: number;
    persistent: boolean } | null;
  events: { ts: number | null; what: string; cause?: string; count?: number; redelivered?: boolean; no_ack?: boolean;
    by_get?: boolean; consumer: Record<string, unknown> | null }[];
  known: string;
  state: string;
  why?: string;
  spoiled: { file: string; detail: string }[];
}

const KNOWN: Record<string, string> = {
  "acks only": "Without an order journal the files tell how a message was settled, but not when and to whom it went.",
  part: "The order journal holds only part of this life.",
  nothing: "The files hold nothing of this life any more.",
};

interface Props {
  vhost: string;
  queue: string;
  last: number; // number of the last message
  seq: number | null;
  choose: (seq: number) => void;
  durable: boolean;
}

export function Trace({ vhost, queue, last, seq, choose, durable }: Props) {
  const [text, setText] = useState("");
  const [life, setLife] = useState<Life>();
  const [wrong, setWrong] = useState("");
  useEffect(() => {
    if (seq === null) return;
    setText(String(seq));
    perform<Life>("message", "trace", { vhost, queue, seq }).then(
      (found) => {
        setLife(found);
        setWrong("");
        document.getElementById("trace")?.scrollIntoView({ block: "nearest" });
      },
      (error: Refusal) => (setLife(undefined), setWrong(error.message)),
    );
  }, [seq, vhost, queue]);
  if (!durable || last < 1) return null;
  return (
    <section class="card" id="trace">
      <h2>The life of a message</h2>
      <form class="tools" onSubmit={(event) => {
        event.preventDefault();
        if (Number(text) === seq) return;
        choose(Number(text));
      }}>
        <label class="inline" for="seq">Number, 1 to {count(last)}</label>
        <input id="seq" class="number-field" type="number" min={1} max={last} required value={text}
          onInput={(event) => setText(event.currentTarget.value)} />
        <button type="submit">Trace</button>
      </form>
      {wrong && <p class="wrong" role="alert">{wrong}</p>}
      {life && <Course life={life} />}
    </section>
  );
}

function Course({ life }: { life: Life }) {
  const { record } = life;
  return (
    <>
      <p>
        <b>Message {count(life.seq)}: {life.state}</b>{" "}
        {record && <><Tag>{record.exchange || "(default)"} → {record.routing_key}</Tag>
          <Tag>{octets(record.body_octets)}</Tag>{record.persistent && <Tag>persistent</Tag>}
          {record.message_id && <Tag>id {record.message_id}</Tag>}</>}
      </p>
      {life.why && <p class="quiet">{life.why}</p>}
      {life.spoiled.map((each) => <p class="wrong" key={each.file + each.detail}>{each.file}: {each.detail}</p>)}
      <ol class="timeline">
        {life.events.map((event, at) => (
          <li key={at}>
            <b>{event.what}</b>{event.cause && ` (${event.cause})`}{event.redelivered && " again"}
            {event.count !== undefined && `, ${count(event.count)} failed so far`}
            {event.consumer && <> · {whoOf(event.consumer)}</>}
            <br /><small>{event.ts === null ? "time not known" : fine(event.ts)}</small>
          </li>
        ))}
      </ol>
      {life.known !== "all" && <p class="quiet">{KNOWN[life.known] ?? life.known}</p>}
    </>
  );
}

function whoOf(consumer: Record<string, unknown>): string {
  const { tag, user, peer, number } = consumer as Record<string, string | number | undefined>;
  return [tag ? `consumer ${tag}` : number ? `consumer ${number}` : "", user && `of ${user}`, peer && `at ${peer}`]
    .filter(Boolean).join(" ");
}
