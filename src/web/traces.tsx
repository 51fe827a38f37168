// Traces: what comes into and goes out of a vhost, written to files; begin and stop them, save and delete the files.

import { inPath, useAsked, useOperation } from "./api.ts";
import { count, moment, octets } from "./format.ts";
import { change, DangerButton, Failed, FormButton, Tag } from "./parts.tsx";
import { useVHosts } from "./queues.tsx";

interface TraceRow {
  vhost: string;
  name: string;
  format: string;
  pattern: string;
  user: string;
  since: number;
  state: string;
  why: string;
  messages: number;
  missed: number;
}

export function Traces() {
  const { data, error, again } = useAsked<{ items: TraceRow[] }>("/api/v2/tracer/list", 2, {});
  const files = useAsked<{ items: { name: string; size: number }[] }>("/api/v2/trace_file/list", 5, {});
  const vhosts = useVHosts();
  const mayStart = useOperation("tracer", "start");
  const changed = () => {
    again();
    files.again();
  };
  return (
    <>
      <div class="title">
        <h1>Traces</h1><span class="space" />
        {mayStart && (
          <FormButton title="New trace" label="Begin" fields={[
            { name: "name", label: "Name", required: true, help: "And that of its file." },
            { name: "vhost", label: "Vhost", kind: "choice", choices: vhosts },
            { name: "pattern", label: "Which messages", first: "#",
              help: "publish.EXCHANGE, deliver.QUEUE, or with * and #: deliver.# are all deliveries." },
            { name: "format", label: "Format", kind: "choice", choices: ["text", "json"] },
            { name: "max_payload_bytes", label: "Octets of each payload", kind: "number", first: "0", help: "0: all." },
          ]} send={async (values) => {
            const done = await change(`Trace ${values.name} has begun.`, "tracer", "start",
              { ...values, max_payload_bytes: Number(values.max_payload_bytes) || 0 });
            if (done) changed();
            return done;
          }} />
        )}
      </div>
      <p class="quiet">A trace writes each message that comes into or goes out of a vhost to a file, until it is stopped or the file
        has 64 MiB. Meanwhile all messages of the vhost take longer.</p>
      {error && <Failed error={error} />}
      {data && !data.items.length && <p class="card empty">Nothing is traced now.</p>}
      {data && data.items.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table of traces">
          <table>
            <thead><tr><th scope="col">Trace</th><th scope="col">Vhost</th><th scope="col">Messages</th><th scope="col">State</th>
              <th scope="col" class="right">Written</th><th scope="col" class="right wide">Missed</th><th scope="col" class="wide">Since</th>
              <th scope="col"><span class="hidden">Actions</span></th></tr></thead>
            <tbody>{data.items.map((row) => (
              <tr key={row.name}>
                <td>{row.name}</td><td>{row.vhost}</td><td><code>{row.pattern}</code></td>
                <td>{row.state === "running" ? row.state : <Tag>{row.state}</Tag>}{row.why && <><br /><small>{row.why}</small></>}</td>
                <td class="right">{count(row.messages)}</td><td class="right wide">{count(row.missed)}</td>
                <td class="wide">{moment(row.since)}{row.user && ` by ${row.user}`}</td>
                <td class="right"><button type="button" class="small" onClick={() => void change(`Trace ${row.name} has ended.`,
                  "tracer", "stop", { name: row.name, vhost: row.vhost }).then(changed)}>Stop</button></td>
              </tr>
            ))}</tbody>
          </table>
        </div>
      )}
      {files.data && files.data.items.length > 0 && (
        <section class="card">
          <h2>Files</h2>
          <div class="scroll" tabIndex={0} role="region" aria-label="Files of traces">
            <table>
              <thead><tr><th scope="col">File</th><th scope="col" class="right">Size</th>
                <th scope="col"><span class="hidden">Actions</span></th></tr></thead>
              <tbody>{files.data.items.map((file) => (
                <tr key={file.name}>
                  <td><a href={`/api/trace-files/${inPath(file.name)}`} download={file.name}>{file.name}</a></td>
                  <td class="right">{octets(file.size)}</td>
                  <td class="right"><DangerButton label="Delete" title={`Delete ${file.name}?`} text="What was traced will be gone."
                    act={() => change(`${file.name} is deleted.`, "trace_file", "delete", { name: file.name }).then(changed)} /></td>
                </tr>
              ))}</tbody>
            </table>
          </div>
        </section>
      )}
    </>
  );
}
