// Timeline and buttons: play, step, speed, and the jump to the moment before the crash.
import { make, shownTime } from "./build.js";
import { words } from "./palette.js";

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 8, 16];

export class Transport {
  constructor(player) {
    this.player = player;
    const button = (label, title, act, extra = {}) => make("button", { type: "button", class: "fp-button", title, "aria-label": title, onclick: act, ...extra }, label);
    this.playButton = button("▶", "Play (space)", () => player.play(!player.playing), { "data-act": "play" });
    this.bar = make("input", { type: "range", min: "0", max: "1", step: "any", value: "0", class: "fp-bar", "aria-label": "Time" });
    this.bar.addEventListener("input", () => player.seek(Number(this.bar.value)));
    this.marks = make("div", { class: "fp-marks", "aria-hidden": "true" });
    this.clock = make("span", { class: "fp-clock" }, "0:00.0 / 0:00.0");
    this.speed = make("select", { class: "fp-speed", "aria-label": "Speed" }, ...SPEEDS.map((value) => make("option", { value, selected: value === 1 }, `×${value}`)));
    this.speed.addEventListener("change", () => (player.speed = Number(this.speed.value)));
    this.before = button("Before the end", "To the moment before the end (B)", () => player.beforeEnd(), { "data-act": "before" });
    this.before.classList.add("fp-wide");
    this.stepBack = button("◀|", "One frame back (←)", () => player.step(-1), { "data-act": "back" });
    this.stepOn = button("|▶", "One frame on (→)", () => player.step(1), { "data-act": "on" });
    this.element = make(
      "div",
      { class: "fp-transport" },
      make("div", { class: "fp-track" }, this.marks, this.bar),
      make("div", { class: "fp-buttons" }, this.stepBack, this.playButton, this.stepOn, this.clock, this.speed, this.before),
    );
  }

  faster(step) {
    const at = Math.min(SPEEDS.length - 1, Math.max(0, SPEEDS.indexOf(this.player.speed) + step));
    this.player.speed = SPEEDS[at];
    this.speed.value = String(SPEEDS[at]);
  }

  // Marks on the timeline: launches, and the ends of the episodes that are shown.
  setMarks() {
    const { group, payload, length, tints } = this.player;
    this.bar.max = String(Math.max(length, 1e-3));
    const made = [];
    const put = (t, tint, text, kind) => {
      const mark = make("span", { class: `fp-mark fp-mark-${kind}`, style: `left: ${(100 * t) / Math.max(length, 1e-3)}%; background: var(--fl-${tint})` });
      mark.title = text;
      made.push(mark);
    };
    for (const each of group.slice(0, 64)) {
      if (!each.head.running) put(each.offset + each.end, tints[each.head.outcome] ?? "s7", `#${each.number} ${words(each.head.outcome)}`, each === payload ? "end" : "other");
    }
    for (const mark of payload.head.marks) put(payload.offset + mark.t, mark.colour === "red" ? "red" : "blue", mark.text, "event");
    this.marks.replaceChildren(...made);
  }

  drawPlay() {
    const { playing } = this.player;
    this.playButton.textContent = playing ? "❚❚" : "▶";
    this.playButton.setAttribute("aria-label", playing ? "Pause (space)" : "Play (space)");
    this.playButton.title = playing ? "Pause (space)" : "Play (space)";
  }

  drawBefore() {
    const { head } = this.player.payload;
    const crashed = head.actors[0]?.destroyed && head.actors[0].kind === "drone";
    this.before.textContent = crashed ? "Before the crash" : "Before the end";
    this.before.hidden = head.running;
  }

  draw() {
    const { t, length } = this.player;
    if (document.activeElement !== this.bar || this.player.playing) this.bar.value = String(t);
    this.bar.max = String(Math.max(length, 1e-3));
    const text = this.player.live ? this.player.live.clockText() : `${shownTime(t)} / ${shownTime(length)}`;
    if (this.clock.textContent !== text) {
      this.clock.textContent = text;
      this.bar.setAttribute("aria-valuetext", `${t.toFixed(1)} seconds`);
    }
  }
}
