// The whole broker at a glance: alarms in words, numbers, and charts that move.

import { useEffect, useState } from "preact/hooks";
import { ask, hasTag, reachable, useAsked } from "./api.ts";
import { Chart } from "./chart.tsx";
import { count, octets, rate, span } from "./format.ts";
import { Facts } from "./parts.tsx";

interface Samples { samples?: { sample: number; timestamp: number }[]; rate: number }
interface Overview {
  product_version: string;
  cluster_name: string;
  object_totals: Record<string, number>;
  queue_totals: Record<string, number> & { messages_ready_details?: Samples; messages_unacknowledged_details?: Samples };
  message_stats: Record<string, number | Samples>;
}
interface Live {
  time: number;
  unavailable?: boolean;
  alarms: string[];
  mem_used: number;
  mem_limit: number;
  disk_free: number;
  disk_free_limit: number;
  fd_used: number;
  fd_total: number;
  uptime_seconds: number;
  version: string;
  blocked_connections: number;
  totals: Record<string, number>;
  rates: Record<string, number>;
}
/** One moment of all charts. */
interface Point { time: number; values: Record<string, number | null> }

const KEPT = 360;
const HISTORY = "lengths_age=900&lengths_incr=5&msg_rates_age=900&msg_rates_incr=5&node_stats_age=900&node_stats_incr=5";

const ALARMS: Record<string, { what: string; todo: string }> = {
  memory: {
    what: "Memory is short, so publishers wait.",
    todo: "Let consumers catch up, close connections that read too slowly, or raise the memory limit.",
  },
  disk: {
    what: "Disk space is short, so publishers wait.",
    todo: "Free space on the disk of the data directory, purge or consume long queues, or lower the limit of free space.",
  },
  "file descriptors": {
    what: "File descriptors are short, so new connections may be refused.",
    todo: "Close connections that are not needed, or raise the limit of open files (LimitNOFILE in the unit).",
  },
};

/** What the charts know: the history of the last quarter of an hour, then what is told as it happens. */
function useLive(): { live: Live | undefined; points: Point[] } {
  const [live, setLive] = useState<Live>();
  const [points, setPoints] = useState<Point[]>([]);
  const isThere = reachable.use();
  useEffect(() => {
    if (!isThere) return;
    let ended = false;
    let source: EventSource | undefined;
    const begin = async () => {
      const past = await findPast().catch(() => [] as Point[]);
      if (ended) return;
      setPoints(past);
      source = new EventSource("/api/v2/live");
      source.addEventListener("overview", (event) => {
        const sample: Live = JSON.parse(event.data);
        if (sample.unavailable) return;
        setLive(sample);
        // The first sample that is told may be the last one of the history.
        setPoints((before) => [...before.filter((point) => point.time < sample.time - 1), pointOf(sample)].slice(-KEPT));
      });
      // A request finds out whether the broker has gone or only this stream.
      source.onerror = () => void ask("/api/whoami").catch(() => undefined);
    };
    void begin();
    return () => {
      ended = true;
      source?.close();
    };
  }, [isThere]);
  return { live, points };
}

function pointOf(live: Live): Point {
  const rates = live.rates;
  return {
    time: live.time,
    values: {
      publish: rates["message_stats.publish_in"] ?? rates["message_stats.publish"] ?? 0,
      deliver: (rates["message_stats.deliver"] ?? 0) + (rates["message_stats.get"] ?? 0),
      ack: rates["message_stats.ack"] ?? 0,
      redeliver: rates["message_stats.redeliver"] ?? 0,
      ready: live.totals.messages_ready,
      unacked: live.totals.messages_unacknowledged,
      connections: live.totals.connections,
      channels: live.totals.channels,
      memory: live.mem_used,
      disk: live.disk_free,
    },
  };
}

async function findPast(): Promise<Point[]> {
  const [overview, [node]] = await Promise.all([
    ask<Overview>(`/api/overview?${HISTORY}`), ask<Record<string, Samples>[]>(`/api/nodes?${HISTORY}`),
  ]);
  const stats = overview.message_stats as Record<string, Samples>;
  const held = overview.queue_totals;
  const values: Record<string, Map<number, number>> = {
    publish: slopes(stats.publish_details), deliver: slopes(stats.deliver_get_details), ack: slopes(stats.ack_details),
    redeliver: slopes(stats.redeliver_details), ready: levels(held.messages_ready_details),
    unacked: levels(held.messages_unacknowledged_details), memory: levels(node.mem_used_details),
    disk: levels(node.disk_free_details), connections: levels(node.sockets_used_details),
  };
  return [...values.ready.keys()].sort((one, other) => one - other).map((time) => ({
    time, values: Object.fromEntries(Object.entries(values).map(([name, all]) => [name, all.get(time) ?? null])),
  }));
}

const inOrder = (of: Samples | undefined) => [...(of?.samples ?? [])].reverse();
const levels = (of: Samples | undefined) => new Map(inOrder(of).map((each) => [each.timestamp / 1000, each.sample]));

/** Samples of a counter as rates. */
function slopes(of: Samples | undefined): Map<number, number> {
  const all = inOrder(of);
  return new Map(all.slice(1).map((each, at) => [each.timestamp / 1000,
    Math.max(0, ((each.sample - all[at].sample) * 1000) / (each.timestamp - all[at].timestamp || 1))]));
}

