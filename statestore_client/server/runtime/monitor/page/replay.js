// A recording: any moment of it, or one message after the other.

import { byId, setText } from "./dom.js";
import { time } from "./words.js";

export async function startReplay(model, show) {
  const messages = await (await fetch("recording")).json();
  const [moment, play, speed] = [byId("moment"), byId("play"), byId("speed")];
  let place = -1;
  let timer = null;
  byId("replay").hidden = false;
  moment.max = messages.length - 1;

  /** The state at a message is that of the last greeting before it, and all that came then. */
  const go = (to) => {
    let from = place + 1;
    if (to < place || messages.slice(from, to + 1).some((each) => each.kind === "hello")) {
      from = to;
      while (messages[from].kind !== "hello") from -= 1;
    }
    for (const { kind, message } of messages.slice(from, to + 1)) model.take(kind, structuredClone(message));
    place = to;
    moment.value = to;
    setText(byId("moment-text"), time(model.now));
    moment.setAttribute("aria-valuetext", time(model.now));
    show();
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    setText(play, "Play");
    play.setAttribute("aria-pressed", "false");
  };
  const start = () => {
    if (place >= messages.length - 1) go(0);
    timer = setInterval(() => { if (place < messages.length - 1) go(place + 1); else stop(); }, 1000 / Number(speed.value));
    setText(play, "Pause");
    play.setAttribute("aria-pressed", "true");
  };
  play.addEventListener("click", () => (timer === null ? start() : stop()));
  speed.addEventListener("change", () => { if (timer !== null) { stop(); start(); } });
  moment.addEventListener("input", () => { stop(); go(Number(moment.value)); });
  go(messages.length - 1);
}
