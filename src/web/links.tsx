// Shovels, federation links and upstreams: what each does now, why not, and the forms that make them.

import type { ComponentChildren } from "preact";
import { hasTag, useAsked, useOperation } from "./api.ts";
import { count, plural, rate, span } from "./format.ts";
import { change, DangerButton, Failed, type FieldRow, FormButton, objectOf, type Paged, Table, Tag, To, type Values,
  } from "./parts.tsx";
import { useVHosts } from "./queues.tsx";

interface Figures {
  vhost: string;
  state: string;
  reason: string;
  next_try: number;
  last_message: number;
  messages: number;
  rate: number;
  unconfirmed: number;
  reconnects: number;
  lag: number;
}

type Definition = Record<string, unknown>;

const ago = (ms: number) => (ms ? `${span(Math.max(0, (Date.now() - ms) / 1000))} ago` : "never");

function State({ row, state }: { row: Figures; state: string }) {
  const wait = (row.next_try - Date.now()) / 1000;
  return (
    <>
      <Tag>{state}</Tag>
      {row.reason && <div class="wrong">{row.reason}</div>}
      {wait > 0 && state !== "paused" && <div><small>tries again in {span(wait)}</small></div>}
    </>
  );
}

const figures = [
  { label: "Messages", sort: "messages", right: true, cell: (row: Figures) => (
    <>{count(row.messages)}<br /><small>{rate(row.rate)}</small></>) },
  { label: "Lag", sort: "lag", right: true, wide: true, cell: (row: Figures) => (
    <>{count(row.lag)}<br /><small>{count(row.unconfirmed)} unconfirmed</small></>) },
  { label: "Last message", sort: "last_message", right: true, wide: true, cell: (row: Figures) => (
    <>{ago(row.last_message)}<br /><small>{plural(row.reconnects, "reconnect")}</small></>) },
];

// --- shovels

interface ShovelRow extends Figures { name: string; blocked_status: string; value: Definition }

const stateOf = (row: ShovelRow) => (row.blocked_status === "blocked" ? "blocked" : row.state);

export function Shovels() {
  const may = useOperation("shovel", "set") && hasTag("policymaker");
  const vhosts = useVHosts();
  return (
    <>
      <div class="title"><h1>Shovels</h1></div>
      <p class="quiet">A shovel carries the messages of a queue or an exchange to another place, here or at another broker,
        in their order.</p>
      <Table<ShovelRow> noun="shovels" path="/api/shovels" keyOf={(row) => `${row.vhost}\0${row.name}`}
        actions={(again) => may && <ShovelForm vhosts={vhosts} done={again} />}
        columns={[
          { label: "Name", sort: "name", cell: (row) => <><b>{row.name}</b><br /><small>{row.vhost}</small></> },
          { label: "State", sort: "state", cell: (row) => <State row={row} state={stateOf(row)} /> },
          { label: "From", wide: true, cell: (row) => <End of={row.value} side="src" /> },
          { label: "To", wide: true, cell: (row) => <End of={row.value} side="dest" /> },
          ...figures,
          { label: "", right: true, cell: (row) => may && <ShovelActions row={row} vhosts={vhosts} /> },
        ]} />
    </>
  );
}

/** One end of a shovel: its address, and its queue or exchange. */
function End({ of, side }: { of: Definition; side: "src" | "dest" }) {
  const text = (key: string) => of[`${side}-${key}`] as string | undefined;
  const uri = of[`${side}-uri`];
  const exchange = text("exchange");
  const key = text("exchange-key");
  return (
    <>
      {text("queue") != null ? <>queue <code>{text("queue")}</code></>
        : exchange != null ? <>exchange <code>{exchange || "(default)"}</code>{key && <> with <code>{key}</code></>}</>
          : /^https?:/i.test(String(uri)) ? "web server" : "where each message says"}
      <br /><small>{Array.isArray(uri) ? uri.join(", ") : String(uri)}</small>
    </>
  );
}

