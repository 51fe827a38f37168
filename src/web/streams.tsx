// Streams: what each keeps and how far its readers are behind; one stream with its readers, retention, messages, live tail.

import { useEffect, useRef, useState } from "preact/hooks";
import { ask, inPath, perform, reachable, type Refusal, useAsked, useOperation } from "./api.ts";
import { count, fine, octets, plural, span, value } from "./format.ts";
import { PublishButton } from "./messages.tsx";
import { Actions, Arguments, change, DangerButton, Facts, Failed, FormButton, say, Tag, To } from "./parts.tsx";
import { Features, type QueueRow } from "./queues.tsx";

interface StreamRow {
  name: string;
  vhost: string;
  messages: number;
  octets: number;
  oldest_age_ms: number;
  reads: number;
  readers: number;
  lag: number;
  missed: number;
  removed: number;
}
interface Streams { items: StreamRow[]; filtered_count: number; page: number; page_count: number }

const PAGE = 50;

export function StreamList() {
  const [name, setName] = useState("");
  const [page, setPage] = useState(1);
  const { data, error } = useAsked<Streams>("/api/v2/stream/list", 5, { name, page, page_size: PAGE });
  return (
    <>
      <div class="title"><h1>Streams</h1></div>
      <div class="tools">
        <input type="search" class="search" placeholder="Filter streams ( / )" aria-label="Filter streams" value={name}
          onInput={(event) => { setName(event.currentTarget.value); setPage(1); }} />
      </div>
      {error && <Failed error={error} />}
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of streams">
        <table>
          <thead><tr><th scope="col">Name</th><th scope="col" class="right">Messages</th>
            <th scope="col" class="right wide">Size</th><th scope="col" class="right wide">Oldest</th>
            <th scope="col" class="right">Readers</th><th scope="col" class="right">Largest lag</th>
            <th scope="col" class="right wide">Missed</th></tr></thead>
          <tbody>{data?.items.map((row) => (
            <tr key={`${row.vhost}\0${row.name}`}>
              <td><To page="streams" names={[row.vhost, row.name]} />{row.vhost !== "/" && <small> in {row.vhost}</small>}</td>
              <td class="right">{count(row.messages)}</td><td class="right wide">{octets(row.octets)}</td>
              <td class="right wide">{row.messages ? span(row.oldest_age_ms / 1000) : ""}</td>
              <td class="right">{count(row.readers)}</td><td class="right">{count(row.lag)}</td>
              <td class="right wide">{count(row.missed)}</td>
            </tr>
          ))}</tbody>
        </table>
        {data?.items.length === 0 && <p class="empty">{name ? "No streams match."
          : "There is no stream yet. A queue with the argument x-queue-type \"stream\" is one."}</p>}
        {!data && !error && <p class="empty">Loading …</p>}
      </div>
      {data && data.page_count > 1 && (
        <nav class="pager" aria-label="Pages of streams">
          <button type="button" disabled={page <= 1} onClick={() => setPage(page - 1)}>← Back</button>
          <span>Page {count(page)} of {count(data.page_count)}</span>
          <button type="button" disabled={page >= data.page_count} onClick={() => setPage(page + 1)}>Next →</button>
        </nav>
      )}
    </>
  );
}

// --- one stream

interface Reader {
  reader: string;
  reads: boolean;
  tag: string;
  user: string;
  connection: number;
  unacked: number;
  prefetch: number;
  next_offset: number;
  lowest_unacked: number;
  lag: number;
  missed: number;
}
interface Readers {
  first_offset: number;
  next_offset: number;
  messages: number;
  segments: number;
  removed: number;
  missed: number;
  items: Reader[];
}

export function Stream({ vhost, name }: { vhost: string; name: string }) {
  const { data, error, again } = useAsked<Readers>("/api/v2/stream/readers", 5, { vhost, queue: name });
  const { data: row } = useAsked<QueueRow>(`/api/queues/${inPath(vhost)}/${inPath(name)}`);
  if (error && [404, 409].includes(error.status)) {
    return (
      <>
        <div class="title"><h1>{name}</h1></div>
        <p class="card">There is no such stream (any more). <a href="#/streams">All streams</a></p>
      </>
    );
  }
  if (!data) return error ? <Failed error={error} /> : <p class="empty">Loading …</p>;
  return (
    <>
      <div class="title">
        <div>
          <div class="crumb"><a href="#/streams">Streams</a> · vhost {vhost}</div>
          <h1>{name}</h1>
        </div>
        {row && <span><Features row={row} /></span>}
        <span class="space" />
        <Actions>
          <PublishButton vhost={vhost} exchange="" routingKey={name} done={again} />
          <CopyButton vhost={vhost} queue={name} />
        </Actions>
        <To page="queues" names={[vhost, name]}>As a queue</To>
      </div>
      <div class="numbers">
        {([["Messages", count(data.messages)], ["First offset", count(data.first_offset)],
          ["Next offset", count(data.next_offset)], ["Largest lag", count(Math.max(0, ...data.items.map((each) => each.lag)))],
          ["Missed", count(data.missed)]]).map(([label, text]) => (
          <div class="number" key={label}><b>{text}</b><span>{label}</span></div>
        ))}
      </div>
      <ReadersTable vhost={vhost} queue={name} data={data} again={again} />
      <Kept data={data} row={row} />
      <Reading key={`${vhost}/${name}`} vhost={vhost} queue={name} />
    </>
  );
}

