// The lock timeline: a lane for each lock, a bar for each holding.

import { byId, h, s, setText, table } from "./dom.js";
import { duration, time, token } from "./words.js";

const [HEIGHT, TOP, BAR, AHEAD] = [40, 7, 26, 0.06]; // AHEAD: the part of the lane that is the future
const HOW = { released: "released", expired: "lease expired", deleted: "key deleted", overwritten: "overwritten" };

const color = (name) => {
  let sum = 0;
  for (const character of name) sum = (sum * 31 + character.codePointAt(0)) % 997;
  return sum % 7;
};

export function makeLanes() {
  const lanes = new Map();
  const box = byId("lanes");
  const axis = s("svg", { "aria-hidden": "true" });
  const axisRow = h("div", { class: "lane axis", "aria-hidden": "true" }, h("div"), axis);
  let shown = 60;
  let last = null;
  const draw = (model) => {
    last = model;
    const locks = [...model.locks.values()].sort((a, b) => a.key.localeCompare(b.key));
    byId("no-locks").hidden = locks.length > 0;
    const held = locks.filter((lock) => current(lock, model.now)).length;
    setText(byId("locks-sum"), locks.length ? `${held} of ${locks.length} held` : "");
    for (const [number, lane] of lanes) if (!model.locks.has(number)) { lane.row.remove(); lanes.delete(number); }
    locks.forEach((lock, place) => {
      if (!lanes.has(lock.number)) lanes.set(lock.number, makeLane());
      const lane = lanes.get(lock.number);
      if (box.children[place] !== lane.row) box.insertBefore(lane.row, box.children[place] ?? null);
      drawLane(lane, lock, model, shown);
    });
    if (locks.length) { box.append(axisRow); drawAxis(axis, model.now, shown); } else axisRow.remove();
  };
  byId("span").addEventListener("change", (event) => { shown = Number(event.target.value); if (last) draw(last); });
  new ResizeObserver(() => { if (last) draw(last); }).observe(box);
  return draw;
}

function makeLane() {
  const [title, who] = [h("h3"), h("p", { class: "who" })];
  const plot = s("svg", { role: "img" });
  const more = h("details", {}, h("summary", {}, "All holdings"));
  const content = h("div");
  more.append(content);
  const row = h("div", { class: "lane" }, h("div", {}, title, who), plot, more);
  return { row, title, who, plot, more, content, drawn: "" };
}

const current = (lock, now) => {
  const holding = [...lock.holdings.values()].at(-1);
  return holding && holding.ended === null && holding.until > now ? holding : null;
};

function drawLane(lane, lock, model, shown) {
  setText(lane.title, lock.key);
  const holder = current(lock, model.now);
  const waiting = lock.waiting.length ? `, ${lock.waiting.length} waiting` : "";
  const state = holder
    ? `${holder.holder}${holder.gone === null ? "" : " (its client is gone)"} for ${duration(model.now - holder.began)}${waiting}`
    : `free${waiting}`;
  setText(lane.who, state);
  lane.who.classList.toggle("is-free", !holder);
  lane.plot.setAttribute("aria-label", summary(lock, holder, model));
  drawPlot(lane.plot, lock, model, shown);
  if (lane.more.open) drawDetails(lane, lock);
  lane.more.ontoggle = () => { lane.drawn = ""; if (lane.more.open) drawDetails(lane, lock); };
}

function summary(lock, holder, model) {
  const gaps = handOvers(lock).filter((each) => each.gap !== null);
  const longest = gaps.length ? `; the longest hand-over took ${duration(Math.max(...gaps.map((each) => each.gap)))}` : "";
  const refused = model.refusals.filter((each) => each.holding?.[0] === lock.key).length;
  const state = holder ? `held by ${holder.holder} since ${time(holder.began)}, token ${holder.token}` : "free";
  return `${lock.key}: ${state}; ${lock.holdings.size} holdings${longest}; ${refused} refused writes`;
}

/** Each holding with the time for which nobody held the lock before it. */
function handOvers(lock) {
  let before = null;
  return [...lock.holdings.values()].map((holding) => {
    const gap = before === null || before.ended === null ? null : Math.max(0, holding.began - before.ended);
    before = holding;
    return { holding, gap };
  });
}

function drawPlot(plot, lock, model, shown) {
  const width = plot.clientWidth || 600;
  const end = model.now + shown * 1000 * AHEAD;
  const start = model.now - shown * 1000 * (1 - AHEAD);
  const x = (at) => ((Math.min(Math.max(at, start), end) - start) / (end - start)) * width;
  plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  const parts = [hatch(lock.number), s("rect", { class: "base", x: 0, y: TOP + BAR / 2 - 1, width, height: 2 })];
  for (const { holding, gap } of handOvers(lock)) {
    if (gap > 0 && holding.began > start) parts.push(...gapParts(x(holding.began - gap), x(holding.began), gap));
    if ((holding.ended ?? holding.until) > start) parts.push(...bar(holding, model.now, x, lock.number));
  }
  parts.push(s("line", { class: "nowline", x1: x(model.now), x2: x(model.now), y1: 0, y2: HEIGHT }));
  for (const refusal of model.refusals) {
    if (refusal.at > start && refusal.holding?.[0] === lock.key) parts.push(refusedMark(x(refusal.at), refusal));
  }
  plot.replaceChildren(...parts);
}

