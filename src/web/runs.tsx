// Dumps and audits: begin one, see how far it is, read what an audit has found, open its report.

import { useState } from "preact/hooks";
import { perform, type Refusal, useAsked, useOperation } from "./api.ts";
import { count, fine, moment, octets, plural, span } from "./format.ts";
import { change, DangerButton, Facts, Failed, FormButton, say, Tag, To } from "./parts.tsx";

interface Run {
  id: number;
  kind: "audit" | "dump";
  queues: string;
  audits: string;
  out: string;
  user: string;
  state: string;
  started_at: number;
  ended_at: number;
  progress: { number?: number; queues?: number; octets?: number; of?: number };
  why: string;
  verdict: string;
  findings: number;
  report: boolean;
}
interface Told {
  verdict: string;
  verdicts: Record<string, number>;
  inputs: Record<string, number>;
  findings_total: number;
  audits: { vhost: string; queue: string; audit: string; verdict: string; checked: number; found: number; reason: string }[];
  findings: { vhost: string; queue: string; audit: string; seq: number; ts: number; detail: string }[];
}

const QUEUES = { name: "queues", label: "Queues", help: "A pattern such as orders* or shop/orders*; empty: all that are durable." };
const isUnderWay = (run: Run) => run.state === "copying" || run.state === "judging";

export function Runs() {
  const [busy, setBusy] = useState(false);
  const { data, error, again } = useAsked<{ items: Run[] }>("/api/v2/run/list", busy ? 1 : 5, {});
  const mayAudit = useOperation("run", "audit");
  const underWay = data?.items.some(isUnderWay) ?? false;
  if (underWay !== busy) setBusy(underWay);
  const begin = (verb: string, done: string) => async (values: object) => {
    try {
      const { id } = await perform<Run>("run", verb, values);
      say(`${done} ${id} has begun.`);
      again();
      return true;
    } catch (refusal) {
      say((refusal as Refusal).message, true);
      return false;
    }
  };
  return (
    <>
      <div class="title">
        <h1>Audits and dumps</h1><span class="space" />
        {mayAudit && !underWay && (
          <>
            <FormButton title="New dump" label="Begin" send={begin("dump", "Dump")} fields={[
              { name: "out", label: "Folder on the broker's machine", required: true, help: "Such as /var/backups/monday; it must be new or empty." },
              QUEUES,
            ]} />
            <FormButton title="New audit" label="Begin" send={begin("audit", "Audit")} fields={[
              QUEUES,
              { name: "audits", label: "Audits", help: "Such as fifo,overtaking; empty: all." },
              { name: "keep_dump", label: "keep the dump that is judged, for traces later", kind: "check" },
            ]} />
          </>
        )}
      </div>
      <p class="quiet">An audit copies the durable queues while the broker goes on, and judges by a process of its own whether
        messages kept their order. It knows most of queues with an order journal (x-order-journal).</p>
      {error && <Failed error={error} />}
      {data && !data.items.length && <p class="card empty">No audit and no dump yet.</p>}
      {data && data.items.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table of audits and dumps">
          <table>
            <thead><tr><th scope="col">Run</th><th scope="col">Queues</th><th scope="col">State</th>
              <th scope="col" class="wide">Begun</th><th scope="col" class="right wide">Took</th><th scope="col" class="wide">By</th>
              <th scope="col"><span class="hidden">Actions</span></th></tr></thead>
            <tbody>{data.items.map((run) => <Row key={run.id} run={run} again={again} />)}</tbody>
          </table>
        </div>
      )}
    </>
  );
}

function Row({ run, again }: { run: Run; again: () => void }) {
  const took = run.ended_at ? run.ended_at - run.started_at : 0;
  return (
    <tr>
      <td><To page="audits" names={[String(run.id), run.kind]}>{run.kind === "audit" ? "Audit" : "Dump"} {run.id}</To></td>
      <td>{run.queues ? <code>{run.queues}</code> : "all durable"}</td>
      <td><State run={run} /></td>
      <td class="wide">{moment(run.started_at)}</td>
      <td class="right wide">{took ? (took < 1000 ? "< 1 s" : span(took / 1000)) : ""}</td>
      <td class="wide">{run.user || "brokerctl"}</td>
      <td class="right"><Actions run={run} done={again} /></td>
    </tr>
  );
}

function Actions({ run, done }: { run: Run; done: () => void }) {
  if (isUnderWay(run)) {
    return <button type="button" class="small" onClick={() => void change("It is cancelled.", "run", "cancel", { id: run.id }).then(done)}>Cancel</button>;
  }
  return (
    <div class="row actions">
      {run.report && <a class="button" href={`/api/v2/run/${run.id}/report/report.html`} target="_blank" rel="noopener">Report</a>}
      <DangerButton label="Delete" title={`Delete ${run.kind} ${run.id}?`}
        text={run.kind === "dump" ? `It will not be listed any more. The folder ${run.out} stays.` : "What it has found will be gone."}
        act={() => change("It is deleted.", "run", "delete", { id: run.id }).then(done)} />
    </div>
  );
}