function Kept({ data, row }: { data: Readers; row: QueueRow | undefined }) {
  const given = row?.effective_arguments ?? row?.arguments ?? {};
  const limits = Object.fromEntries(["x-max-length", "x-max-length-bytes", "x-max-age"]
    .filter((key) => key in given).map((key) => [key, given[key]]));
  return (
    <section class="card">
      <h2>What is kept</h2>
      <Facts rows={[
        ["Limits", Object.keys(limits).length ? <Arguments of={limits} /> : "none: all is kept"],
        ["Segments", count(data.segments)],
        ["Removed since start", `${plural(data.removed, "message")}, by retention and purges`],
        ["Missed by readers", data.missed ? `${plural(data.missed, "message")}: gone before they were read` : "none"],
      ]} />
    </section>
  );
}

function ReadersTable({ vhost, queue, data, again }: { vhost: string; queue: string; data: Readers; again: () => void }) {
  return (
    <section class="card">
      <h2>Readers</h2>
      {!data.items.length ? <p class="quiet">No client reads, and no offset is kept.</p> : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Readers">
          <table>
            <thead><tr><th scope="col">Reader</th><th scope="col" class="right">Lag</th>
              <th scope="col" class="right">Not acked from</th><th scope="col" class="right wide">Reads next</th>
              <th scope="col" class="right wide">Holds</th><th scope="col" class="right wide">Missed</th>
              <th scope="col" class="wide">State</th>
              <th scope="col"><span class="hidden">Actions</span></th></tr></thead>
            <tbody>{data.items.map((each) => (
              <tr key={`${each.reader}\0${each.connection}\0${each.tag}`}>
                <td>{each.reader || <span class="quiet">{each.tag}</span>}</td>
                <td class="right">{count(each.lag)}</td><td class="right">{count(each.lowest_unacked)}</td>
                <td class="right wide">{count(each.next_offset)}</td>
                <td class="right wide">{each.reads ? `${count(each.unacked)} of ${count(each.prefetch)}` : ""}</td>
                <td class="right wide">{count(each.missed)}</td>
                <td class="wide">{each.reads ? <Tag>reads, {each.user}</Tag> : <span class="quiet">away</span>}</td>
                <td class="right">{!each.reads && <Away vhost={vhost} queue={queue} row={each} again={again} />}</td>
              </tr>
            ))}</tbody>
          </table>
        </div>
      )}
    </section>
  );
}

/** What can be done for a reader that does not read now. */
function Away({ vhost, queue, row, again }: { vhost: string; queue: string; row: Reader; again: () => void }) {
  const names = { vhost, queue, reader: row.reader };
  return (
    <>
      <FormButton title="Set offset" label="Set" fields={[
        { name: "offset", label: `Offset that ${row.reader} reads next`, kind: "number", first: String(row.next_offset),
          required: true },
      ]} send={async ({ offset }) => {
        const done = await change(`${row.reader} goes on with ${offset as string}.`, "stream", "set_offset",
          { ...names, offset: Number(offset) });
        again();
        return done;
      }} />{" "}
      <DangerButton label="Forget" title={`Forget ${row.reader}?`}
        text="Its offset is gone. It begins with the next message when it comes again."
        act={() => change(`${row.reader} is forgotten.`, "stream", "delete", names).then(again)} />
    </>
  );
}

export function CopyButton({ vhost, queue }: { vhost: string; queue: string }) {
  if (!useOperation("queue", "copy")) return null;
  return (
    <FormButton title="Copy to" label="Copy" fields={[
      { name: "to", label: "To queue or stream", required: true, help: "It must be there. The messages stay here, too." },
      { name: "from", label: "From number", kind: "number", first: "1" },
    ]} send={async ({ to, from }) => {
      try {
        const { copied } = await perform<{ copied: number }>("queue", "copy",
          { vhost, queue, to, from_seq: Number(from) || 1 });
        say(`${plural(copied, "message")} copied.`);
        return true;
      } catch (error) {
        say((error as Refusal).message, true);
        return false;
      }
    }} />
  );
}

// --- reading, and the live tail

interface Message {
  offset: number;
  published_at: number;
  exchange: string;
  routing_key: string;
  properties: Record<string, unknown>;
  payload: string;
  payload_bytes: number;
  payload_encoding: string;
}
interface Read { items: Message[]; next_offset: number; end_offset: number; missed: number; examined: number }

const AT_ONCE = 25;
const TAIL_KEPT = 200;
const SHOWN_OCTETS = 4000;

