// The frame of all pages: log in, navigation, keys, the look, and which page stands where.

import { render, type ComponentChild } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ask, findSession, hasTag, logIn, logOut, reachable, session, type Refusal } from "./api.ts";
import { Changes } from "./changes.tsx";
import { Connections, Channels } from "./clients.tsx";
import { Definitions } from "./definitions.tsx";
import { Exchange, Exchanges } from "./exchanges.tsx";
import { Federation, Shovels } from "./links.tsx";
import { Log } from "./log.tsx";
import { Overview } from "./overview.tsx";
import { Dialog, Form, Notice } from "./parts.tsx";
import { Policies } from "./policies.tsx";
import { Queue } from "./queue.tsx";
import { Queues } from "./queues.tsx";
import { Run, Runs } from "./runs.tsx";
import { Stream, StreamList } from "./streams.tsx";
import { Traces } from "./traces.tsx";
import { Users, VHosts } from "./users.tsx";
import "./style.css";

interface Page {
  name: string;
  label: string;
  key: string; // behind g
  list: () => ComponentChild;
  one?: (names: string[]) => ComponentChild;
  tag?: "administrator" | "policymaker";
}

const PAGES: Page[] = [
  { name: "overview", label: "Overview", key: "o", list: () => <Overview /> },
  { name: "queues", label: "Queues", key: "q", list: () => <Queues />,
    one: ([vhost, name]) => <Queue key={`${vhost}/${name}`} vhost={vhost} name={name} /> },
  { name: "streams", label: "Streams", key: "s", list: () => <StreamList />,
    one: ([vhost, name]) => <Stream key={`${vhost}/${name}`} vhost={vhost} name={name} /> },
  { name: "exchanges", label: "Exchanges", key: "e", list: () => <Exchanges />,
    one: ([vhost, name]) => <Exchange key={`${vhost}/${name}`} vhost={vhost} name={name} /> },
  { name: "connections", label: "Connections", key: "c", list: () => <Connections /> },
  { name: "channels", label: "Channels", key: "h", list: () => <Channels /> },
  { name: "policies", label: "Policies", key: "p", list: () => <Policies /> },
  { name: "shovels", label: "Shovels", key: "l", list: () => <Shovels /> },
  { name: "federation", label: "Federation", key: "f", list: () => <Federation /> },
  { name: "users", label: "Users", key: "u", list: () => <Users />, tag: "administrator" },
  { name: "vhosts", label: "Vhosts", key: "v", list: () => <VHosts />, tag: "administrator" },
  { name: "changes", label: "Changes", key: "a", list: () => <Changes />, tag: "administrator" },
  { name: "log", label: "Log", key: "i", list: () => <Log />, tag: "administrator" },
  { name: "audits", label: "Audits", key: "r", list: () => <Runs />, tag: "administrator",
    one: ([id]) => <Run key={id} id={id} /> },
  { name: "traces", label: "Traces", key: "t", list: () => <Traces />, tag: "administrator" },
  { name: "definitions", label: "Definitions", key: "d", list: () => <Definitions />, tag: "administrator" },
];

const mayShow = (page: Page) => !page.tag || hasTag(page.tag);

