// One queue: the guarantee of order that holds now and why, counters, consumers, bindings, policies, messages.

import { useState } from "preact/hooks";
import { inPath, perform, type Refusal, useAsked, useOperation } from "./api.ts";
import { Bindings } from "./bindings.tsx";
import { count, octets, plural, rate } from "./format.ts";
import { HeldMessages } from "./held.tsx";
import { Groups } from "./groups.tsx";
import { Messages, PublishButton } from "./messages.tsx";
import { Actions, Arguments, change, DangerButton, Facts, Failed, FormButton, say, Tag, To } from "./parts.tsx";
import { Features, type QueueRow, rateOf } from "./queues.tsx";
import { CopyButton } from "./streams.tsx";
import { Trace } from "./trace.tsx";

interface Consumer {
  number: number;
  tag: string;
  prefetch: number;
  global_prefetch: number;
  unacked: number;
  no_ack: boolean;
  priority: number;
  active: boolean;
  peer: string;
  user: string;
}
interface Ordering {
  guarantee: string;
  reasons: string[];
  notes: string[];
  messages: { ready: number; unacked: number; next_seq: number };
  counters: { since_start: Counters; since_declare: Counters };
  journal: { on: boolean; why: string; kept_octets: number; first_kept_seq: number };
  consumers: Consumer[];
}
interface Counters {
  returned: Record<string, number>;
  redelivered: number;
  redelivered_after_restart: number;
  out_of_sequence: number;
  overtakings: number;
  dead_lettered: Record<string, number>;
  dropped: Record<string, number>;
}

const WORDS: Record<string, string> = {
  "strict-fifo": "Each message is settled before a later one is delivered, redeliveries included.",
  "fifo-per-priority": "Within each priority, each message is settled before a later one is delivered.",
  "best-effort": "Messages go out in order, but clients may already work on later ones when one comes back.",
};

export function Queue({ vhost, name }: { vhost: string; name: string }) {
  const path = `/api/queues/${inPath(vhost)}/${inPath(name)}`;
  const { data: row, error, again } = useAsked<QueueRow>(path);
  const { data: ordering } = useAsked<Ordering>("/api/v2/queue/ordering", 5, { vhost, queue: name });
  const [traced, setTraced] = useState<number | null>(null);
  if (error && error.status === 404) return <Gone name={name} />;
  if (!row) return error ? <Failed error={error} /> : <p class="empty">Loading …</p>;
  return (
    <>
      <Heading row={row} again={again} />
      <div class="numbers">
        {([["Ready", count(row.messages_ready)], ["Unacked", count(row.messages_unacknowledged)],
          ["Consumers", count(row.consumers)], ["Published", rate(rateOf(row, "publish"))],
          ["Delivered", rate(rateOf(row, "deliver_get"))], ["Acked", rate(rateOf(row, "ack"))]]).map(([label, text]) => (
          <div class="number" key={label}><b>{text}</b><span>{label}</span></div>
        ))}
      </div>
      {ordering && (
        <div class="grid">
          <Guarantee ordering={ordering} />
          <Disturbances ordering={ordering} />
        </div>
      )}
      {ordering && <Consumers ordering={ordering} />}
      <HeldMessages vhost={vhost} queue={name} unacked={row.messages_unacknowledged}
        trace={row.durable && row.type !== "stream" ? setTraced : null} />
      <div class="grid">
        <Rules row={row} />
        <Bindings title="Bindings" path={`${path}/bindings`} vhost={vhost} destination={{ type: "queue", name }} />
      </div>
      <Groups vhost={vhost} queue={name} />
      <Messages vhost={vhost} queue={name} trace={setTraced} takes={row.type !== "stream"} />
      <Trace vhost={vhost} queue={name} last={ordering ? ordering.messages.next_seq - 1 : 0} seq={traced}
        choose={setTraced} durable={row.durable} />
    </>
  );
}

