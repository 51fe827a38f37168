// Definitions: all that is declared as one file, and a preview of what a file would change before it is imported.

import { useState } from "preact/hooks";
import { ask, inPath, type Refusal, useMethods } from "./api.ts";
import { count, plural, value } from "./format.ts";
import { change, say } from "./parts.tsx";

type Row = Record<string, unknown>;
type Definitions = Record<string, Row[] | unknown>;

/** Which fields name a thing of each kind. */
const KINDS: Record<string, string[]> = {
  vhosts: ["name"], users: ["name"], permissions: ["user", "vhost"], topic_permissions: ["user", "vhost", "exchange"],
  parameters: ["vhost", "component", "name"], global_parameters: ["name"], policies: ["vhost", "name"],
  exchanges: ["vhost", "name"], queues: ["vhost", "name"],
  bindings: ["vhost", "source", "destination_type", "destination", "routing_key", "arguments"],
};

interface Difference { kind: string; name: string; what: "new" | "changed" }
interface Preview { text: string; parsed: Definitions; file: string; differences: Difference[]; same: number }

/** What an import of ``next`` would change. */
export function compare(now: Definitions, next: Definitions): { differences: Difference[]; same: number } {
  const differences: Difference[] = [];
  let same = 0;
  for (const [kind, keys] of Object.entries(KINDS)) {
    const nameOf = (row: Row) => keys.map((key) => value(row[key] ?? "")).join(" · ");
    const rows = (of: Definitions) => (Array.isArray(of[kind]) ? (of[kind] as Row[]) : []);
    const held = new Map(rows(now).map((row) => [nameOf(row), row]));
    for (const row of rows(next)) {
      const name = nameOf(row);
      const there = held.get(name);
      if (!there) differences.push({ kind, name, what: "new" });
      else if (Object.keys(row).some((key) => sorted(row[key]) !== sorted(there[key]))) {
        differences.push({ kind, name, what: "changed" });
      } else same += 1;
    }
  }
  return { differences, same };
}

function sorted(each: unknown): string {
  return JSON.stringify(each, (_key, held) => (held && typeof held === "object" && !Array.isArray(held)
    ? Object.fromEntries(Object.entries(held).sort()) : held)) ?? "";
}

export function Definitions() {
  const methods = useMethods("/api/definitions");
  return (
    <>
      <div class="title"><h1>Definitions</h1></div>
      <p class="quiet">Vhosts, users, permissions, policies, exchanges, queues and bindings as one JSON file, which RabbitMQ
        and LavinMQ read, too. It holds no messages.</p>
      {methods.has("GET") && <Export />}
      {methods.has("POST") && <Import />}
      {!methods.has("GET") && !methods.has("POST") && <p class="card">This broker does not export definitions.</p>}
    </>
  );
}

function Export() {
  const save = async () => {
    try {
      const text = JSON.stringify(await ask("/api/definitions"), null, 2);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
      link.download = `brokerd-definitions-${new Date().toISOString().slice(0, 10)}.json`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    } catch (error) {
      say((error as Refusal).message, true);
    }
  };
  return (
    <section class="card">
      <h2>Export</h2>
      <p>The file has hashes of passwords: keep it where only operators read it.</p>
      <button type="button" onClick={() => void save()}>Download definitions</button>
    </section>
  );
}

function Import() {
  const [preview, setPreview] = useState<Preview | null>(null);
  const [wrong, setWrong] = useState("");
  const choose = async (file: File | undefined) => {
    setPreview(null);
    setWrong("");
    if (!file) return;
    const text = await file.text();
    try {
      const parsed = JSON.parse(text);
      const vhost = parsed.vhosts || parsed.users ? "" : "/";
      const now = await ask<Definitions>(`/api/definitions${vhost && `/${inPath(vhost)}`}`);
      setPreview({ text, parsed, file: file.name, ...compare(now, parsed) });
    } catch (error) {
      setWrong(error instanceof SyntaxError ? `${file.name} is no JSON: ${error.message}` : (error as Error).message);
    }
  };
  const apply = async () => {
    if (await change(`${preview!.file} is imported.`, "/api/definitions", "POST", preview!.parsed)) setPreview(null);
  };
  return (
    <section class="card">
      <h2>Import</h2>
      <p>What is in the file is added or changed; nothing is removed. First you see what would change.</p>
      <label class="button" for="file">Choose a file …</label>
      <input id="file" class="hidden" type="file" accept="application/json,.json"
        onChange={(event) => void choose(event.currentTarget.files?.[0])} />
      {wrong && <p class="wrong" role="alert">{wrong}</p>}
      {preview && <Changes preview={preview} apply={() => void apply()} />}
    </section>
  );
}

const SHOWN = 200;

function Changes({ preview, apply }: { preview: Preview; apply: () => void }) {
  const { differences, same, file } = preview;
  return (
    <div role="status">
      <p><b>{file}</b>: {plural(differences.filter((each) => each.what === "new").length, "new thing")},{" "}
        {plural(differences.filter((each) => each.what === "changed").length, "change")}, {count(same)} as they are now.</p>
      {differences.length > 0 && (
        <>
          <div class="scroll" tabIndex={0} role="region" aria-label="What would change">
            <table>
              <thead><tr><th scope="col">What</th><th scope="col">Kind</th><th scope="col">Name</th></tr></thead>
              <tbody>{differences.slice(0, SHOWN).map((each) => (
                <tr key={`${each.kind} ${each.name}`}><td>{each.what}</td><td>{each.kind.replaceAll("_", " ")}</td>
                  <td>{each.name}</td></tr>
              ))}</tbody>
            </table>
          </div>
          {differences.length > SHOWN && <p class="quiet">… and {count(differences.length - SHOWN)} more.</p>}
          <p><button type="button" class="solid" onClick={apply}>Import {file}</button></p>
        </>
      )}
    </div>
  );
}
