// Connections and channels.

import { useOperation } from "./api.ts";
import { count, moment, octets, rate } from "./format.ts";
import { change, DangerButton, Table, Tag } from "./parts.tsx";
import { rateOf } from "./queues.tsx";

interface ConnectionRow {
  name: string;
  user_provided_name: string | null;
  user: string;
  vhost: string | null;
  state: string;
  ssl: boolean;
  channels: number;
  timeout: number;
  connected_at: number;
  client_properties: Record<string, unknown>;
  recv_oct_details?: { rate: number };
  send_oct_details?: { rate: number };
}

const octetRate = (of: { rate: number } | undefined) => (of ? `${octets(of.rate)}/s` : "–");

export function Connections() {
  const mayClose = useOperation("connection", "close");
  return (
    <>
      <div class="title"><h1>Connections</h1></div>
      <Table<ConnectionRow> noun="connections" path="/api/connections" keyOf={(row) => row.name}
        empty="No client is connected."
        columns={[
          { label: "Client", sort: "name", cell: (row) => <>{row.user_provided_name && <b>{row.user_provided_name}<br /></b>}
            {row.name}<br /><small>{softwareOf(row)}</small></> },
          { label: "User", sort: "user", cell: (row) => row.user },
          { label: "Vhost", sort: "vhost", wide: true, cell: (row) => row.vhost },
          { label: "State", sort: "state", wide: true, cell: (row) => <>{row.ssl && <Tag>TLS</Tag>}{row.state}</> },
          { label: "Channels", sort: "channels", right: true, wide: true, cell: (row) => count(row.channels) },
          { label: "In", sort: "recv_oct_details.rate", right: true, wide: true, cell: (row) => octetRate(row.recv_oct_details) },
          { label: "Out", sort: "send_oct_details.rate", right: true, wide: true, cell: (row) => octetRate(row.send_oct_details) },
          { label: "Since", sort: "connected_at", wide: true, cell: (row) => moment(row.connected_at) },
          { label: "", right: true, cell: (row) => mayClose && (
            <DangerButton label="Close" title="Close the connection?" text={`${row.name} of ${row.user} will be closed. ${
              ""}What it holds unacked goes back to the queues.`}
              act={() => change("The connection is closed.", "connection", "close", { connection: row.name })} />
          ) },
        ]} />
    </>
  );
}

function softwareOf(row: ConnectionRow): string {
  const { product, version } = row.client_properties as { product?: unknown; version?: unknown };
  return [product, version].filter((each) => typeof each === "string").join(" ");
}

interface ChannelRow {
  name: string;
  user: string;
  vhost: string;
  state: string;
  consumer_count: number;
  prefetch_count: number;
  confirm: boolean;
  transactional: boolean;
  messages_unacknowledged: number;
  messages_unconfirmed: number;
  message_stats?: Record<string, number>;
}

export function Channels() {
  return (
    <>
      <div class="title"><h1>Channels</h1></div>
      <Table<ChannelRow> noun="channels" path="/api/channels" keyOf={(row) => row.name} empty="No client has a channel."
        columns={[
          { label: "Channel", sort: "name", cell: (row) => row.name },
          { label: "User", sort: "user", cell: (row) => row.user },
          { label: "Vhost", sort: "vhost", wide: true, cell: (row) => row.vhost },
          { label: "Mode", wide: true, cell: (row) => <>{row.confirm && <Tag>confirms</Tag>}
            {row.transactional && <Tag>transactions</Tag>}{row.state === "flow" && <Tag>paused</Tag>}</> },
          { label: "Consumers", sort: "consumer_count", right: true, wide: true, cell: (row) => count(row.consumer_count) },
          { label: "Prefetch", sort: "prefetch_count", right: true, wide: true,
            cell: (row) => (row.prefetch_count ? count(row.prefetch_count) : "no limit") },
          { label: "Unacked", sort: "messages_unacknowledged", right: true, cell: (row) => count(row.messages_unacknowledged) },
          { label: "Published", sort: "message_stats.publish_details.rate", right: true, wide: true,
            cell: (row) => rate(rateOf(row, "publish")) },
          { label: "Unconfirmed", sort: "messages_unconfirmed", right: true, wide: true,
            cell: (row) => (row.confirm ? count(row.messages_unconfirmed) : "–") },
          { label: "Delivered", sort: "message_stats.deliver_get_details.rate", right: true, wide: true,
            cell: (row) => rate(rateOf(row, "deliver_get")) },
          { label: "Acked", sort: "message_stats.ack_details.rate", right: true, wide: true,
            cell: (row) => rate(rateOf(row, "ack")) },
        ]} />
    </>
  );
}