function Gone({ name }: { name: string }) {
  return (
    <>
      <div class="title"><h1>{name}</h1></div>
      <p class="card">There is no such queue (any more). <a href="#/queues">All queues</a></p>
    </>
  );
}

function Heading({ row, again }: { row: QueueRow; again: () => void }) {
  const mayPurge = useOperation("queue", "purge");
  const mayDelete = useOperation("queue", "delete");
  const mayReplay = useOperation("queue", "replay");
  const mayPause = useOperation("queue", "pause");
  const names = { vhost: row.vhost, queue: row.name };
  const remove = async () => {
    if (await change(`Queue ${row.name} is deleted.`, "queue", "delete", names)) location.hash = "#/queues";
  };
  const purge = async () => {
    if (await change(`Queue ${row.name} is purged.`, "queue", "purge", names)) again();
  };
  const paused = row.state === "paused";
  const turn = async () => {
    if (await change(`Queue ${row.name} ${paused ? "hands out messages again" : "is paused"}.`, "queue",
      paused ? "resume" : "pause", names)) again();
  };
  return (
    <div class="title">
      <div>
        <div class="crumb"><a href="#/queues">Queues</a> · vhost {row.vhost}</div>
        <h1>{row.name}</h1>
      </div>
      <span><Features row={row} /></span>
      {row.type === "stream" && <To page="streams" names={[row.vhost, row.name]}>Readers and live messages</To>}
      <span class="space" />
      <Actions>
        {row.type !== "stream" && <CopyButton vhost={row.vhost} queue={row.name} />}
        {mayReplay && row.durable && row.type !== "stream" && <ReplayButton names={names} done={again} />}
        <PublishButton vhost={row.vhost} exchange="" routingKey={row.name} done={again} />
        {mayPause && row.state !== "down" && <button type="button" onClick={() => void turn()}
          title={paused ? undefined : "Messages come in and wait; none goes out until you resume the queue"}>
          {paused ? "Resume" : "Pause"}</button>}
        {mayPurge && <DangerButton label="Purge" title={`Purge ${row.name}?`} act={purge}
          text={`${plural(row.messages_ready, "ready message")} will be gone. Unacked messages stay.`} />}
        {mayDelete && <DangerButton label="Delete" title={`Delete ${row.name}?`} act={remove}
          text={`The queue, ${plural(row.messages, "message")} and its bindings will be gone, and ${
            plural(row.consumers, "consumer")} will be cancelled.`} />}
      </Actions>
    </div>
  );
}

/** Settled messages that are still on disk become ready again. */
function ReplayButton({ names, done }: { names: { vhost: string; queue: string }; done: () => void }) {
  return (
    <FormButton title="Replay" label="Do it" fields={[
      { name: "since", label: "Since", help: "A time such as 2026-01-31T12:00:00Z; empty: all that is still on disk." },
      { name: "seqs", label: "Numbers", help: "Such as 5,8,10-20; empty: all." },
      { name: "group", label: "Message group", help: "Empty: all." },
      { name: "dry_run", label: "only say how many there are", kind: "check", first: true },
    ]} send={async (values) => {
      try {
        const { replayed } = await perform<{ replayed: number }>("queue", "replay", { ...names, ...values });
        say(values.dry_run ? `${plural(replayed, "settled message")} can be replayed; nothing was changed.`
          : `${plural(replayed, "message")} ready again.`);
        done();
        return !values.dry_run;
      } catch (error) {
        say((error as Refusal).message, true);
        return false;
      }
    }} />
  );
}

function Guarantee({ ordering }: { ordering: Ordering }) {
  const { guarantee, reasons, notes, journal } = ordering;
  return (
    <section class="card">
      <h2>Order</h2>
      <span class={guarantee === "best-effort" ? "guarantee" : "guarantee strong"}>{guarantee}</span>
      <p>{WORDS[guarantee]}</p>
      <b>Because</b>
      <ul class="reasons">{reasons.map((reason) => <li key={reason}>{reason}</li>)}</ul>
      {notes.length > 0 && <><p><b>Also</b></p>
        <ul class="reasons">{notes.map((note) => <li key={note}>{note}</li>)}</ul></>}
      <p class="quiet">Order journal: {journal.on ? "on" : "off"}{journal.why && ` (${journal.why})`}
        {journal.kept_octets > 0 && `, ${octets(journal.kept_octets)} kept of settled messages`}</p>
    </section>
  );
}

