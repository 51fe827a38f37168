// Bindings of an exchange or a queue: what routes here, what goes on from here, new ones.

import { useAsked, useOperation } from "./api.ts";
import { change, FormButton, objectOf, To } from "./parts.tsx";
import { value } from "./format.ts";

interface Binding {
  source: string;
  vhost: string;
  destination: string;
  destination_type: "queue" | "exchange";
  routing_key: string;
  arguments: Record<string, unknown>;
  properties_key: string;
}

interface Props {
  title: string;
  path: string; // of the list
  vhost: string;
  source?: string; // new bindings begin there
  destination?: { type: "queue" | "exchange"; name: string }; // or lead there
}

export function Bindings({ title, path, vhost, source, destination }: Props) {
  const { data, again } = useAsked<Binding[]>(path);
  const mayBind = useOperation("binding", "add");
  const mayUnbind = useOperation("binding", "delete");
  const bind = async (body: object) => {
    const fine = await change("The binding is there.", "binding", "add", { vhost, ...body });
    if (fine) again();
    return fine;
  };
  const unbind = async (row: Binding) => {
    const fine = await change("The binding is gone.", "binding", "delete", {
      vhost, source: row.source, destination: row.destination, destination_type: row.destination_type,
      properties_key: row.properties_key,
    });
    if (fine) again();
  };
  const rows = data ?? [];
  return (
    <section class="card">
      <div class="tools"><h2>{title}</h2><span class="space" />
        {mayBind && source !== "" && <New source={source} destination={destination} bind={bind} />}</div>
      {!rows.length ? <p class="quiet">No bindings.</p> : (
        <div class="scroll" tabIndex={0} role="region" aria-label={title}>
          <table>
            <thead><tr><th scope="col">{destination ? "From" : "To"}</th><th scope="col">Routing key</th>
              <th scope="col" class="wide">Arguments</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
            <tbody>{rows.map((row) => (
              <tr key={[row.source, row.destination_type, row.destination, row.properties_key].join("\0")}>
                <td>{destination ? <To page="exchanges" names={[vhost, row.source]} />
                  : <To page={`${row.destination_type}s`} names={[vhost, row.destination]} />}</td>
                <td><code>{row.routing_key}</code></td>
                <td class="wide">{Object.keys(row.arguments).length ? <code>{value(row.arguments)}</code> : ""}</td>
                <td class="right">{mayUnbind && row.source !== "" &&
                  <button type="button" class="small danger" aria-label={`Unbind ${row.source} ${row.routing_key}`}
                    onClick={() => void unbind(row)}>Unbind</button>}</td>
              </tr>
            ))}</tbody>
          </table>
        </div>
      )}
    </section>
  );
}

interface NewProps {
  source: string | undefined;
  destination: Props["destination"];
  bind: (body: object) => Promise<boolean>;
}

function New({ source, destination, bind }: NewProps) {
  return (
    <FormButton title="Bind" label="Bind" fields={[
      ...(destination ? [{ name: "other", label: "From exchange", required: true }] : [
        { name: "type", label: "To", kind: "choice" as const, choices: ["queue", "exchange"] },
        { name: "other", label: "Its name", required: true },
      ]),
      { name: "key", label: "Routing key" },
      { name: "arguments", label: "Arguments", kind: "json" },
    ]} send={(values) => {
      const shared = { routing_key: values.key, arguments: objectOf(values, "arguments") };
      return bind(destination
        ? { ...shared, source: values.other, destination: destination.name, destination_type: destination.type }
        : { ...shared, source, destination: values.other, destination_type: values.type });
    }} />
  );
}

