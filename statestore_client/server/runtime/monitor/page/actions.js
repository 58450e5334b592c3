// What the server is asked for: questions, and what a viewer may do, if the server was started so. That is asked for once
// more before it is done.

import { byId, setText } from "./dom.js";

let offered = false;

export const offersActions = () => offered;
export const setActions = (value) => { offered = value; };

/** An answer of the server; throws what it says is wrong. */
export async function question(path, query = {}) {
  const response = await fetch(`${path}?${new URLSearchParams(query)}`);
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error ?? `${response.status} ${response.statusText}`);
  return answer;
}

/** Ask, do it if the answer is yes, and show what the server says if it cannot be done. */
export async function ask(title, text, yes, action) {
  if (!await confirmed(title, text, yes)) return false;
  const response = await fetch("actions", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(action) });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) await confirmed("That was not done", answer.error ?? response.statusText, null);
  return response.ok && answer.done;
}

function confirmed(title, text, yes) {
  const dialog = byId("ask");
  setText(byId("ask-title"), title);
  setText(byId("ask-text"), text);
  byId("ask-yes").hidden = yes === null;
  setText(byId("ask-yes"), yes ?? "");
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => { dialog.onclose = () => resolve(dialog.returnValue === "yes"); });
}