function Reading({ vhost, queue }: { vhost: string; queue: string }) {
  const [offset, setOffset] = useState("-25");
  const [filter, setFilter] = useState("");
  const [contains, setContains] = useState("");
  const [found, setFound] = useState<Message[]>([]);
  const [told, setTold] = useState("");
  const [next, setNext] = useState<number | null>(null); // where "more" goes on; null: nowhere
  const [live, setLive] = useState(false);
  const fields = (from: string) => {
    const query = new URLSearchParams({ vhost, queue, offset: from, truncate: String(SHOWN_OCTETS) });
    for (const one of filter.split(",").map((each) => each.trim()).filter(Boolean)) query.append("filter", one);
    if (contains) query.set("contains", contains);
    return query;
  };
  const read = async (from: string, more = false) => {
    setLive(false);
    try {
      const query = fields(from);
      query.set("count", String(AT_ONCE));
      const answer = await ask<Read>(`/api/v2/stream/read?${query}`);
      setFound((before) => (more ? [...before, ...answer.items] : answer.items));
      setTold(answer.missed ? `${plural(answer.missed, "message")} before these are gone: retention removed them.`
        : answer.items.length ? "" : `${plural(answer.examined, "message")} looked at, and no message matches.`);
      setNext(answer.next_offset < answer.end_offset ? answer.next_offset : null);
    } catch (error) {
      say((error as Refusal).message, true);
    }
  };
  return (
    <section class="card">
      <h2>Messages</h2>
      <form class="tools" onSubmit={(event) => {
        event.preventDefault();
        void read(offset);
      }}>
        <label class="inline" for="offset">From</label>
        <input id="offset" class="short" value={offset} onInput={(event) => setOffset(event.currentTarget.value)}
          aria-describedby="offset-help" />
        <input class="short" aria-label="Filter values" placeholder="filter values" value={filter}
          onInput={(event) => setFilter(event.currentTarget.value)} />
        <input class="short" aria-label="Payload contains" placeholder="payload contains" value={contains}
          onInput={(event) => setContains(event.currentTarget.value)} />
        <button type="submit">Read</button>
        <button type="button" aria-pressed={live} onClick={() => setLive(!live)}>{live ? "Stop following" : "Follow live"}</button>
      </form>
      <p class="quiet"><small id="offset-help">first, last, next, an offset, -25 (so many before the end), 1h (a time ago), or a
        time such as 2026-01-31T12:00:00Z. Nothing is kept of who reads here.</small></p>
      {live && <Tail query={fields("next").toString()} show={setFound} tell={setTold} />}
      {told && <p role="status">{told}</p>}
      {found.map((message) => <One key={message.offset} message={message} />)}
      {!live && next !== null && <p><button type="button" onClick={() => void read(String(next), true)}>More</button></p>}
    </section>
  );
}

interface TailProps {
  query: string;
  show: (change: (before: Message[]) => Message[]) => void;
  tell: (text: string) => void;
}

/** Shows what comes, the newest first. */
function Tail({ query, show, tell }: TailProps) {
  const isThere = reachable.use();
  const last = useRef("");
  useEffect(() => {
    show(() => []);
    tell("Waiting for the next message …");
    last.current = "";
  }, [query]);
  useEffect(() => {
    if (!isThere) return;
    // EventSource itself comes again with Last-Event-ID; a new one has to say where it goes on.
    const from = new URLSearchParams(query);
    if (last.current) from.set("offset", String(Number(last.current) + 1));
    const source = new EventSource(`/api/v2/stream/read?${from}`);
    source.addEventListener("message", (event) => {
      const message: Message = JSON.parse(event.data);
      last.current = event.lastEventId;
      tell("");
      show((before) => [message, ...before].slice(0, TAIL_KEPT));
    });
    source.addEventListener("missed", (event) =>
      tell(`${plural(JSON.parse(event.data).missed, "message")} came and went before they could be shown.`));
    source.addEventListener("failed", (event) => {
      source.close();
      tell(JSON.parse(event.data).detail);
    });
    source.onerror = () => void ask("/api/whoami").catch(() => undefined); // It finds out whether the broker has gone.
    return () => source.close();
  }, [query, isThere]);
  return <p class="quiet"><small>Following: the newest stands first, {TAIL_KEPT} at most.</small></p>;
}

function One({ message }: { message: Message }) {
  const { headers, ...others } = message.properties;
  return (
    <article class="message">
      <b>{count(message.offset)}</b>{" "}
      <Tag>{message.exchange || "(default)"} → {message.routing_key}</Tag>
      <Tag>{octets(message.payload_bytes)}</Tag>
      {message.payload_encoding === "base64" && <Tag>base64</Tag>}
      <small>{fine(message.published_at)}</small>
      <pre class="payload" tabIndex={0} role="region" aria-label={`Payload of message ${message.offset}`}>{message.payload}</pre>
      <small>
        {Object.entries(others).map(([name, each]) => `${name}: ${value(each)}`).join(" · ")}
        {headers ? ` · headers: ${value(headers)}` : ""}
      </small>
    </article>
  );
}
