// Puts the page together: messages come in, the model takes them, what is shown follows once a second.

import { setActions } from "./actions.js";
import { activeOf, hostedOn, roleOf } from "./cluster.js";
import { byId, setText } from "./dom.js";
import { makeFeeds } from "./feeds.js";
import { makeLanes } from "./lanes.js";
import { makeExplore } from "./explore.js";
import { Model } from "./model.js";
import { startReplay } from "./replay.js";
import { makeTiles } from "./tiles.js";
import { time } from "./words.js";

const model = new Model();
const views = [makeTiles(), makeLanes(), makeFeeds(), makeExplore()];

function about({ server, figures }) {
  const role = roleOf(figures);
  const parts = [role, role && role !== "active" ? `active: ${activeOf(figures) ?? "no server"}` : null, server.is_hosted ? `hosted on ${server.urls.join("  ")}, ${hostedOn({ server, figures })}` : (server.urls ?? []).join("  "), `version ${server.version}`, server.is_durable ? "durable" : "in memory"];
  return parts.filter(Boolean).join(" · ");
}

function say(state, text) {
  byId("live").className = state;
  setText(byId("live-text"), text);
}

function show(state = "is-live", text = `live, ${time(model.now)}`) {
  setActions(Boolean(model.server.has_actions));
  setText(byId("about"), about(model));
  say(state, text);
  for (const view of views) view(model);
}

function connect() {
  const source = new EventSource("events");
  for (const kind of ["hello", "tick"]) {
    source.addEventListener(kind, (event) => {
      model.take(kind, JSON.parse(event.data));
      requestAnimationFrame(() => show());
    });
  }
  source.addEventListener("replay", () => {
    source.close();
    byId("explore").hidden = true;
    startReplay(model, () => show("is-replay", `recording, ${time(model.now)}`));
  });
  source.addEventListener("error", () => say("is-lost", model.now ? `no connection since ${time(model.now)}; trying again` : "no connection; trying again"));
}

connect();
