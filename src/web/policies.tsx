// Policies and operator policies, with a preview of what a pattern matches before it is in force.

import { useEffect, useState } from "preact/hooks";
import { hasTag, inPath, useAsked, useOperation } from "./api.ts";
import { count } from "./format.ts";
import { Arguments, change, DangerButton, type FieldRow, FormButton, objectOf, type Paged, Table, type Values,
  } from "./parts.tsx";
import { useVHosts } from "./queues.tsx";

interface PolicyRow {
  vhost: string;
  name: string;
  pattern: string;
  "apply-to": string;
  priority: number;
  definition: Record<string, unknown>;
}

const TARGETS = ["all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams"];

export function Policies() {
  return (
    <>
      <div class="title"><h1>Policies</h1></div>
      <p class="quiet">A policy gives arguments to all queues and exchanges that its pattern matches. Of several that match,
        the one with the highest priority holds.</p>
      <List noun="policies" path="/api/policies" kind="policy" may={hasTag("policymaker")} title="New policy" />
      <div class="title"><h1>Operator policies</h1></div>
      <p class="quiet">An operator policy sets limits that neither arguments nor policies can exceed.</p>
      <List noun="operator policies" path="/api/operator-policies" kind="operator_policy" may={hasTag("administrator")}
        title="New operator policy" />
    </>
  );
}

interface ListProps { noun: string; path: string; kind: string; may: boolean; title: string }

function List({ noun, path, kind, may, title }: ListProps) {
  const maySet = useOperation(kind, "set") && may;
  const mayDelete = useOperation(kind, "delete") && may;
  const vhosts = useVHosts();
  return (
    <Table<PolicyRow> noun={noun} path={path} keyOf={(row) => `${row.vhost}\0${row.name}`}
      actions={(again) => maySet && <New kind={kind} title={title} vhosts={vhosts} done={again} />}
      columns={[
        { label: "Name", sort: "name", cell: (row) => <b>{row.name}</b> },
        { label: "Vhost", sort: "vhost", wide: true, cell: (row) => row.vhost },
        { label: "Pattern", sort: "pattern", cell: (row) => <code>{row.pattern}</code> },
        { label: "Applies to", wide: true, cell: (row) => row["apply-to"] },
        { label: "Gives", cell: (row) => <Arguments of={row.definition} /> },
        { label: "Priority", sort: "priority", right: true, cell: (row) => count(row.priority) },
        { label: "", right: true, cell: (row) => mayDelete && (
          <DangerButton label="Delete" title={`Delete ${row.name}?`}
            text={`What matches ${row.pattern} loses what this policy gives, at once.`}
            act={() => change(`Policy ${row.name} is deleted.`, kind, "delete", { vhost: row.vhost, name: row.name })} />
        ) },
      ]} />
  );
}

function New({ kind, title, vhosts, done }: { kind: string; title: string; vhosts: string[]; done: () => void }) {
  const fields: FieldRow[] = [
    { name: "vhost", label: "Vhost", kind: "choice", choices: vhosts },
    { name: "name", label: "Name", required: true },
    { name: "pattern", label: "Pattern", required: true, first: "^", help: "A regular expression on names" },
    { name: "target", label: "Applies to", kind: "choice", choices: TARGETS },
    { name: "priority", label: "Priority", kind: "number", first: "0" },
    { name: "definition", label: "Gives", kind: "json", help: 'Such as {"max-length": 10000, "message-ttl": 60000}' },
  ];
  const [values, setValues] = useState<Values>({ vhost: vhosts[0], pattern: "^", target: "all" });
  return (
    <FormButton title={title} label="Set" fields={fields} watch={setValues} send={async (all) => {
      const fine = await change(`Policy ${all.name} is in force.`, kind, "set", {
        vhost: all.vhost, name: all.name, pattern: all.pattern, apply_to: all.target, priority: Number(all.priority),
        definition: objectOf(all, "definition"),
      });
      if (fine) done();
      return fine;
    }}>
      <Preview vhost={(values.vhost as string) || vhosts[0]} pattern={values.pattern as string}
        target={values.target as string} />
    </FormButton>
  );
}

const SHOWN = 8;

/** What the broker's own engine of patterns finds. */
function Preview({ vhost, pattern, target }: { vhost: string; pattern: string; target: string }) {
  const [settled, setSettled] = useState(pattern);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(pattern), 250);
    return () => clearTimeout(timer);
  }, [pattern]);
  const query = new URLSearchParams({ page: "1", page_size: String(SHOWN), name: settled, use_regex: "true" });
  const path = (noun: string) => (settled ? `/api/${noun}/${inPath(vhost)}?${query}` : null);
  const queues = useAsked<Paged<{ name: string }>>(target !== "exchanges" ? path("queues") : null, 0);
  const exchanges = useAsked<Paged<{ name: string }>>(["all", "exchanges"].includes(target) ? path("exchanges") : null, 0);
  const wrong = queues.error ?? exchanges.error;
  return (
    <div class="preview" role="status">
      <b>This pattern matches</b>
      {wrong ? <p class="wrong">{wrong.message}</p> : (
        <>
          {target !== "exchanges" && <Matches noun="queues" found={queues.data} />}
          {["all", "exchanges"].includes(target) && <Matches noun="exchanges" found={exchanges.data} />}
        </>
      )}
    </div>
  );
}

function Matches({ noun, found }: { noun: string; found: Paged<{ name: string }> | undefined }) {
  if (!found) return null;
  const names = found.items.map((row) => row.name || "(default)").join(", ");
  return <p>{count(found.filtered_count)} {noun}{names && ": "}<span class="quiet">{names}
    {found.filtered_count > SHOWN && ", …"}</span></p>;
}
