// Parts that all pages are made of: dialogs, forms, tables, notices, names.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Followed, methodsAsked, perform, type Refusal, useAsked } from "./api.ts";
import { count, value } from "./format.ts";

// --- notices: what was done, or refused, said in one line for some seconds

const notice = new Followed<{ text: string; bad: boolean } | null>(null);
let clearing: ReturnType<typeof setTimeout> | undefined;

export function say(text: string, bad = false): void {
  clearTimeout(clearing);
  notice.value = { text, bad };
  clearing = setTimeout(() => (notice.value = null), bad ? 10000 : 4000);
}

export function Notice() {
  const told = notice.use();
  return (
    <div role="status" aria-live="polite" class="notices">
      {told && <p class={told.bad ? "notice bad" : "notice"}>{told.text}</p>}
    </div>
  );
}

/** Perform an operation that changes something, and say how it went.  Whether it was done. */
export async function change(done: string, noun: string, verb: string, body: object): Promise<boolean> {
  try {
    await perform(noun, verb, body);
    say(done);
    return true;
  } catch (error) {
    say((error as Refusal).message, true);
    return false;
  }
}

// --- dialogs

export function Dialog({ title, close, children }: { title: string; close: () => void; children: ComponentChildren }) {
  const place = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = place.current!;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  return (
    <dialog ref={place} aria-label={title} onClose={close} onCancel={close}
      onClick={(event) => event.target === place.current && close()}>
      <div class="dialog">
        <header>
          <h2>{title}</h2>
          <button type="button" class="plain" aria-label="Close dialog" onClick={close}>✕</button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

interface Danger {
  label: string; // of the button
  title: string;
  text: string; // what will be gone
  act: () => Promise<unknown>;
}

/** A button for what cannot be undone: asks first. */
export function DangerButton({ label, title, text, act }: Danger) {
  const [asked, setAsked] = useState(false);
  return (
    <>
      <button type="button" class="danger" onClick={() => setAsked(true)}>{label}</button>
      {asked && (
        <Dialog title={title} close={() => setAsked(false)}>
          <p>{text}</p>
          <footer>
            <button type="button" onClick={() => setAsked(false)}>Cancel</button>
            <button type="button" class="danger solid" onClick={() => void act().then(() => setAsked(false))}>
              {label}
            </button>
          </footer>
        </Dialog>
      )}
    </>
  );
}

/** Buttons of a page, each of which is there if the broker has its operation.  They are seen once all are known, so that none
 * moves away under the pointer. */
export function Actions({ children }: { children: ComponentChildren }) {
  const asked = methodsAsked.use();
  const [known, setKnown] = useState(false);
  useEffect(() => {
    if (!methodsAsked.value) setKnown(true);
  }, [asked]);
  return <span class={known ? "actions" : "actions unknown"}>{children}</span>;
}

// --- forms

export interface FieldRow {
  name: string;
  label: string;
  kind?: "text" | "number" | "password" | "check" | "area" | "choice" | "json";
  choices?: readonly string[];
  first?: string | boolean;
  help?: string;
  required?: boolean;
}

export type Values = Record<string, string | boolean>;

interface FormProps {
  fields: FieldRow[];
  label: string; // of the button
  send: (values: Values) => Promise<boolean | void>;
  watch?: (values: Values) => void;
  children?: ComponentChildren;
}

export function Form({ fields, label, send, watch, children }: FormProps) {
  const first = () => Object.fromEntries(fields.map((row) => [row.name, row.first ?? (row.kind === "check" ? false
    : row.choices?.[0] ?? "")]));
  const [values, setValues] = useState<Values>(first);
  const [busy, setBusy] = useState(false);
  const [wrong, setWrong] = useState("");
  const set = (name: string, next: string | boolean) => {
    const all = { ...values, [name]: next };
    setValues(all);
    watch?.(all);
  };
  const submit = async (event: Event) => {
    event.preventDefault();
    for (const row of fields) {
      if (row.kind === "json" && !isObject(values[row.name] as string)) {
        setWrong(`${row.label} must be a JSON object, such as {"x-max-length": 1000}`);
        return;
      }
    }
    setWrong("");
    setBusy(true);
    await send(values).finally(() => setBusy(false));
  };
  return (
    <form onSubmit={(event) => void submit(event)}>
      {fields.map((row) => <Field key={row.name} row={row} value={values[row.name]} set={set} />)}
      {children}
      {wrong && <p class="wrong" role="alert">{wrong}</p>}
      <footer><button type="submit" class="solid" disabled={busy}>{label}</button></footer>
    </form>
  );
}

function isObject(text: string): boolean {
  try {
    const found = JSON.parse(text || "{}");
    return found !== null && typeof found === "object" && !Array.isArray(found);
  } catch {
    return false;
  }
}

/** The object that a field of kind "json" holds. */
export const objectOf = (values: Values, name: string) => JSON.parse((values[name] as string) || "{}");

interface FieldProps {
  row: FieldRow;
  value: string | boolean;
  set: (name: string, next: string | boolean) => void;
}

function Field({ row, value: held, set }: FieldProps) {
  const id = `field-${row.name}`;
  const help = row.help && <small id={`${id}-help`}>{row.help}</small>;
  const shared = { id, name: row.name, required: row.required, "aria-describedby": row.help && `${id}-help` };
  const typed = (event: { currentTarget: { value: string } }) =>
    set(row.name, event.currentTarget.value);
  if (row.kind === "check") {
    return (
      <div class="field check">
        <input {...shared} type="checkbox" checked={held as boolean}
          onChange={(event) => set(row.name, event.currentTarget.checked)} />
        <label for={id}>{row.label}</label>{help}
      </div>
    );
  }
  return (
    <div class="field">
      <label for={id}>{row.label}</label>
      {row.kind === "choice" ? (
        <select {...shared} value={held as string} onChange={typed}>
          {row.choices!.map((each) => <option key={each}>{each}</option>)}
        </select>
      ) : row.kind === "area" || row.kind === "json" ? (
        <textarea {...shared} rows={row.kind === "json" ? 3 : 5} value={held as string} spellcheck={false}
          placeholder={row.kind === "json" ? "{}" : ""} onInput={typed} />
      ) : (
        <input {...shared} type={(row.kind ?? "text") as "text"} value={held as string} autocomplete="off" spellcheck={false}
          onInput={typed} />
      )}
      {help}
    </div>
  );
}

/** A button that opens a dialog with a form.  ``send`` says whether it was done. */
export function FormButton({ title, heading, label, small, ...form }: FormProps & {
  title: string; heading?: string; small?: boolean;
}) {
  const [open, setOpen] = useState(false);
  const send = async (values: Values) => {
    if (await form.send(values)) setOpen(false);
  };
  return (
    <>
      <button type="button" class={small ? "small" : "solid"} onClick={() => setOpen(true)}>{title}</button>
      {open && (
        <Dialog title={heading ?? title} close={() => setOpen(false)}><Form {...form} label={label} send={send} /></Dialog>
      )}
    </>
  );
}

// --- tables

export interface Column<Row> {
  label: string;
  sort?: string; // the field by which the broker sorts
  right?: boolean;
  wide?: boolean; // not on phones
  cell: (row: Row) => ComponentChildren;
}

export interface Paged<Row> {
  items: Row[];
  filtered_count: number;
  total_count: number;
  page: number;
  page_count: number;
}

interface TableProps<Row> {
  noun: string;
  path: string; // of the list in /api
  columns: Column<Row>[];
  keyOf: (row: Row) => string;
  actions?: (again: () => void) => ComponentChildren;
  empty?: string;
}

const PAGE_SIZE = 50;

/** A list that the broker filters, sorts and cuts into pages. */
export function Table<Row>({ noun, path, columns, keyOf, actions, empty }: TableProps<Row>) {
  const [filter, setFilter] = useState("");
  const [name, setName] = useState("");
  const [regex, setRegex] = useState(false);
  const [page, setPage] = useState(1);
  const [sort, setSort] = useState<{ by: string; down: boolean }>({ by: "", down: false });
  useEffect(() => {
    if (filter === name) return; // Nothing was typed: else a page that was turned at once would turn back.
    const timer = setTimeout(() => {
      setName(filter);
      setPage(1);
    }, 200);
    return () => clearTimeout(timer);
  }, [filter, name]);
  const query = new URLSearchParams({ page: String(page), page_size: String(PAGE_SIZE) });
  if (name) query.set("name", name);
  if (name && regex) query.set("use_regex", "true");
  if (sort.by) query.set("sort", sort.by);
  if (sort.down) query.set("sort_reverse", "true");
  const { data, error, again } = useAsked<Paged<Row>>(`${path}?${query}`);
  useEffect(() => {
    if (error?.message.startsWith("page_out_of_range")) setPage(1);
  }, [error]);
  const order = (by: string) => setSort(sort.by !== by ? { by, down: false } : sort.down ? { by: "", down: false }
    : { by, down: true });
  return (
    <>
      <div class="tools">
        <input type="search" class="search" placeholder={`Filter ${noun} ( / )`} aria-label={`Filter ${noun}`}
          value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
        <label class="inline"><input type="checkbox" checked={regex}
          onChange={(event) => setRegex(event.currentTarget.checked)} /> regular expression</label>
        <span class="space" />
        {actions?.(again)}
      </div>
      {error && <p class="wrong" role="alert">{error.message}</p>}
      <div class="scroll" tabIndex={0} role="region" aria-label={`Table of ${noun}`}>
        <table>
          <thead>
            <tr>{columns.map((column) => <Head key={column.label} column={column} sort={sort} order={order} />)}</tr>
          </thead>
          <tbody>
            {data?.items?.map((row) => (
              <tr key={keyOf(row)}>
                {columns.map((column) => <td key={column.label} class={classOf(column)}>{column.cell(row)}</td>)}
              </tr>
            ))}
          </tbody>
        </table>
        {data?.items?.length === 0 && <p class="empty">{name ? `No ${noun} match.` : empty ?? `No ${noun}.`}</p>}
        {!data && !error && <p class="empty">Loading …</p>}
      </div>
      {data && <Pager data={data} noun={noun} go={setPage} />}
    </>
  );
}

const classOf = (column: Column<never>) => [column.right && "right", column.wide && "wide"].filter(Boolean).join(" ");

interface HeadProps {
  column: Column<never>;
  sort: { by: string; down: boolean };
  order: (by: string) => void;
}

function Head({ column, sort, order }: HeadProps) {
  if (!column.sort) return <th scope="col" class={classOf(column)}>{column.label || <span class="hidden">Actions</span>}</th>;
  const mine = sort.by === column.sort;
  return (
    <th scope="col" class={classOf(column)} aria-sort={!mine ? "none" : sort.down ? "descending" : "ascending"}>
      <button type="button" onClick={() => order(column.sort!)}>
        {column.label}<span aria-hidden="true">{mine ? (sort.down ? " ↓" : " ↑") : ""}</span>
      </button>
    </th>
  );
}

/** The noun is a plural. */
const counted = (number: number, noun: string) => (number !== 1 ? `${count(number)} ${noun}`
  : `1 ${noun.replace(/ies$/, "y").replace(/s$/, "")}`);

function Pager({ data, noun, go }: { data: Paged<unknown>; noun: string; go: (page: number) => void }) {
  const found = data.filtered_count === data.total_count ? counted(data.total_count, noun)
    : `${count(data.filtered_count)} of ${count(data.total_count)} ${noun}`;
  return (
    <nav class="pager" aria-label={`Pages of ${noun}`}>
      <span>{found}</span>
      {data.page_count > 1 && (
        <>
          <button type="button" disabled={data.page <= 1} onClick={() => go(data.page - 1)}>← Back</button>
          <span>Page {count(data.page)} of {count(data.page_count)}</span>
          <button type="button" disabled={data.page >= data.page_count} onClick={() => go(data.page + 1)}>Next →</button>
        </>
      )}
    </nav>
  );
}

// --- small parts

export function Facts({ rows }: { rows: [string, ComponentChildren][] }) {
  return <dl class="facts">{rows.map(([name, each]) => <div key={name}><dt>{name}</dt><dd>{each}</dd></div>)}</dl>;
}

export function Arguments({ of }: { of: Record<string, unknown> | undefined }) {
  const rows = Object.entries(of ?? {});
  if (!rows.length) return <span class="quiet">none</span>;
  return <ul class="arguments">{rows.map(([name, each]) => <li key={name}><code>{name}</code> {value(each)}</li>)}</ul>;
}

export const Tag = ({ children }: { children: ComponentChildren }) => <span class="tag">{children}</span>;

export function Failed({ error }: { error: Refusal }) {
  return <p class="wrong" role="alert">{error.message}</p>;
}

/** The name of a vhost's thing as a link. */
export function To({ page, names, children }: { page: string; names: string[]; children?: ComponentChildren }) {
  const text = names[names.length - 1];
  return <a href={`#/${[page, ...names.map(encodeURIComponent)].join("/")}`}>{children ?? (text || "(default)")}</a>;
}


