// Exchanges, and one exchange with what is bound to it.

import { inPath, useAsked, useOperation } from "./api.ts";
import { Bindings } from "./bindings.tsx";
import { Delayed } from "./delayed.tsx";
import { count, rate } from "./format.ts";
import { PublishButton } from "./messages.tsx";
import { Actions, Arguments, change, DangerButton, Facts, Failed, FormButton, objectOf, Table, Tag, To } from "./parts.tsx";
import { rateOf, useVHosts } from "./queues.tsx";

interface ExchangeRow {
  name: string;
  vhost: string;
  type: string;
  durable: boolean;
  auto_delete: boolean;
  internal: boolean;
  arguments: Record<string, unknown>;
  policy: string | null;
  bindings?: number;
  message_stats?: Record<string, number>;
}

const pathOf = (vhost: string, name: string) => `/api/exchanges/${inPath(vhost)}/${inPath(name || "amq.default")}`;

function Features({ row }: { row: ExchangeRow }) {
  return (
    <>
      {row.durable && <Tag>durable</Tag>}{row.auto_delete && <Tag>auto-delete</Tag>}
      {row.internal && <Tag>internal</Tag>}{row.policy && <Tag>policy {row.policy}</Tag>}
    </>
  );
}

export function Exchanges() {
  const vhosts = useVHosts();
  const types = useAsked<{ exchange_types: { name: string }[] }>("/api/overview", 0).data?.exchange_types;
  const mayDeclare = useOperation("exchange", "declare");
  return (
    <>
      <div class="title"><h1>Exchanges</h1></div>
      <Table<ExchangeRow> noun="exchanges" path="/api/exchanges" keyOf={(row) => `${row.vhost}\0${row.name}`}
        actions={(again) => mayDeclare && types && <New vhosts={vhosts} types={types.map((row) => row.name)} done={again} />}
        columns={[
          { label: "Name", sort: "name", cell: (row) => <To page="exchanges" names={[row.vhost, row.name]} /> },
          { label: "Vhost", sort: "vhost", wide: true, cell: (row) => row.vhost },
          { label: "Type", sort: "type", cell: (row) => row.type },
          { label: "Features", wide: true, cell: (row) => <Features row={row} /> },
          { label: "Bindings", sort: "bindings", right: true, wide: true, cell: (row) => count(row.bindings) },
          { label: "In", sort: "message_stats.publish_in_details.rate", right: true,
            cell: (row) => rate(rateOf(row, "publish_in")) },
          { label: "Out", sort: "message_stats.publish_out_details.rate", right: true,
            cell: (row) => rate(rateOf(row, "publish_out")) },
        ]} />
    </>
  );
}

function New({ vhosts, types, done }: { vhosts: string[]; types: string[]; done: () => void }) {
  return (
    <FormButton title="New exchange" label="Declare" fields={[
      { name: "vhost", label: "Vhost", kind: "choice", choices: vhosts },
      { name: "name", label: "Name", required: true },
      { name: "type", label: "Type", kind: "choice", choices: types },
      { name: "durable", label: "durable: it is there after a restart", kind: "check", first: true },
      { name: "auto_delete", label: "auto-delete: it goes with its last binding", kind: "check" },
      { name: "internal", label: "internal: only exchanges send to it", kind: "check" },
      { name: "arguments", label: "Arguments", kind: "json" },
    ]} send={async (values) => {
      const fine = await change(`Exchange ${values.name} is declared.`, "exchange", "declare", {
        vhost: values.vhost, exchange: values.name, type: values.type, durable: values.durable, auto_delete: values.auto_delete, internal: values.internal,
        arguments: objectOf(values, "arguments"),
      });
      if (fine) done();
      return fine;
    }} />
  );
}

export function Exchange({ vhost, name }: { vhost: string; name: string }) {
  const shown = name === "amq.default" ? "" : name;
  const path = pathOf(vhost, shown);
  const { data: row, error } = useAsked<ExchangeRow>(path);
  const mayDelete = useOperation("exchange", "delete");
  if (error) return <Failed error={error} />;
  if (!row) return <p class="empty">Loading …</p>;
  const remove = async () => {
    if (await change(`Exchange ${row.name} is deleted.`, "exchange", "delete", { vhost, exchange: shown })) location.hash = "#/exchanges";
  };
  return (
    <>
      <div class="title">
        <div>
          <div class="crumb"><a href="#/exchanges">Exchanges</a> · vhost {row.vhost}</div>
          <h1>{row.name || "(default)"}</h1>
        </div>
        <span><Tag>{row.type}</Tag><Features row={row} /></span>
        <span class="space" />
        <Actions>
          {!row.internal && <PublishButton vhost={vhost} exchange={shown} routingKey="" />}
          {mayDelete && shown && !shown.startsWith("amq.") && (
            <DangerButton label="Delete" title={`Delete ${row.name}?`} act={remove}
              text="The exchange and its bindings will be gone. Messages in queues stay." />
          )}
        </Actions>
      </div>
      <section class="card">
        <Facts rows={[
          ["Published to it", `${count(row.message_stats?.publish_in)} (${rate(rateOf(row, "publish_in"))})`],
          ["Went on to queues", `${count(row.message_stats?.publish_out)} (${rate(rateOf(row, "publish_out"))})`],
          ["Arguments", <Arguments of={row.arguments} />],
        ]} />
      </section>
      <div class="grid">
        <Bindings title="Messages go on to" path={`${path}/bindings/source`} vhost={vhost} source={shown} />
        <Bindings title="Messages come from" path={`${path}/bindings/destination`} vhost={vhost}
          destination={{ type: "exchange", name: shown }} source={shown} />
      </div>
      {shown && (row.type.startsWith("x-delayed-") || "x-delayed-type" in row.arguments || row.arguments["x-delayed-exchange"])
        && <Delayed vhost={vhost} exchange={shown} />}
    </>
  );
}
