// Refused writes and clients, the latest first, in sentences.

import { byId, h } from "./dom.js";
import { time, token } from "./words.js";

const SHOWN = 60;

const code = (text) => h("code", {}, text);
const at = (ms) => h("time", { datetime: new Date(ms).toISOString() }, time(ms));

export function makeFeeds() {
  const refusals = makeFeed("refusals", (each) => h("li", {}, at(each.at), h("div", {}, ...refusal(each))));
  const events = makeFeed("events", (each) => h("li", {}, at(each.at), h("p", {}, ...event(each))));
  return (model) => { refusals(model.refusals); events(model.events); };
}

/** Only what is new is made: the list stays where it was scrolled to, and a screen reader hears the rest once. */
function makeFeed(id, make) {
  const list = byId(id);
  let newest = null;
  let first = null;
  return (items) => {
    byId(`no-${id}`).hidden = items.length > 0;
    const known = items[0] === first && newest !== null ? items.lastIndexOf(newest) : items.lastIndexOf(newest);
    first = items[0];
    newest = items.at(-1) ?? null;
    if (known < 0) list.replaceChildren();
    const fresh = items.slice(known + 1).slice(-SHOWN).reverse();
    list.prepend(...fresh.map(make));
    while (list.children.length > SHOWN) list.lastElementChild.remove();
  };
}

function whose(owner, text) {
  const name = h("span", { title: text }, `token ${token(text)}`);
  return owner === null ? [name] : [name, " of ", code(owner[1]), " (lock ", code(owner[0]), ")"];
}

function refusal(each) {
  const what = h("p", {}, h("span", { class: "mark bad" }, "refused"), " ", code(each.client), ` ${each.action} `, code(each.key));
  if (each.why === "older token" && each.token && each.mark) {
    return [what, h("p", { class: "why" }, ...whose(each.holding, each.token), " is older than ", ...whose(each.marked_by, each.mark), ", which wrote this key")];
  }
  if (each.why === "no token" && each.mark) {
    return [what, h("p", { class: "why" }, "without a fencing token; the key is protected by ", ...whose(each.marked_by, each.mark))];
  }
  return [what, h("p", { class: "why" }, each.why)];
}

function event(each) {
  const client = code(each.client ?? "?");
  if (each.kind === "connected") {
    return [h("span", { class: "mark good" }, "came"), " ", client, each.user ? ` as ${each.user}` : "", h("span", { class: "quiet" }, ` from ${each.peer}`)];
  }
  if (each.kind === "disconnected") {
    const said = each.code === 0 && each.by === "peer";
    const why = said ? "said goodbye" : `${each.text || "connection lost"} (0x${each.code.toString(16).padStart(2, "0")}, by the ${each.by === "peer" ? "client" : "server"})`;
    return [h("span", { class: said ? "mark" : "mark bad" }, "left"), " ", client, h("span", { class: "quiet" }, ` ${why}`)];
  }
  return [h("span", { class: "mark" }, each.kind), " ", client, h("span", { class: "quiet" }, ` ${each.text ?? ""}`)];
}