function ShovelActions({ row, vhosts }: { row: ShovelRow; vhosts: string[] }) {
  const names = { vhost: row.vhost, name: row.name };
  const act = (verb: string, done: string) => change(`Shovel ${row.name} ${done}.`, "shovel", verb, names);
  const paused = row.state === "paused";
  return (
    <div class="row">
      {paused ? <button type="button" class="small" onClick={() => void act("resume", "goes on")}>Resume</button>
        : <button type="button" class="small" onClick={() => void act("pause", "is paused")}>Pause</button>}
      {!paused && <button type="button" class="small" onClick={() => void act("restart", "begins anew")}>Restart</button>}
      <ShovelForm vhosts={vhosts} row={row} done={() => undefined} />
      <DangerButton label="Delete" title={`Delete ${row.name}?`} text="What it has not moved stays where it is."
        act={() => act("delete", "is deleted")} />
    </div>
  );
}

// The keys with a field of their own; all others stand in one field as JSON.
const SHOVEL_FIELDS: FieldRow[] = [
  { name: "src-uri", label: "Source URI", required: true, first: "amqp://",
    help: "amqp://user:password@host/vhost; without a host: this broker" },
  { name: "src-queue", label: "Source queue", help: "Either a queue or an exchange" },
  { name: "src-exchange", label: "Source exchange" },
  { name: "src-exchange-key", label: "Source binding key" },
  { name: "dest-uri", label: "Destination URI", required: true, first: "amqp://", help: "Also http:// or https://" },
  { name: "dest-queue", label: "Destination queue", help: "A queue, an exchange, or neither" },
  { name: "dest-exchange", label: "Destination exchange" },
  { name: "dest-exchange-key", label: "Destination routing key" },
  { name: "ack-mode", label: "Acknowledge", kind: "choice", choices: ["on-confirm", "on-publish", "no-ack"],
    help: "on-confirm loses nothing" },
];
const MORE: FieldRow = { name: "more", label: "More", kind: "json", help: 'Such as {"src-delete-after": "queue-length"}' };
const UPSTREAM_FIELDS: FieldRow[] = [
  { name: "uri", label: "URI", required: true, help: "amqp://user:password@host/vhost" },
  { name: "queue", label: "Queue", help: "Its name there, if it has another one" },
  { name: "exchange", label: "Exchange", help: "Its name there, if it has another one" },
  { name: "ack-mode", label: "Acknowledge", kind: "choice", choices: ["on-confirm", "on-publish", "no-ack"],
    help: "on-confirm loses nothing" },
];

/** The fields of a form, with what a definition has.  Several addresses stand behind one another, with spaces. */
function filled(fields: FieldRow[], value: Definition | undefined): FieldRow[] {
  if (!value) return [...fields, MORE];
  const own = new Set(fields.map((row) => row.name));
  const rest = Object.fromEntries(Object.entries(value).filter(([key]) => !own.has(key)));
  return [
    ...fields.map((row) => {
      const each = value[row.name];
      return { ...row, first: each == null ? row.choices?.[0] ?? "" : Array.isArray(each) ? each.join(" ") : String(each) };
    }),
    { ...MORE, first: JSON.stringify(rest) },
  ];
}

function definitionOf(fields: FieldRow[], values: Values): Definition {
  const found: Definition = objectOf(values, "more");
  for (const { name } of fields) {
    const text = (values[name] as string).trim();
    if (name.endsWith("uri")) {
      const uris = text.split(/\s+/);
      found[name] = uris.length > 1 ? uris : text;
    } else if (text) {
      found[name] = text;
    }
  }
  return found;
}

interface FormProps { vhosts: string[]; row?: { vhost: string; name: string; value: Definition }; done: () => void }

const ShovelForm = (props: FormProps) =>
  <LinkForm {...props} noun="shovel" word="Shovel" title="New shovel" fields={SHOVEL_FIELDS} />;

