// Users with their permissions, and vhosts.

import { useState } from "preact/hooks";
import { session, useAsked, useOperation } from "./api.ts";
import { count } from "./format.ts";
import { change, DangerButton, Dialog, Form, FormButton, objectOf, Table, Tag } from "./parts.tsx";
import { useVHosts } from "./queues.tsx";

interface UserRow { name: string; tags: string[] | string; limits?: Record<string, number> }
interface Permission { user: string; vhost: string; configure: string; write: string; read: string }

const TAGS = "administrator sees and changes everything; monitoring sees everything; policymaker sets policies; "
  + "management sees its own vhosts. Several tags: with commas.";
const tagsOf = (row: UserRow) => (Array.isArray(row.tags) ? row.tags : row.tags.split(",")).filter(Boolean);

export function Users() {
  const mayAdd = useOperation("user", "add");
  const mayDelete = useOperation("user", "delete");
  const [shown, setShown] = useState<string | null>(null);
  const { data: permissions, again: askPermissions } = useAsked<Permission[]>("/api/permissions");
  return (
    <>
      <div class="title"><h1>Users</h1></div>
      <Table<UserRow> noun="users" path="/api/users" keyOf={(row) => row.name}
        actions={(again) => mayAdd && <NewUser done={again} />}
        columns={[
          { label: "Name", sort: "name", cell: (row) => <b>{row.name}</b> },
          { label: "Tags", cell: (row) => tagsOf(row).map((tag) => <Tag key={tag}>{tag}</Tag>) },
          { label: "May enter", cell: (row) => permissions?.filter((each) => each.user === row.name)
            .map((each) => <Tag key={each.vhost}>{each.vhost}</Tag>) },
          { label: "", right: true, cell: (row) => (
            <div class="row-actions">
              <button type="button" aria-label={`Permissions of ${row.name}`}
                onClick={() => setShown(row.name)}>Permissions</button>{" "}
              {mayDelete && row.name !== session.value?.user && (
                <DangerButton label="Delete" title={`Delete user ${row.name}?`}
                  text="Connections of this user are closed at once."
                  act={() => change(`User ${row.name} is deleted.`, "user", "delete", { user: row.name })} />
              )}
            </div>
          ) },
        ]} />
      {shown !== null && <Permissions user={shown} all={permissions ?? []} again={askPermissions}
        close={() => setShown(null)} />}
    </>
  );
}

function NewUser({ done }: { done: () => void }) {
  return (
    <FormButton title="New user" label="Add" fields={[
      { name: "name", label: "Name", required: true },
      { name: "password", label: "Password", kind: "password", required: true },
      { name: "tags", label: "Tags", help: TAGS },
    ]} send={async (values) => {
      const tags = (values.tags as string).split(",").map((tag) => tag.trim()).filter(Boolean);
      const fine = await change(`User ${values.name} is added. Give permissions next.`, "user", "add",
        { user: values.name, password: values.password, tags });
      if (fine) done();
      return fine;
    }} />
  );
}

interface PermissionsProps { user: string; all: Permission[]; again: () => void; close: () => void }

function Permissions({ user, all, again, close }: PermissionsProps) {
  const vhosts = useVHosts();
  const maySet = useOperation("permission", "set");
  const mayClear = useOperation("permission", "clear");
  const mine = all.filter((each) => each.user === user);
  return (
    <Dialog title={`Permissions of ${user}`} close={close}>
      <p class="quiet">Each is a regular expression on names; an empty one matches nothing.</p>
      <table>
        <thead><tr><th scope="col">Vhost</th><th scope="col">Configure</th><th scope="col">Write</th>
          <th scope="col">Read</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
        <tbody>{mine.map((each) => (
          <tr key={each.vhost}><td>{each.vhost}</td><td><code>{each.configure}</code></td><td><code>{each.write}</code></td>
            <td><code>{each.read}</code></td><td class="right">{mayClear && (
              <button type="button" class="small danger" aria-label={`Take ${each.vhost} away`} onClick={() =>
                void change(`${user} may not enter ${each.vhost} any more.`, "permission", "clear",
                  { user, vhost: each.vhost }).then(again)}>
                Take away</button>)}</td></tr>
        ))}</tbody>
      </table>
      {!mine.length && <p class="empty">This user may enter no vhost.</p>}
      {maySet && (
        <Form label="Give" fields={[
          { name: "vhost", label: "Vhost", kind: "choice", choices: vhosts },
          { name: "configure", label: "Configure", first: ".*" }, { name: "write", label: "Write", first: ".*" },
          { name: "read", label: "Read", first: ".*" },
        ]} send={async (values) => {
          if (await change(`${user} may enter ${values.vhost}.`, "permission", "set", { user, ...values })) again();
        }} />
      )}
    </Dialog>
  );
}

interface VHostRow { name: string; queues?: number; exchanges?: number; limits?: Record<string, number>; tracing: boolean }

export function VHosts() {
  const mayAdd = useOperation("vhost", "add");
  const mayLimit = useOperation("vhost", "set_limits");
  const mayDelete = useOperation("vhost", "delete");
  return (
    <>
      <div class="title"><h1>Vhosts</h1></div>
      <Table<VHostRow> noun="vhosts" path="/api/vhosts" keyOf={(row) => row.name}
        actions={(again) => mayAdd && (
          <FormButton title="New vhost" label="Add" fields={[{ name: "name", label: "Name", required: true }]}
            send={async ({ name }) => {
              const fine = await change(`Vhost ${name} is added.`, "vhost", "add", { vhost: name });
              if (fine) again();
              return fine;
            }} />
        )}
        columns={[
          { label: "Name", sort: "name", cell: (row) => <b>{row.name}</b> },
          { label: "Queues", sort: "queues", right: true, cell: (row) => count(row.queues) },
          { label: "Exchanges", sort: "exchanges", right: true, cell: (row) => count(row.exchanges) },
          { label: "Limits", wide: true, cell: (row) => Object.entries(row.limits ?? {})
            .map(([name, each]) => <Tag key={name}>{name} {each}</Tag>) },
          { label: "", right: true, cell: (row) => (
            <>
              {mayLimit && <LimitsButton row={row} />}{" "}
              {mayDelete && row.name !== "/" && (
                <DangerButton label="Delete" title={`Delete vhost ${row.name}?`}
                  text="All its queues and their messages, exchanges, policies and permissions will be gone."
                  act={() => change(`Vhost ${row.name} is deleted.`, "vhost", "delete", { vhost: row.name })} />
              )}
            </>
          ) },
        ]} />
    </>
  );
}

function LimitsButton({ row }: { row: VHostRow }) {
  const limits = row.limits ?? {};
  return (
    <FormButton title="Limits" label="Set" fields={[
      { name: "limits", label: `Limits of ${row.name}`, kind: "json",
        first: Object.keys(limits).length ? JSON.stringify(limits) : "",
        help: 'All from now on, such as {"max-connections": 100, "max-queues": 50}; {}: none.' },
    ]} send={(values) => change(`Limits of ${row.name} are set.`, "vhost", "set_limits",
      { vhost: row.name, limits: objectOf(values, "limits") })} />
  );
}
