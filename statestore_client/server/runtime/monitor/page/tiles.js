// The figures of now, each with the plot of the last minutes.

import { byId, h, s, setText } from "./dom.js";
import { latencies, rates, values } from "./model.js";
import { bytes, count, duration } from "./words.js";

const [WIDTH, HEIGHT] = [200, 36];
const SHOWN_MS = { least: 60_000, most: 300_000 };

const perSecond = (name) => (model) => rates(model.history, name);
const plain = (name, factor) => (model) => values(model.history, name, factor);
const isBroker = (server) => !server.is_hosted;
const isHosted = (server) => Boolean(server.is_hosted);
const TILES = [
  { title: "Requests to the store", unit: "/s", lines: [perSecond("statestore_store_requests_total")], text: count },
  { title: "In the store, p50 · p99", unit: "", lines: [(m) => latencies(m.history, "p50"), (m) => latencies(m.history, "p99")],
    text: duration },
  { title: "Refused requests", unit: "/s", lines: [perSecond("statestore_store_refusals_total")], text: count, bad: (value) => value > 0 },
  { title: "Messages in and out", unit: "/s", lines: [perSecond("statestore_received_messages_total"), perSecond("statestore_sent_messages_total")],
    text: count, when: isBroker },
  { title: "Clients", unit: "", lines: [plain("statestore_clients")], text: count, when: isBroker },
  { title: "Behind the broker by", unit: "", lines: [plain("statestore_host_lag_seconds", 1000)], text: duration, when: isHosted,
    hint: "How long the oldest request has been here that is not acknowledged to the broker." },
  { title: "In flight to the broker", unit: "", lines: [plain("statestore_host_in_flight")], text: count, when: isHosted,
    hint: "Answers and notifications that the broker has not acknowledged." },
  { title: "Keys", unit: "", lines: [plain("statestore_store_keys")], text: count },
  { title: "Waiting for clients", unit: "", lines: [plain("statestore_held_bytes")], text: bytes, when: isBroker },
  { title: "Made durable, p50 · p99", unit: "", lines: [(m) => latencies(m.history, "commit_p50"), (m) => latencies(m.history, "commit_p99")],
    text: duration, when: (server) => server.is_durable, hint: "How long a batch of writes takes to be on the disk, or in the replicated log: clients wait for it." },
  { title: "Timer late by", unit: "", lines: [(m) => latencies(m.history, "late")], text: duration, bad: (value) => value > 250, when: (server) => !server.is_durable,
    hint: "How late the server's own timer is: a busy or stopped process." },
];

export function makeTiles() {
  const tiles = TILES.map((tile) => {
    const figure = h("p", { class: "figure" });
    const plot = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    const item = h("li", { class: "tile", title: tile.hint }, h("h3", {}, tile.title), figure, plot);
    return { ...tile, figure, plot, item };
  });
  byId("tiles").replaceChildren(...tiles.map((tile) => tile.item));
  return (model) => tiles.forEach((tile) => draw(tile, model));
}

function draw(tile, model) {
  tile.item.hidden = !(tile.when?.(model.server) ?? true);
  const age = model.now - (model.history[0]?.at ?? model.now);
  const span = Math.min(Math.max(age, SHOWN_MS.least), SHOWN_MS.most);
  const start = model.now - span;
  const lines = tile.lines.map((line) => line(model).filter((point) => point.at >= start));
  const last = lines.map((line) => line.at(-1)?.value ?? 0);
  // A unit that both figures have is said once, so that they fit on one line.
  const texts = last.map(tile.text);
  const unit = texts.at(-1).match(/ \D+$/)?.[0];
  const short = texts.map((each, n) => (unit && n < texts.length - 1 && each.endsWith(unit) ? each.slice(0, -unit.length) : each));
  setText(tile.figure, `${short.join(" · ")}${tile.unit}`);
  tile.item.classList.toggle("is-bad", tile.bad?.(last[0]) ?? false);
  const top = Math.max(...lines.flat().map((point) => point.value), 1e-9) * 1.1;
  const x = (at) => ((at - start) / span) * WIDTH;
  const y = (value) => HEIGHT - 1 - (value / top) * (HEIGHT - 3);
  tile.plot.replaceChildren(...lines.flatMap((line, i) => {
    if (!line.length) return [];
    const path = line.map((point, n) => `${n ? "L" : "M"}${x(point.at).toFixed(1)},${y(point.value).toFixed(1)}`).join("");
    const stroke = s("path", { class: i ? "plot plot-2" : "plot", d: path, "vector-effect": "non-scaling-stroke" });
    if (i) return [stroke];
    const area = `${path}L${x(line.at(-1).at).toFixed(1)},${HEIGHT}L${x(line[0].at).toFixed(1)},${HEIGHT}Z`;
    return [s("path", { class: "area", d: area }), stroke];
  }));
}
