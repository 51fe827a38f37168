// Definitions: everything that is declared, as one file; the broker says what a file would change before it is imported.

import { useState } from "preact/hooks";
import { perform, type Refusal, useOperation } from "./api.ts";
import { count, plural } from "./format.ts";
import { say } from "./parts.tsx";

interface Change { action: string; kind: string; vhost: string; name: string }
interface Imported { changes: Change[]; count: number; ignored: string[] }
interface Preview extends Imported { text: string; file: string }

const ACTIONS: Record<string, string> = {
  add: "new", replace: "changed", keep: "stays, though the file has it otherwise",
};

export function Definitions() {
  const mayExport = useOperation("definitions", "export");
  const mayImport = useOperation("definitions", "import");
  return (
    <>
      <div class="title"><h1>Definitions</h1></div>
      <p class="quiet">Vhosts, users, permissions, policies, exchanges, queues and bindings as one JSON file, which RabbitMQ
        and LavinMQ read, too. It holds no messages.</p>
      {mayExport && <Export />}
      {mayImport && <Import />}
    </>
  );
}

function Export() {
  const save = async () => {
    try {
      const text = JSON.stringify(await perform("definitions", "export"), null, 2);
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
  const send = async (text: string, dryRun: boolean) => perform<Imported>("definitions", "import",
    { text, dry_run: dryRun });
  const choose = async (input: HTMLInputElement) => {
    const file = input.files?.[0];
    setPreview(null);
    setWrong("");
    if (!file) return;
    const text = await file.text();
    input.value = ""; // The same file may be chosen again when it has been corrected.
    try {
      setPreview({ ...(await send(text, true)), text, file: file.name });
    } catch (error) {
      setWrong(`${file.name}: ${(error as Refusal).message}`);
    }
  };
  const apply = async () => {
    try {
      const done = await send(preview!.text, false);
      say(`${preview!.file} is imported: ${plural(done.count, "change")}.`);
      setPreview(null);
    } catch (error) {
      say((error as Refusal).message, true);
    }
  };
  return (
    <section class="card">
      <h2>Import</h2>
      <p>What is in the file is added or changed; nothing is removed. First you see what would change.</p>
      <label class="button" for="file">Choose a file …</label>
      <input id="file" class="hidden" type="file" accept="application/json,.json"
        onChange={(event) => void choose(event.currentTarget)} />
      {wrong && <p class="wrong" role="alert">{wrong}</p>}
      {preview && <Changes preview={preview} apply={() => void apply()} />}
    </section>
  );
}

const SHOWN = 200;

function Changes({ preview, apply }: { preview: Preview; apply: () => void }) {
  const { changes, ignored, file } = preview;
  return (
    <div role="status">
      <p><b>{file}</b>: {preview.count ? `${plural(preview.count, "change")}.` : "it would change nothing."}</p>
      {ignored.length > 0 && <p class="quiet">Not read, as it means nothing here: {ignored.join(", ")}</p>}
      {changes.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="What would change">
          <table>
            <thead><tr><th scope="col">What</th><th scope="col">Kind</th><th scope="col">Vhost</th>
              <th scope="col">Name</th></tr></thead>
            <tbody>{changes.slice(0, SHOWN).map((each, at) => (
              <tr key={at}><td>{ACTIONS[each.action] ?? each.action}</td><td>{each.kind.replaceAll("_", " ")}</td>
                <td>{each.vhost}</td><td>{each.name}</td></tr>
            ))}</tbody>
          </table>
        </div>
      )}
      {changes.length > SHOWN && <p class="quiet">… and {count(preview.count - SHOWN)} more.</p>}
      {preview.count > 0 && <p><button type="button" class="solid" onClick={apply}>Import {file}</button></p>}
    </div>
  );
}