function LinkForm({ vhosts, row, done, noun, word, title, fields }: FormProps & {
  noun: string; word: string; title: string; fields: FieldRow[];
}) {
  const names: FieldRow[] = row ? [] : [
    { name: "vhost", label: "Vhost", kind: "choice", choices: vhosts }, { name: "name", label: "Name", required: true },
  ];
  return (
    <FormButton title={row ? "Edit" : title} heading={row && `${word} ${row.name}`} label="Set" small={!!row}
      fields={[...names, ...filled(fields, row?.value)]} send={async (values) => {
        const name = row?.name ?? values.name;
        const fine = await change(`${word} ${name} is set.`, noun, "set", {
          vhost: row?.vhost ?? values.vhost, name, definition: definitionOf(fields, values),
        });
        if (fine) done();
        return fine;
      }}>
      {row && <p class="quiet">*** stands for a password that stays as it is.</p>}
    </FormButton>
  );
}

// --- federation

interface LinkRow extends Figures { type: "queue" | "exchange"; resource: string; upstream: string; uri: string; id: string }
interface UpstreamRow { vhost: string; name: string; links: number; running: number; definition: Definition }

export function Federation() {
  const may = useOperation("federation_link", "restart") && hasTag("policymaker");
  return (
    <>
      <div class="title"><h1>Federation</h1></div>
      <p class="quiet">A policy with federation-upstream or federation-upstream-set gives queues and exchanges a link to
        each of its upstreams. A queue's link brings messages while consumers here wait for some.</p>
      <Table<LinkRow> noun="federation links" path="/api/federation-links" keyOf={(row) => `${row.vhost}\0${row.id}`}
        columns={[
          { label: "Here", sort: "resource", cell: (row) => (
            <>{row.type} <To page={`${row.type}s`} names={[row.vhost, row.resource]} /><br /><small>{row.vhost}</small></>) },
          { label: "Upstream", sort: "upstream", cell: (row) => <><b>{row.upstream}</b><br /><small>{row.uri}</small></> },
          { label: "State", sort: "state", cell: (row) => <State row={row} state={row.state} /> },
          ...figures,
          { label: "", right: true, cell: (row) => may && (
            <button type="button" class="small" onClick={() => void change("The link begins anew.", "federation_link",
              "restart", { vhost: row.vhost, id: row.id })}>Restart</button>) },
        ]} />
      <Upstreams may={hasTag("policymaker")} />
    </>
  );
}

function Upstreams({ may }: { may: boolean }) {
  const vhosts = useVHosts();
  const { data, error, again } = useAsked<Paged<UpstreamRow>>("/api/v2/upstream/list", 5, { page: 1, page_size: 500 });
  const remove = (row: UpstreamRow) => change(`Upstream ${row.name} is deleted.`, "upstream", "delete",
    { vhost: row.vhost, name: row.name }).then(again);
  return (
    <section class="card">
      <div class="tools">
        <h2>Upstreams</h2><span class="space" />
        {may && <UpstreamForm vhosts={vhosts} done={again} />}
      </div>
      {error && <Failed error={error} />}
      {data && (data.items.length ? (
        <Scroll>
          <table>
            <thead><tr><th scope="col">Name</th><th scope="col" class="wide">Vhost</th><th scope="col">Where</th>
              <th scope="col" class="right wide">Links</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
            <tbody>{data.items.map((row) => (
              <tr key={`${row.vhost}\0${row.name}`}>
                <td><b>{row.name}</b></td><td class="wide">{row.vhost}</td>
                <td><code>{String(row.definition.uri)}</code></td>
                <td class="right wide">{count(row.running)} of {plural(row.links, "link")}</td>
                <td class="right">{may && (
                  <div class="row">
                    <UpstreamForm vhosts={vhosts} row={{ ...row, value: row.definition }} done={again} />
                    <DangerButton label="Delete" title={`Delete ${row.name}?`} text="Its links end, and what they had made there goes."
                      act={() => remove(row)} />
                  </div>)}
                </td>
              </tr>
            ))}</tbody>
          </table>
        </Scroll>
      ) : <p class="empty">No upstreams.</p>)}
    </section>
  );
}

const Scroll = ({ children }: { children: ComponentChildren }) =>
  <div class="scroll" tabIndex={0} role="region" aria-label="Table of upstreams">{children}</div>;

const UpstreamForm = (props: FormProps) =>
  <LinkForm {...props} noun="upstream" word="Upstream" title="New upstream" fields={UPSTREAM_FIELDS} />;