function useWords(): string[] {
  const read = () => location.hash.replace(/^#\/?/, "").split("/").map((word) => {
    try {
      return decodeURIComponent(word);
    } catch {
      return word;
    }
  });
  const [words, setWords] = useState(read);
  useEffect(() => {
    const changed = () => {
      setWords(read());
      scrollTo(0, 0);
    };
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return words;
}

// --- light and dark

const dark = matchMedia("(prefers-color-scheme: dark)");

function dress(): void {
  const chosen = localStorage.getItem("theme");
  document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
  document.dispatchEvent(new Event("theme"));
}

function turn(): void {
  localStorage.setItem("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  dress();
}

// --- keys

function useKeys(help: () => void): void {
  useEffect(() => {
    let after = -Infinity; // when g was pressed
    const pressed = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input:not([type=checkbox]), textarea, select")) return;
      if (document.querySelector("dialog[open]")) return;
      if (performance.now() - after < 1500) {
        const page = PAGES.find((each) => each.key === event.key && mayShow(each));
        after = -Infinity;
        if (page) location.hash = `#/${page.name}`;
      } else if (event.key === "g") {
        after = performance.now();
      } else if (event.key === "/") {
        event.preventDefault();
        const search = document.querySelector<HTMLInputElement>(".search");
        if (search) search.focus();
        else location.hash = "#/queues";
      } else if (event.key === "?") {
        help();
      } else if (event.key === "t") {
        turn();
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function Keys({ close }: { close: () => void }) {
  const rows = PAGES.filter(mayShow).map((page) => [`g ${page.key}`, page.label]);
  return (
    <Dialog title="Keys" close={close}>
      <table>
        <tbody>
          {[...rows, ["/", "Filter the list"], ["t", "Light or dark"], ["?", "These keys"], ["Esc", "Close"]].map(
            ([keys, text]) => (
              <tr key={keys}><td>{keys.split(" ").map((key) => <kbd key={key}>{key}</kbd>)}</td><td>{text}</td></tr>
            ))}
        </tbody>
      </table>
    </Dialog>
  );
}

// --- the frame

const Brand = () => (
  <a class="brand" href="#/overview">
    <span class="mark" aria-hidden="true"><i /><i /><i /></span>brokerd
  </a>
);

function Side({ current, help }: { current: string; help: () => void }) {
  const [open, setOpen] = useState(false);
  useEffect(() => setOpen(false), [current]);
  const who = session.value!;
  return (
    <header class={open ? "side open" : "side"}>
      <Brand />
      <button type="button" class="burger" aria-expanded={open} onClick={() => setOpen(!open)}>Menu</button>
      <nav aria-label="Pages">
        <ul>
          {PAGES.filter(mayShow).map((page) => (
            <li key={page.name}>
              <a href={`#/${page.name}`} aria-current={page.name === current ? "page" : undefined}>{page.label}</a>
            </li>
          ))}
        </ul>
      </nav>
      <div class="who">
        <span><b>{who.user}</b><br /><small>{who.tags.join(", ")}</small></span>
        <div class="row">
          <button type="button" class="small" onClick={turn}>Light / dark</button>
          <button type="button" class="small" aria-label="Keys" onClick={help}>?</button>
          <button type="button" class="small" onClick={() => void logOut()}>Log out</button>
        </div>
      </div>
    </header>
  );
}

function Lost() {
  if (reachable.use()) return null;
  return <div class="lost" role="alert">The broker does not answer. This page shows what it saw last, and tries again.</div>;
}

// Why a login by the provider has failed: the word that the broker puts into the address, and what it means.
const FAILURES: Record<string, string> = {
  provider: "The OpenID provider does not answer as it should. The broker's log has the reason.",
  state: "That login took too long, or was begun elsewhere. Begin anew.",
  refused: "The OpenID provider has refused the login.",
  token: "The broker does not accept the provider's token. The broker's log has the reason.",
  tag: "The provider gives you no right to see these pages: a scope with the tag management is missing.",
};

function failure(): string {
  return FAILURES[new URLSearchParams(location.search).get("login") ?? ""] ?? "";
}

function LogIn() {
  const [wrong, setWrong] = useState(failure);
  const [provider, setProvider] = useState(false);
  useEffect(() => {
    void ask<{ oauth_enabled: boolean }>("/api/auth").then((found) => setProvider(found.oauth_enabled), () => undefined);
  }, []);
  const send = async (values: Record<string, string | boolean>) => {
    try {
      await logIn(values.user as string, values.password as string);
    } catch (error) {
      setWrong((error as Refusal).message);
    }
  };
  return (
    <>
      <Lost />
      <main class="login" id="main">
        <div class="card">
          <h1 class="brand"><span class="mark" aria-hidden="true"><i /><i /><i /></span>brokerd</h1>
          <Form label="Log in" send={send} fields={[
            { name: "user", label: "User", required: true }, { name: "password", label: "Password", kind: "password" },
          ]}>
            {wrong && <p class="wrong" role="alert">{wrong}</p>}
          </Form>
          {provider && <p class="provider"><a class="button" href="/oauth/authorize">Log in with the OpenID provider</a></p>}
        </div>
      </main>
    </>
  );
}

function App() {
  const who = session.use();
  const words = useWords();
  const [help, setHelp] = useState(false);
  useKeys(() => setHelp(true));
  const page = PAGES.find((each) => each.name === (words[0] || "overview") && (!who || mayShow(each)));
  useEffect(() => {
    const names = words.slice(2).join(" ");
    document.title = `${names || page?.label || "?"} – brokerd`;
  }, [words.join("/"), page]);
  if (who === undefined) return <Lost />;
  if (who === null) return <LogIn />;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        document.getElementById("main")?.focus();
      }}>To the content</a>
      <div class="frame">
        <Side current={page?.name ?? ""} help={() => setHelp(true)} />
        <div>
          <Lost />
          <main id="main" tabIndex={-1}>
            {!page ? <h1>There is no such page, or you may not see it.</h1>
              : page.one && words.length >= 3 ? page.one(words.slice(1)) : page.list()}
          </main>
        </div>
      </div>
      {help && <Keys close={() => setHelp(false)} />}
      <Notice />
    </>
  );
}

dress();
dark.addEventListener("change", dress);
void findSession();
render(<App />, document.getElementById("app")!);