const LOOKS: Record<string, string> = { held: "good", violated: "bad", failed: "bad", undecidable: "warn", interrupted: "warn" };
const Verdict = ({ of }: { of: string }) => <span class={`verdict ${LOOKS[of] ?? ""}`}>{of}</span>;

function State({ run }: { run: Run }) {
  const { progress } = run;
  if (run.state === "copying") {
    return <>copying{progress.queues ? `: queue ${count(progress.number)} of ${count(progress.queues)}, ${octets(progress.octets)}` : " …"}</>;
  }
  if (run.state === "judging") {
    return <>judging{progress.of ? <>: <progress max={progress.of} value={progress.octets} aria-label="Judged" /> {octets(progress.octets)} of {octets(progress.of)}</> : " …"}</>;
  }
  if (run.verdict) return <><Verdict of={run.verdict} />{run.findings > 0 && ` ${plural(run.findings, "finding")}`}</>;
  return <><Verdict of={run.state} />{run.why && <><br /><small>{run.why}</small></>}</>;
}

export function Run({ id }: { id: string }) {
  const { data: run, error, again } = useAsked<Run & { told: Told | null }>("/api/v2/run/show", 2, { id: Number(id) || 1 });
  if (!run) return error ? <Failed error={error} /> : <p class="empty">Loading …</p>;
  const { told } = run;
  return (
    <>
      <div class="title">
        <div><div class="crumb"><a href="#/audits">Audits and dumps</a></div>
          <h1>{run.kind === "audit" ? "Audit" : "Dump"} {run.id}</h1></div>
        <span class="space" />
        <Actions run={run} done={() => (isUnderWay(run) ? again() : (location.hash = "#/audits"))} />
      </div>
      <section class="card">
        <Facts rows={[
          ["State", <State run={run} />], ["Queues", run.queues || "all durable"],
          ["Begun", moment(run.started_at)], ["Ended", run.ended_at ? moment(run.ended_at) : "–"],
          ["By", run.user || "brokerctl"], ...(run.audits ? [["Audits", run.audits] as [string, string]] : []),
          ...(run.out ? [["Folder", <code>{run.out}</code>] as [string, preact.ComponentChildren]] : []),
        ]} />
      </section>
      {told && <Found told={told} />}
    </>
  );
}

function Found({ told }: { told: Told }) {
  return (
    <>
      <section class="card">
        <h2>Verdict</h2>
        <p><Verdict of={told.verdict} /> {plural(told.inputs.messages, "message")} and {plural(told.inputs.events, "event")} of{" "}
          {plural(told.inputs.queues, "queue")} were judged.</p>
        <p>{Object.entries(told.verdicts).map(([verdict, each]) => <Tag key={verdict}>{count(each)} {verdict}</Tag>)}</p>
        {told.audits.length > 0 && (
          <div class="scroll" tabIndex={0} role="region" aria-label="What did not hold">
            <table>
              <thead><tr><th scope="col">Queue</th><th scope="col">Audit</th><th scope="col">Verdict</th>
                <th scope="col" class="right wide">Found</th><th scope="col" class="wide">Why</th></tr></thead>
              <tbody>{told.audits.map((row) => (
                <tr key={`${row.vhost}/${row.queue}/${row.audit}`}>
                  <td><To page="queues" names={[row.vhost, row.queue]} /></td><td>{row.audit.replaceAll("_", " ")}</td>
                  <td><Verdict of={row.verdict} /></td>
                  <td class="right wide">{row.found ? `${count(row.found)} of ${count(row.checked)}` : ""}</td>
                  <td class="wide">{row.reason}</td>
                </tr>
              ))}</tbody>
            </table>
          </div>
        )}
      </section>
      {told.findings.length > 0 && (
        <section class="card">
          <h2>{plural(told.findings_total, "finding")}{told.findings_total > told.findings.length && `, the first ${count(told.findings.length)}`}</h2>
          <div class="scroll" tabIndex={0} role="region" aria-label="Findings">
            <table>
              <thead><tr><th scope="col">Queue</th><th scope="col" class="right">Message</th><th scope="col">What</th>
                <th scope="col" class="wide">When</th></tr></thead>
              <tbody>{told.findings.map((row, at) => (
                <tr key={at}>
                  <td><To page="queues" names={[row.vhost, row.queue]} /></td><td class="right">{row.seq ? count(row.seq) : ""}</td>
                  <td><b>{row.audit.replaceAll("_", " ")}</b>: {row.detail}</td><td class="wide when">{row.ts ? fine(row.ts) : ""}</td>
                </tr>
              ))}</tbody>
            </table>
          </div>
        </section>
      )}
    </>
  );
}
