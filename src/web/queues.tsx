// The list of queues, and a new one.

import { useAsked, useOperation } from "./api.ts";
import { count, rate } from "./format.ts";
import { change, FormButton, objectOf, Table, Tag, To } from "./parts.tsx";

export interface QueueRow {
  name: string;
  vhost: string;
  type: string;
  durable: boolean;
  auto_delete: boolean;
  exclusive: boolean;
  state: string;
  policy: string | null;
  operator_policy: string | null;
  arguments: Record<string, unknown>;
  effective_policy_definition: Record<string, unknown>;
  effective_arguments?: Record<string, unknown>;
  messages: number;
  messages_ready: number;
  messages_unacknowledged: number;
  consumers: number;
  message_stats?: Record<string, number & { rate?: number }>;
}

export const rateOf = (row: { message_stats?: Record<string, unknown> }, name: string) =>
  (row.message_stats?.[`${name}_details`] as { rate: number } | undefined)?.rate;

/** The names of the vhosts that the user sees. */
export function useVHosts(): string[] {
  const { data } = useAsked<{ name: string }[]>("/api/vhosts", 60);
  return data?.map((row) => row.name) ?? ["/"];
}

export function Features({ row }: { row: QueueRow }) {
  return (
    <>
      {row.type !== "classic" && <Tag>{row.type}</Tag>}
      {row.durable && <Tag>durable</Tag>}
      {row.auto_delete && <Tag>auto-delete</Tag>}
      {row.exclusive && <Tag>exclusive</Tag>}
      {row.policy && <Tag>policy {row.policy}</Tag>}
      {row.operator_policy && <Tag>operator policy {row.operator_policy}</Tag>}
      {row.state !== "running" && <Tag>{row.state}</Tag>}
    </>
  );
}

export function Queues() {
  const vhosts = useVHosts();
  const mayDeclare = useOperation("queue", "declare");
  return (
    <>
      <div class="title"><h1>Queues</h1></div>
      <Table<QueueRow> noun="queues" path="/api/queues" keyOf={(row) => `${row.vhost}\0${row.name}`}
        empty="There is no queue yet. Clients declare queues, and so does the button above."
        actions={(again) => mayDeclare && <NewQueue vhosts={vhosts} done={again} />}
        columns={[
          { label: "Name", sort: "name", cell: (row) => <To page="queues" names={[row.vhost, row.name]} /> },
          { label: "Vhost", sort: "vhost", wide: true, cell: (row) => row.vhost },
          { label: "Features", wide: true, cell: (row) => <Features row={row} /> },
          { label: "Ready", sort: "messages_ready", right: true, cell: (row) => count(row.messages_ready) },
          { label: "Unacked", sort: "messages_unacknowledged", right: true,
            cell: (row) => count(row.messages_unacknowledged) },
          { label: "Consumers", sort: "consumers", right: true, wide: true, cell: (row) => count(row.consumers) },
          { label: "In", sort: "message_stats.publish_details.rate", right: true, wide: true,
            cell: (row) => rate(rateOf(row, "publish")) },
          { label: "Out", sort: "message_stats.deliver_get_details.rate", right: true, wide: true,
            cell: (row) => rate(rateOf(row, "deliver_get")) },
        ]} />
    </>
  );
}

function NewQueue({ vhosts, done }: { vhosts: string[]; done: () => void }) {
  return (
    <FormButton title="New queue" label="Declare" fields={[
      { name: "vhost", label: "Vhost", kind: "choice", choices: vhosts },
      { name: "name", label: "Name", required: true },
      { name: "durable", label: "durable: it is there after a restart", kind: "check", first: true },
      { name: "auto_delete", label: "auto-delete: it goes with its last consumer", kind: "check" },
      { name: "arguments", label: "Arguments", kind: "json",
        help: 'A JSON object, such as {"x-single-active-consumer": true}' },
    ]} send={async (values) => {
      const fine = await change(`Queue ${values.name} is declared.`, "queue", "declare", {
        vhost: values.vhost, queue: values.name, durable: values.durable, auto_delete: values.auto_delete,
        arguments: objectOf(values, "arguments"),
      });
      if (fine) done();
      return fine;
    }} />
  );
}
