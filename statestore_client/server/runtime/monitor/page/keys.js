// Keys by their beginning; of one key its value as text, JSON or hexadecimal, and what became of it.

import { ask, offersActions, question } from "./actions.js";
import { h, setText, table } from "./dom.js";
import { bytes, duration, time, token } from "./words.js";

const code = (text, title) => h("code", { title }, text);

export function keysPanel() {
  let at = null;
  let chosen = null;
  const input = h("input", { type: "text", id: "prefix", spellcheck: "false", autocomplete: "off" });
  const more = h("button", { type: "button", class: "plain" }, "Next page");
  const wrong = h("p", { class: "wrong", role: "alert" });
  const [detail, content] = [h("div"), h("div")];
  const element = h("div", {}, h("div", { class: "search" }, h("label", { for: "prefix" }, "Keys that begin with"), input, more), wrong, detail, content);
  const refresh = async () => {
    try {
      const query = at === null ? { prefix: input.value } : { prefix: input.value, at };
      const answer = await question("keys", query);
      more.hidden = answer.next === null;
      more.onclick = () => { at = answer.next; refresh(); };
      content.replaceChildren(answer.keys.length ? list(answer.keys, choose) : h("p", { class: "empty" }, "No such keys."));
      const asked = chosen;
      if (asked !== null) {
        const found = await question("key", { key: asked });
        if (asked === chosen) detail.replaceChildren(...one(found, asked, close)); // it may have been closed meanwhile
      }
      setText(wrong, "");
    } catch (error) { setText(wrong, error.message); }
  };
  const choose = (key) => { chosen = key; refresh(); };
  const close = () => { chosen = null; detail.replaceChildren(); refresh(); };
  input.addEventListener("input", () => { at = null; refresh(); });
  return { element, refresh };
}

function list(keys, choose) {
  const rows = keys.map((each) => {
    const button = h("button", { type: "button", class: "link code" }, each.name);
    button.onclick = () => choose(each.key);
    return [button, each.value === null ? "not permitted" : code(each.value), bytes(each.size), code(token(each.version), each.version),
      each.left_ms === null ? "never" : `in ${duration(Math.max(0, each.left_ms))}`, each.fence === null ? "–" : code(token(each.fence), each.fence)];
  });
  return table("keys", ["Key", "Value", "Size", "Version", "Expires", "Fencing token"], rows, [2]);
}

function one(answer, key, close) {
  const shut = h("button", { type: "button", class: "plain" }, "Close");
  shut.onclick = close;
  const buttons = [shut];
  if (offersActions() && answer.key) {
    const remove = h("button", { type: "button", class: "plain danger" }, "Delete");
    remove.onclick = async () => {
      const isDone = await ask("Delete this key?", `${answer.name} is deleted, and all that watch it hear of that. If it is a lock, a holder that lives takes it again at its next renewal, if nobody else does before, unless it is statestore lock, which ends: statestore unlock --force takes it away.`, "Delete it", { action: "delete key", what: key });
      if (isDone) close();
    };
    buttons.push(remove);
  }
  const facts = answer.key
    ? [["Version", answer.key.version], ["Fencing token", answer.key.fence ?? "none"], ["Expires", answer.key.left_ms === null ? "never" : `in ${duration(Math.max(0, answer.key.left_ms))}`],
      ["Watched by", answer.watchers.join(", ") || "nobody"]]
    : [["State", "not there (any more)"]];
  return [h("div", { class: "card" },
    h("div", { class: "search" }, h("h3", { class: "code" }, answer.name), ...buttons),
    h("dl", { class: "facts" }, ...facts.flatMap(([name, text]) => [h("dt", {}, name), h("dd", { class: "code" }, text)])),
    ...(answer.value === null ? [] : value(answer.value)),
    answer.changes.length ? table(`Changes of ${answer.name}`, ["Seen at", "By", "What", "Version", "Size", "Value"], answer.changes.map((each) => [time(each.at),
      code(each.client), each.action, code(token(each.version), each.version), bytes(each.size), code(each.value)]), [4]) : null)];
}

let view = "text";

/** All three at choice; JSON only if it is some. */
function value(base64) {
  const data = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const text = new TextDecoder().decode(data);
  const pretty = json(text);
  const ways = { text, hex: hex(data), ...(pretty === null ? {} : { JSON: pretty }) };
  const shown = h("pre", { tabindex: 0, "aria-label": "Value" });
  const draw = () => setText(shown, ways[view] ?? ways.text);
  const choice = h("fieldset", {}, h("legend", { class: "hidden" }, "Show the value as"), ...Object.keys(ways).map((way) => {
    const radio = h("input", { type: "radio", name: "way", value: way, checked: way === (ways[view] ? view : "text") });
    radio.onchange = () => { view = way; draw(); };
    return h("label", {}, radio, h("span", {}, way));
  }));
  draw();
  return [h("div", { class: "search" }, choice, h("span", { class: "quiet" }, data.length >= 65536 ? "the first 64 KiB" : bytes(data.length))), shown];
}

function json(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return null; }
}

function hex(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, 4096); at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const numbers = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${numbers.padEnd(47)}  ${letters}`);
  }
  return data.length > 4096 ? [...lines, "…"].join("\n") : lines.join("\n");
}
