// The broker that the store is hosted on, the other servers of a replicated log, the peers of that log, and the sites
// of the KvStore.

import { question } from "./actions.js";
import { h, table } from "./dom.js";
import { bytes, count, duration } from "./words.js";

export function clusterPanel() {
  const element = h("div", { class: "cards" });
  const refresh = async (model) => {
    const parts = [...broker(model), ...log(model), ...raft(model), ...await peers(model), ...await sites()];
    element.replaceChildren(...(parts.length ? parts : [h("p", { class: "empty" }, "This server is alone: it shares no log with others, and is not a site.")]));
  };
  return { element, refresh };
}

/** What a hosted store is to its broker; null if it is a broker itself. */
export function hostedOn({ server, figures }) {
  if (!server.is_hosted) return null;
  if (figures.statestore_host_connected) return "connected";
  return [null, "active"].includes(roleOf(figures)) ? "the broker is away" : "not connected, as another host is";
}

/** What this server is among those of its log; null if it shares none. */
export function roleOf(figures) {
  const roles = labelled(figures, "statestore_log_role");
  return Object.keys(roles).length ? of(roles) : null;
}

/** The server that is active, as far as this one knows; null if none is, or this server shares no log. */
export function activeOf(figures) {
  return Object.keys(labelled(figures, "statestore_log_active"))[0] ?? null;
}

/** Of a figure with one label: its value by that label. */
function labelled(figures, name) {
  const found = {};
  for (const [key, value] of Object.entries(figures)) {
    const match = key.startsWith(`${name}{`) ? key.match(/="((?:[^"\\]|\\.)*)"\}$/) : null;
    if (match) found[match[1].replace(/\\(.)/g, "$1")] = value;
  }
  return found;
}

const of = (roles) => Object.keys(roles).find((role) => roles[role] === 1) ?? "unknown";
const facts = (title, pairs) => h("div", { class: "card" }, h("h3", {}, title),
  h("dl", { class: "facts" }, ...pairs.flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)])));

function broker({ server, figures }) {
  const state = hostedOn({ server, figures });
  if (state === null) return [];
  const figure = (name) => figures[`statestore_host_${name}`];
  return [facts("Client of a broker", [
    ["Broker", server.urls.join("  ")], ["State", state], ["Behind by", duration(1000 * figure("lag_seconds"))], ["In flight to it", count(figure("in_flight"))],
    ["Open requests", count(figure("open_requests"))], ["Waiting for room", count(figure("waiting_requests"))], ["Brought again", count(figure("repeated_requests_total"))],
    ["Watches", count(figure("registrations"))], ["Connections", count(figure("connections_total"))], ["Of those, lost", count(figure("losses_total"))]])];
}

function log({ figures }) {
  if (roleOf(figures) === null) return [];
  const figure = (name) => figures[`statestore_log_${name}`];
  return [facts("This server of the log", [
    ["Role", roleOf(figures)], ["Active server", activeOf(figures) ?? "none"], ["Epoch", count(figure("epoch"))], ["Last entry read", String(figure("index"))],
    ["Log silent for", duration(1000 * figure("silence_seconds"))], ["Log without a leader for", duration(1000 * figure("leaderless_seconds"))], ["Servers that listen", String(figure("listening_servers"))],
    ["Clients passed on", String(figure("passed_on_clients"))]])];
}

/** What each peer of the log says of itself, wherever it runs. */
async function peers({ figures }) {
  if (roleOf(figures) === null) return [];
  const { peers: found } = await question("log").catch(() => ({ peers: null }));
  const committed = Math.max(0, ...(found ?? []).map(({ info }) => info?.commit_index ?? 0));
  const row = ({ id, url, info }) => [id, url, ...info
    ? [info.is_leader ? "leader" : "follower", String(info.current_term), String(info.commit_index), String(info.last_applied),
      `${count(Math.max(0, committed - info.last_index))} entries`, info.snapshot_bytes ? bytes(info.snapshot_bytes) : "none"]
    : ["no answer", "", "", "", "", ""]];
  return [h("div", { class: "card wide" }, h("h3", {}, "Peers of the log"), found
    ? table("Peers of the log", ["Peer", "Address", "Role", "Term", "Committed", "Applied", "Behind", "Snapshot"], found.map(row), [3, 4, 5, 6, 7])
    : h("p", { class: "empty" }, "They are being asked."))];
}

function raft({ figures }) {
  const roles = labelled(figures, "zmqraft_role");
  if (!Object.keys(roles).length) return [];
  const figure = (name) => figures[`zmqraft_${name}`];
  const lags = Object.entries(labelled(figures, "zmqraft_follower_lag_entries"));
  return [facts("Raft peer in this process", [
    ["Role", of(roles)], ["Leader", figure("leader_known") ? "known" : "not known"], ["Term", String(figure("term"))],
    ["Committed", `${figure("commit_index")} of ${figure("last_index")}`], ["Applied", `${figure("applied_index")} (${count(figure("commit_index") - figure("applied_index"))} behind)`],
    ["On the disk", String(figure("durable_index"))], ["Snapshot", figure("snapshot_index") ? `up to ${figure("snapshot_index")}, ${bytes(figure("snapshot_bytes"))}` : "none"],
    ["Elections it stood in", String(figure("elections_total"))],
    ...lags.map(([peer, lag]) => [`Behind: ${peer}`, `${count(lag)} entries`])])];
}

async function sites() {
  const answer = await question("site").catch(() => ({ areas: null }));
  return (answer.areas ?? []).map((area) => h("div", { class: "card" }, h("h3", {}, `Site ${answer.name}, area ${area.area}`),
    h("p", { class: "quiet" }, `${count(area.keys)} keys, ${count(area.own)} of its own`),
    area.peers.length ? table(`Peers in ${area.area}`, ["Site", "State", "Connection", "Flaps"],
      area.peers.map((peer) => [peer.name, peer.state, peer.is_connected ? "up" : "down", String(peer.flaps)]), [3])
      : h("p", { class: "empty" }, "No other site has come.")));
}
