// What is inside: a panel for each kind of thing, asked for when it is looked at, and again every few seconds.

import { ask, offersActions, question } from "./actions.js";
import { clusterPanel } from "./cluster.js";
import { byId, h, setText, table } from "./dom.js";
import { keysPanel } from "./keys.js";
import { bytes, duration } from "./words.js";

const EVERY_MS = 3000;
const ELSEWHERE = "They are at the broker that this store is hosted on.";

/** A panel with a list that is asked for a page at a time: `label` and `name` are of the field to search with. */
function listPanel({ path, label, name, rows, heads, numbers, list, empty, first = "at" }) {
  let at = {};
  const input = h("input", { type: "text", spellcheck: "false", autocomplete: "off", id: `search-${path}` });
  const more = h("button", { type: "button", class: "plain" }, "Next page");
  const start = h("button", { type: "button", class: "plain" }, "First page");
  const content = h("div");
  const wrong = h("p", { class: "wrong", role: "alert" });
  const search = label ? [h("label", { for: `search-${path}` }, label), input] : [];
  const element = h("div", {}, h("div", { class: "search" }, ...search, start, more), wrong, content);
  const refresh = async () => {
    try {
      const answer = await question(path, { ...(label ? { [name]: input.value } : {}), ...at });
      more.hidden = answer.next === null;
      start.hidden = Object.keys(at).length === 0;
      more.onclick = () => { at = { [first]: answer.next }; refresh(); };
      const found = answer[list] ?? [];
      const none = answer[list] === null ? ELSEWHERE : empty;
      content.replaceChildren(found.length ? table(list, heads, found.map((each) => rows(each, refresh)), numbers) : h("p", { class: "empty" }, none));
      setText(wrong, "");
    } catch (error) { setText(wrong, error.message); }
  };
  start.onclick = () => { at = {}; refresh(); };
  input.addEventListener("input", () => { at = {}; refresh(); });
  return { element, refresh };
}

const code = (text) => h("code", {}, text);
const when = (seconds) => (seconds === null ? "–" : new Date(seconds * 1000).toLocaleString());

function endButton(client, refresh) {
  const button = h("button", { type: "button", class: "plain danger", "aria-label": `End the session of ${client}` }, "End");
  button.onclick = async () => {
    await ask("End this session?", `${client} is disconnected. Its subscriptions, and all messages that wait for it, are lost; its will goes out.`, "End it", { action: "end session", what: client });
    refresh();
  };
  return button;
}

const sessionsPanel = () => listPanel({
  path: "sessions", list: "sessions", label: "From client id", name: "at", numbers: [2, 3, 4], empty: "No sessions.",
  heads: ["Client", "User", "Waiting", "In flight", "From it", "State", "Subscriptions", ...(offersActions() ? ["Action"] : [])],
  rows: (each, refresh) => [code(each.client_id), each.user ?? "–", String(each.queued), String(each.in_flight), String(each.unreleased),
    each.was_connected ? "connected" : `left ${when(each.left_at)}${each.expiry_s === null ? ", never ends" : `, ends after ${duration(each.expiry_s * 1000)}`}`,
    h("details", {}, h("summary", {}, String(each.subscriptions.length)), ...each.subscriptions.map(([filter, qos]) => h("p", {}, code(filter), ` QoS ${qos}`))),
    ...(offersActions() ? [endButton(each.client_id, refresh)] : [])],
});

const watchesPanel = () => listPanel({
  path: "watches", list: "watches", first: "skip", numbers: [1, 2, 3], empty: "Nobody watches a key.",
  heads: ["Client", "Keys", "Behind: waiting", "In flight", "Which"],
  rows: (each) => [code(each.client), String(each.count), String(each.queued ?? "–"), String(each.in_flight ?? "–"),
    h("span", {}, ...each.keys.flatMap((key, i) => [i ? ", " : "", code(key)]), each.count > each.keys.length ? " and others" : "")],
});

const retainedPanel = () => listPanel({
  path: "retained", list: "messages", label: "Topic filter", name: "filter", numbers: [1, 2], empty: "No retained messages here.",
  heads: ["Topic", "QoS", "Size", "From", "Expires", "Payload"],
  rows: (each) => [code(each.topic), String(each.qos), bytes(each.size), code(each.publisher || "–"), when(each.expires_at), each.payload === null ? "–" : code(each.payload)],
});

const PANELS = [
  ["Keys", keysPanel], ["Watches", watchesPanel], ["Sessions", sessionsPanel], ["Retained messages", retainedPanel], ["Servers and sites", clusterPanel],
];

export function makeExplore() {
  const box = byId("panel");
  let panel = null;
  let asked = 0;
  let model = null;
  const tabs = PANELS.map(([name], i) => h("button", { type: "button", role: "tab", id: `tab-${i}`, "aria-controls": "panel" }, name));
  const select = (place) => {
    tabs.forEach((tab, i) => { tab.setAttribute("aria-selected", String(i === place)); tab.tabIndex = i === place ? 0 : -1; });
    box.setAttribute("aria-labelledby", `tab-${place}`);
    panel = PANELS[place][1]();
    box.replaceChildren(panel.element);
    if (model) panel.refresh(model);
  };
  tabs.forEach((tab, i) => {
    tab.onclick = () => select(i);
    tab.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = (i + step + tabs.length) % tabs.length;
      select(next);
      tabs[next].focus();
    };
  });
  byId("tabs").replaceChildren(...tabs);
  return (newest) => {
    if (byId("explore").hidden) return; // a recording has nothing inside
    const isFirst = model === null;
    model = newest;
    if (isFirst) select(0);
    const isSeen = document.visibilityState === "visible" && box.getBoundingClientRect().top < window.innerHeight;
    const isUsed = box.contains(document.activeElement) && document.activeElement !== box && document.activeElement.tagName !== "INPUT";
    if (isSeen && !isUsed && !box.querySelector("details[open]") && Date.now() - asked >= EVERY_MS) {
      asked = Date.now();
      panel.refresh(model);
    }
  };
}
