// What is known of the server: messages folded into one value, live or from a recording. Knows no document.

const KEPT = { history: 1800, refusals: 200, events: 300, holdings: 50, locks: 100 };

export class Model {
  constructor() {
    this.server = {};
    this.now = 0;
    this.figures = {};
    this.history = [];
    this.latency = null;
    this.locks = new Map();
    this.refusals = [];
    this.events = [];
  }

  /** Take in a message; see `Monitor` of the server for what they are. */
  take(kind, message) {
    if (kind === "hello") this.#hello(message);
    else this.#tick(message);
  }

  #hello(message) {
    this.server = message.server;
    this.now = message.now;
    this.figures = message.figures;
    this.history = message.history;
    this.latency = message.latency;
    this.locks.clear();
    this.refusals = message.refusals;
    this.events = message.events;
    this.#merge(message.locks);
  }

  #tick(message) {
    this.now = message.now;
    Object.assign(this.figures, message.figures);
    for (const name of message.gone ?? []) delete this.figures[name];
    this.latency = message.latency;
    this.#append("history", [this.#point(message)]);
    this.#append("refusals", message.refusals);
    this.#append("events", message.events);
    this.#merge(message.locks);
  }

  #append(name, items) {
    this[name] = [...this[name], ...items].slice(-KEPT[name]);
  }

  /** What the plots show of this second, as the server gives it for the time before. */
  #point(message) {
    const point = { at: message.now, latency: message.latency };
    for (const name of ["statestore_received_messages_total", "statestore_sent_messages_total", "statestore_clients",
      "statestore_store_keys", "statestore_held_bytes", "statestore_host_lag_seconds", "statestore_host_in_flight", "process_resident_memory_bytes"]) point[name] = this.figures[name];
    for (const name of ["statestore_store_requests_total", "statestore_store_refusals_total"]) point[name] = this.sum(name);
    return point;
  }

  /** Of a figure with labels, all its values together. */
  sum(name) {
    let total = 0;
    for (const [key, value] of Object.entries(this.figures)) if (key.startsWith(`${name}{`)) total += value;
    return total;
  }

  #merge(locks) {
    for (const lock of locks) {
      const known = this.locks.get(lock.number) ?? { number: lock.number, key: lock.key, holdings: new Map() };
      known.waiting = lock.waiting;
      for (const holding of lock.holdings) known.holdings.set(holding.number, holding);
      while (known.holdings.size > KEPT.holdings) known.holdings.delete(known.holdings.keys().next().value);
      this.locks.delete(lock.number);
      this.locks.set(lock.number, known);
    }
    while (this.locks.size > KEPT.locks) this.locks.delete(this.locks.keys().next().value);
  }
}

/** The differences of a total, per second, of points of the history. */
export function rates(history, name) {
  const found = [];
  for (let i = 1; i < history.length; i += 1) {
    const [before, after] = [history[i - 1], history[i]];
    const seconds = (after.at - before.at) / 1000;
    const change = (after[name] ?? 0) - (before[name] ?? 0);
    found.push({ at: after.at, value: seconds > 0 && change >= 0 ? change / seconds : 0 });
  }
  return found;
}

export const values = (history, name, factor = 1) => history.map((point) => ({ at: point.at, value: factor * (point[name] ?? 0) }));
export const latencies = (history, name) => history.map((point) => ({ at: point.at, value: point.latency?.[name] ?? 0 }));