const sum = (of: Record<string, number>) => Object.values(of).reduce((all, each) => all + each, 0);
const parts = (of: Record<string, number>) => Object.entries(of).filter(([, each]) => each)
  .map(([name, each]) => `${name.replaceAll("_", " ")} ${count(each)}`).join(", ");

function Disturbances({ ordering }: { ordering: Ordering }) {
  const { since_start: now, since_declare: ever } = ordering.counters;
  const rows: [string, number, number, string][] = [
    ["Overtaken", now.overtakings, ever.overtakings, "a later message was handed out before one that came back"],
    ["Out of sequence", now.out_of_sequence, ever.out_of_sequence, ""],
    ["Given back", sum(now.returned), sum(ever.returned), parts(ever.returned)],
    ["Redelivered", now.redelivered, ever.redelivered, ""],
    ["Redelivered after a restart", now.redelivered_after_restart, ever.redelivered_after_restart, ""],
    ["Dead-lettered", sum(now.dead_lettered), sum(ever.dead_lettered), parts(ever.dead_lettered)],
    ["Dropped", sum(now.dropped), sum(ever.dropped), parts(ever.dropped)],
  ];
  return (
    <section class="card">
      <h2>What has disturbed the order</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="What has disturbed the order">
        <table>
          <thead><tr><th scope="col">What</th><th scope="col" class="right">Since start</th>
            <th scope="col" class="right">Since declare</th></tr></thead>
          <tbody>{rows.map(([label, one, all, detail]) => (
            <tr key={label}><td>{label}{detail && <><br /><small>{detail}</small></>}</td>
              <td class="right">{count(one)}</td><td class="right">{count(all)}</td></tr>
          ))}</tbody>
        </table>
      </div>
    </section>
  );
}

function Consumers({ ordering }: { ordering: Ordering }) {
  const rows = ordering.consumers;
  return (
    <section class="card">
      <h2>Consumers and what each holds</h2>
      {!rows.length ? <p class="quiet">No client consumes. Messages wait until a client does.</p> : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Consumers">
          <table>
            <thead><tr><th scope="col">Tag</th><th scope="col" class="right">Holds</th>
              <th scope="col" class="right">Prefetch</th><th scope="col" class="wide">User</th>
              <th scope="col">Client</th><th scope="col" class="wide">State</th></tr></thead>
            <tbody>{rows.map((each) => (
              <tr key={each.number}>
                <td><code>{each.tag}</code></td><td class="right">{count(each.unacked)}</td>
                <td class="right">{each.prefetch || each.global_prefetch || "no limit"}</td>
                <td class="wide">{each.user}</td><td>{each.peer}</td>
                <td class="wide">{each.active ? <Tag>served</Tag> : <span class="quiet">waits for the active one</span>}
                  {each.no_ack && <Tag>no acks</Tag>}{each.priority !== 0 && <Tag>priority {each.priority}</Tag>}</td>
              </tr>
            ))}</tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Rules({ row }: { row: QueueRow }) {
  return (
    <section class="card">
      <h2>Rules in effect</h2>
      <Facts rows={[
        ["Arguments", <Arguments of={row.arguments} />],
        ["Policy", row.policy ?? "none"],
        ["Operator policy", row.operator_policy ?? "none"],
        ["By policies", <Arguments of={row.effective_policy_definition} />],
        ...(row.effective_arguments ? [["Together", <Arguments of={row.effective_arguments} />] as
          [string, preact.ComponentChildren]] : []),
      ]} />
    </section>
  );
}