/** What users see who may not see the broker as a whole: what their vhosts hold, asked for now and then. */
function usePoints(overview: Overview | undefined): Point[] {
  const [points, setPoints] = useState<Point[]>([]);
  useEffect(() => {
    if (!overview) return;
    const rateOf = (name: string) => (overview.message_stats[`${name}_details`] as Samples | undefined)?.rate ?? 0;
    const totals = overview.object_totals;
    setPoints((before) => [...before, { time: Date.now() / 1000, values: {
      publish: rateOf("publish"), deliver: rateOf("deliver_get"), ack: rateOf("ack"), redeliver: rateOf("redeliver"),
      ready: overview.queue_totals.messages_ready, unacked: overview.queue_totals.messages_unacknowledged,
      connections: totals.connections, channels: totals.channels,
    } }].slice(-KEPT));
  }, [overview]);
  return points;
}

export function Overview() {
  return hasTag("monitoring") ? <Whole /> : <Own />;
}

function Whole() {
  const { live, points } = useLive();
  if (!live) return <Heading text="Overview" />;
  return (
    <>
      <Heading text="Overview" />
      <Alarms live={live} />
      <Numbers totals={live.totals} />
      <Charts points={points} />
      <div class="grid">
        <Chart title="Memory" times={timesOf(points)} show={octets}
          lines={[{ name: "used", colour: "--c1", values: pick(points, "memory") }]} />
        <Chart title="Disk" times={timesOf(points)} show={octets}
          lines={[{ name: "free", colour: "--c2", values: pick(points, "disk") }]} />
      </div>
      <section class="card"><h2>Broker</h2>
        <Facts rows={[
          ["Version", live.version], ["Up", span(live.uptime_seconds)],
          ["Memory limit", live.mem_limit ? octets(live.mem_limit) : "none"],
          ["Least free disk space", octets(live.disk_free_limit)],
          ["File descriptors", `${count(live.fd_used)} of ${count(live.fd_total)}`],
          ["Blocked connections", count(live.blocked_connections)],
        ]} />
      </section>
    </>
  );
}

function Own() {
  const { data } = useAsked<Overview>("/api/overview");
  const points = usePoints(data);
  if (!data) return <Heading text="Overview" />;
  return (
    <>
      <Heading text="Overview" />
      <Numbers totals={{ ...data.object_totals, ...data.queue_totals }} />
      <Charts points={points} />
    </>
  );
}

const Heading = ({ text }: { text: string }) => <div class="title"><h1>{text}</h1></div>;
const timesOf = (points: Point[]) => points.map((point) => point.time);
const pick = (points: Point[], name: string) => points.map((point) => point.values[name] ?? null);

function Alarms({ live }: { live: Live }) {
  if (!live.alarms.length) return <p class="card fine">Nothing is short. No alarm is in effect.</p>;
  return (
    <>
      {live.alarms.map((name) => (
        <section class="card alarm" role="alert" key={name}>
          <h2>Alarm: {ALARMS[name]?.what ?? `${name} is short.`}</h2>
          <p>{ALARMS[name]?.todo ?? "The broker's log says what is short."}
            {name === "memory" && ` Used: ${octets(live.mem_used)} of ${octets(live.mem_limit)}.`}
            {name === "disk" && ` Free: ${octets(live.disk_free)}; at least ${octets(live.disk_free_limit)} must be.`}
          </p>
        </section>
      ))}
    </>
  );
}

function Numbers({ totals }: { totals: Record<string, number> }) {
  const rows: [string, string, string?][] = [
    ["Queues", "queues", "queues"], ["Messages ready", "messages_ready", "queues"],
    ["Messages unacked", "messages_unacknowledged", "queues"], ["Consumers", "consumers"],
    ["Connections", "connections", "connections"], ["Channels", "channels", "channels"],
    ["Exchanges", "exchanges", "exchanges"],
  ];
  return (
    <div class="numbers">
      {rows.map(([label, name, page]) => {
        const inner = <><b>{count(totals[name])}</b><span>{label}</span></>;
        return page ? <a key={label} class="number" href={`#/${page}`}>{inner}</a>
          : <div key={label} class="number">{inner}</div>;
      })}
    </div>
  );
}

function Charts({ points }: { points: Point[] }) {
  const times = timesOf(points);
  return (
    <div class="grid">
      <Chart title="Message rates" times={times} show={rate} lines={[
        { name: "published", colour: "--c1", values: pick(points, "publish") },
        { name: "delivered", colour: "--c2", values: pick(points, "deliver") },
        { name: "acked", colour: "--c3", values: pick(points, "ack") },
        { name: "redelivered", colour: "--c4", values: pick(points, "redeliver") },
      ]} />
      <Chart title="Messages in queues" times={times} show={count} lines={[
        { name: "ready", colour: "--c1", values: pick(points, "ready") },
        { name: "unacked", colour: "--c3", values: pick(points, "unacked") },
      ]} />
      <Chart title="Clients" times={times} show={count} lines={[
        { name: "connections", colour: "--c1", values: pick(points, "connections") },
        { name: "channels", colour: "--c2", values: pick(points, "channels") },
      ]} />
    </div>
  );
}