function hatch(number) {
  return s("defs", {}, s("pattern", { id: `hatch${number}`, width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    s("line", { class: "hatch", x1: 0, x2: 0, y1: 0, y2: 8 })));
}

function bar(holding, now, x, number) {
  const over = holding.ended ?? Math.min(now, holding.until);
  const [from, to] = [x(holding.began), x(over)];
  const tone = color(holding.holder);
  const place = { y: TOP, height: BAR, rx: 4 };
  const width = Math.max(2, to - from);
  const paint = (name) => `fill: var(--c${tone}); stroke: var(--${name}${tone})`;
  const label = `${holding.holder} from ${time(holding.began)}${holding.ended === null ? "" : ` to ${time(holding.ended)}`}, token ${holding.token}`;
  const parts = [];
  if (holding.ended === null && holding.until > now) {
    parts.push(colored(s("rect", { ...place, class: "future", x: to, width: Math.max(0, x(holding.until) - to) }), paint("edge")));
  }
  parts.push(colored(s("rect", { ...place, x: from, width }, s("title", {}, label)), paint("edge")));
  if (holding.gone !== null) {
    const left = Math.max(from, x(holding.gone));
    parts.push(s("rect", { ...place, x: left, width: Math.max(0, to - left), fill: `url(#hatch${number})`, opacity: 0.6 }));
  }
  const fits = Math.floor((width - 14) / 6.7);
  const text = `${holding.holder} · ${token(holding.token)}`;
  if (fits >= 3) {
    const written = text.length <= fits ? text : holding.holder.length <= fits ? holding.holder : `${holding.holder.slice(0, fits - 1)}…`;
    parts.push(s("text", { x: from + 8, y: TOP + BAR / 2 + 4 }, written));
  }
  return parts;
}

/** Styles go through the object model: the page's policy permits none in markup. */
function colored(element, style) {
  element.style.cssText = style;
  return element;
}

function gapParts(from, to, gap) {
  const y = TOP + BAR / 2;
  const parts = [s("line", { class: "gap", x1: from, x2: to, y1: y, y2: y }, s("title", {}, `nobody for ${duration(gap)}`))];
  if (to - from > 44) parts.push(s("text", { class: "gap-text", x: (from + to) / 2, y: y - 6, "text-anchor": "middle" }, duration(gap)));
  return parts;
}

function refusedMark(at, refusal) {
  return s("path", { class: "refused", d: `M${at - 5},0h10l-5,8z` },
    s("title", {}, `${time(refusal.at)}: ${refusal.action} ${refusal.key} refused`));
}

function drawDetails(lane, lock) {
  const key = JSON.stringify([...lock.holdings.values()].map((each) => [each.number, each.ended, each.renewals, each.writes, each.gone])) + JSON.stringify(lock.waiting);
  if (key === lane.drawn) return;
  lane.drawn = key;
  const rows = handOvers(lock).reverse().map(({ holding, gap }) => [
    h("code", {}, holding.holder), h("code", {}, holding.client || "–"), h("code", {}, holding.token), time(holding.began),
    holding.ended === null ? (holding.gone === null ? "holds it" : `client gone at ${time(holding.gone)}`) : `${time(holding.ended)}, ${HOW[holding.how] ?? holding.how}`,
    holding.ended === null ? "" : duration(holding.ended - holding.began), gap === null ? "–" : duration(gap), String(holding.renewals), String(holding.writes)]);
  const parts = [table(`Holdings of ${lock.key}`,
    ["Holder", "Client", "Fencing token", "From", "Until", "Held for", "Hand-over", "Renewals", "Guarded writes"], rows, [5, 6, 7, 8])];
  if (lock.waiting.length) {
    parts.push(h("p", { class: "quiet" }, "Waiting: ", lock.waiting.map((each) => `${each.holder} since ${time(each.since)}`).join(", ")));
  }
  lane.content.replaceChildren(...parts);
}

function drawAxis(axis, now, shown) {
  const width = axis.clientWidth || 600;
  axis.setAttribute("viewBox", `0 0 ${width} 18`);
  const step = [5, 10, 15, 30, 60, 120, 300, 600, 900].find((each) => (shown / each) * 80 < width) ?? 1800;
  const [start, end] = [now - shown * 1000 * (1 - AHEAD), now + shown * 1000 * AHEAD];
  const ticks = [];
  for (let at = Math.ceil(start / (step * 1000)) * step * 1000; at <= now; at += step * 1000) {
    const x = ((at - start) / (end - start)) * width;
    if (x > 28 && x < width - 28) ticks.push(s("text", { class: "tick", x, y: 13, "text-anchor": "middle" }, time(at)));
  }
  axis.replaceChildren(...ticks);
}
