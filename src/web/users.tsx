// Users with their permissions, and vhosts.

import { useState } from "preact/hooks";
import { ask, inPath, type Refusal, session, useAsked, useMethods } from "./api.ts";
import { count } from "./format.ts";
import { change, DangerButton, Dialog, Form, FormButton, say, Table, Tag } from "./parts.tsx";
import { useVHosts } from "./queues.tsx";

interface UserRow { name: string; tags: string[] | string; limits?: Record<string, number> }
interface Permission { user: string; vhost: string; configure: string; write: string; read: string }

const TAGS = "administrator sees and changes everything; monitoring sees everything; policymaker sets policies; "
  + "management sees its own vhosts. Several tags: with commas.";
const tagsOf = (row: UserRow) => (Array.isArray(row.tags) ? row.tags : row.tags.split(",")).filter(Boolean);

export function Users() {
  const methods = useMethods("/api/users/x");
  const [shown, setShown] = useState<string | null>(null);
  const { data: permissions, again: askPermissions } = useAsked<Permission[]>("/api/permissions");
  return (
    <>
      <div class="title"><h1>Users</h1></div>
      <Table<UserRow> noun="users" path="/api/users" keyOf={(row) => row.name}
        actions={(again) => methods.has("PUT") && <NewUser done={again} />}
        columns={[
          { label: "Name", sort: "name", cell: (row) => <b>{row.name}</b> },
          { label: "Tags", cell: (row) => tagsOf(row).map((tag) => <Tag key={tag}>{tag}</Tag>) },
          { label: "May enter", cell: (row) => permissions?.filter((each) => each.user === row.name)
            .map((each) => <Tag key={each.vhost}>{each.vhost}</Tag>) },
          { label: "", right: true, cell: (row) => (
            <div class="row-actions">
              <button type="button" aria-label={`Permissions of ${row.name}`}
                onClick={() => setShown(row.name)}>Permissions</button>{" "}
              {methods.has("DELETE") && row.name !== session.value?.user && (
                <DangerButton label="Delete" title={`Delete user ${row.name}?`}
                  text="Connections of this user are closed at once."
                  act={() => change(`User ${row.name} is deleted.`, `/api/users/${inPath(row.name)}`, "DELETE")} />
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
      const path = `/api/users/${inPath(values.name as string)}`;
      try {
        await ask(path);
        say(`User ${values.name} is there already.`, true);
        return false;
      } catch (error) {
        if ((error as Refusal).status !== 404) {
          say((error as Refusal).message, true);
          return false;
        }
      }
      const fine = await change(`User ${values.name} is added. Give permissions next.`, path, "PUT",
        { password: values.password, tags: values.tags });
      if (fine) done();
      return fine;
    }} />
  );
}

interface PermissionsProps { user: string; all: Permission[]; again: () => void; close: () => void }

function Permissions({ user, all, again, close }: PermissionsProps) {
  const vhosts = useVHosts();
  const methods = useMethods("/api/permissions/x/x");
  const mine = all.filter((each) => each.user === user);
  const at = (vhost: string) => `/api/permissions/${inPath(vhost)}/${inPath(user)}`;
  return (
    <Dialog title={`Permissions of ${user}`} close={close}>
      <p class="quiet">Each is a regular expression on names; an empty one matches nothing.</p>
      <table>
        <thead><tr><th scope="col">Vhost</th><th scope="col">Configure</th><th scope="col">Write</th>
          <th scope="col">Read</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
        <tbody>{mine.map((each) => (
          <tr key={each.vhost}><td>{each.vhost}</td><td><code>{each.configure}</code></td><td><code>{each.write}</code></td>
            <td><code>{each.read}</code></td><td class="right">{methods.has("DELETE") && (
              <button type="button" class="small danger" aria-label={`Take ${each.vhost} away`} onClick={() =>
                void change(`${user} may not enter ${each.vhost} any more.`, at(each.vhost), "DELETE").then(again)}>
                Take away</button>)}</td></tr>
        ))}</tbody>
      </table>
      {!mine.length && <p class="empty">This user may enter no vhost.</p>}
      {methods.has("PUT") && (
        <Form label="Give" fields={[
          { name: "vhost", label: "Vhost", kind: "choice", choices: vhosts },
          { name: "configure", label: "Configure", first: ".*" }, { name: "write", label: "Write", first: ".*" },
          { name: "read", label: "Read", first: ".*" },
        ]} send={async (values) => {
          const { vhost, ...rights } = values;
          if (await change(`${user} may enter ${vhost}.`, at(vhost as string), "PUT", rights)) again();
        }} />
      )}
    </Dialog>
  );
}

interface VHostRow { name: string; queues?: number; exchanges?: number; limits?: Record<string, number>; tracing: boolean }

export function VHosts() {
  const methods = useMethods("/api/vhosts/x");
  return (
    <>
      <div class="title"><h1>Vhosts</h1></div>
      <Table<VHostRow> noun="vhosts" path="/api/vhosts" keyOf={(row) => row.name}
        actions={(again) => methods.has("PUT") && (
          <FormButton title="New vhost" label="Add" fields={[{ name: "name", label: "Name", required: true }]}
            send={async ({ name }) => {
              const fine = await change(`Vhost ${name} is added.`, `/api/vhosts/${inPath(name as string)}`, "PUT", {});
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
          { label: "", right: true, cell: (row) => methods.has("DELETE") && row.name !== "/" && (
            <DangerButton label="Delete" title={`Delete vhost ${row.name}?`}
              text="All its queues and their messages, exchanges, policies and permissions will be gone."
              act={() => change(`Vhost ${row.name} is deleted.`, `/api/vhosts/${inPath(row.name)}`, "DELETE")} />
          ) },
        ]} />
    </>
  );
}
