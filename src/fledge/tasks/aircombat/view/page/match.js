// <fledge-match>: a match on the server, live: map, space-time graph, instruments, time, and controls.
import { button, choice, el, setText } from "./dom.js";
import { Gauges } from "./gauges.js";
import { SpaceTimeGraph } from "./graph.js";
import { Hands } from "./hands.js";
import { Link } from "./link.js";
import { TacticalMap } from "./map.js";
import { Store } from "./store.js";

const SIDES = ["blue", "red"];
const SPEEDS = ["0.1", "0.25", "0.5", "1", "2", "4"];
const LAG_TICKS = 1.3; // behind the newest frame, so that there is always one to go to
const ENDINGS = { draw: "Both die", spent: "No missiles left", timeout: "Time is up" };

class DuelMatch extends HTMLElement {
  connectedCallback() {
    if (this.link) return;
    this.options = JSON.parse(this.dataset.options);
    this.state = null;
    this.store = null;
    this.graph = null;
    this.graphs = 0;
    this.shown = 0; // tick with a fraction
    this.scrub = null; // tick that is looked at, if it is not the present
    this.drawn = 0;
    this.build();
    const path = `/play/${encodeURIComponent(this.options.match)}/socket`;
    this.link = new Link(path, {
      up: (on) => this.up(on),
      welcome: (message) => this.welcome(message),
      cut: ({ tick }) => this.cut(tick),
      frames: (buffer) => this.store?.add(buffer),
      state: (message) => this.newState(message),
      graph: (message) => this.newGraph(message),
      gone: ({ note }) => this.gone(note),
    });
    this.before = performance.now();
    requestAnimationFrame((now) => this.tick(now));
  }

  disconnectedCallback() {
    this.link.closed = true;
    this.link.socket.close();
    this.hands?.close();
    this.link = null;
  }

  // ---- the page ----------------------------------------------------------------------------------------------------

  build() {
    this.status = el("div", { class: "fd-status", role: "status" });
    this.mapCanvas = el("canvas", { class: "fd-canvas", role: "img", "aria-label": "Tactical map" });
    this.graphCanvas = el("canvas", { class: "fd-canvas", role: "img", "aria-label": "Space-time graph: time up, distance right" });
    this.map = new TacticalMap(this.mapCanvas);
    this.spaceTime = new SpaceTimeGraph(this.graphCanvas);
    this.gauges = [new Gauges(0), new Gauges(1)];
    this.banner = el("div", { class: "fd-banner", hidden: true });
    this.pads = el("div", { class: "fd-pads", hidden: true, "aria-label": "Controls" });
    this.helpLine = el("p", { class: "fd-help" });
    this.tools = el("div", { class: "fd-tools" },
      choice("View", [["both", "north up"], ["own", "nose up"]], "both", (value) => { this.map.mode = value; this.map.jumped = true; }),
      choice("Rings", [["both", "both rings"], ["enemy", "enemy's rings"], ["own", "own rings"], ["none", "no rings"]], "both", (value) => { this.map.rings = value; }),
      button("+", () => this.map.zoomBy(1.3), { "aria-label": "Zoom in" }),
      button("−", () => this.map.zoomBy(1 / 1.3), { "aria-label": "Zoom out" })); // prettier-ignore
    this.verdict = el("div", { class: "fd-call", role: "status" });
    const mapPanel = el("section", { class: "fd-map fl-panel" }, this.tools, this.mapCanvas, this.banner, this.verdict);
    const graphPanel = el("section", { class: "fd-graph fl-panel" },
      el("h2", { text: "Space-time graph: where missiles fired now can be, and where you can fly" }), this.graphCanvas); // prettier-ignore
    const side = el("div", { class: "fd-side" }, graphPanel, el("div", { class: "fd-both" }, this.gauges[0].element, this.gauges[1].element));
    const foot = el("div", { class: "fd-foot" }, this.status, this.helpLine);
    this.append(this.buildHead(), el("div", { class: "fd-main" }, mapPanel, side), this.buildTime(), foot, this.pads);
  }

  buildHead() {
    this.seats = el("div", { class: "fd-seats" });
    const again = el("div", { class: "fd-again" });
    this.startChoice = el("span");
    this.seed = el("input", { class: "fl-field fd-seed", inputmode: "numeric", "aria-label": "Seed", title: "Seed" });
    again.append(this.startChoice, el("label", { class: "fd-label", text: "seed " }, this.seed),
      button("Restart", () => this.restart(), { title: "Start again with this seed" }),
      button("New", () => { this.seed.value = String(Math.floor(Math.random() * 1e6)); this.restart(); }, { title: "Start again with another seed" }),
      button("Copy link", () => this.copyLink(), { class: "fl-button fd-copy", title: "Copy a link that starts this match again" }),
      el("a", { class: "fl-button", href: `/play/${encodeURIComponent(this.options.match)}/fight.frec`, download: true, text: "Recording" }),
      el("a", { class: "fl-button", href: `/play/${encodeURIComponent(this.options.match)}/fight.acmi`, download: true, text: "ACMI" })); // prettier-ignore
    return el("div", { class: "fd-head" }, this.seats, again);
  }

  buildTime() {
    this.playButton = button("Pause", () => this.pause(), { class: "fl-button fd-play" });
    this.slider = el("input", { type: "range", min: 0, max: 1, value: 0, step: 1, class: "fd-slider", "aria-label": "Time of the fight",
      on: { input: () => this.lookAt(Number(this.slider.value)) } }); // prettier-ignore
    this.clock = el("output", { class: "fd-clock" });
    this.speedChoice = choice("Speed", SPEEDS.map((s) => [s, `× ${s}`]), "1", (value) => this.link.send({ do: "speed", to: Number(value) }));
    this.goOn = button("Fly on from here", () => this.rewind(), { class: "fl-button fd-goon", hidden: true });
    this.toNow = button("Back to now", () => this.lookAt(null), { hidden: true });
    return el("div", { class: "fd-time fl-panel" }, this.playButton,
      button("Step", () => this.link.send({ do: "step" }), { title: "One twentieth of a second" }),
      button("−5 s", () => this.lookAt(Math.max((this.scrub ?? this.store?.last ?? 0) - 5 / (this.store?.tickS ?? 1), this.store?.first ?? 0)), { title: "Look five seconds back" }),
      this.slider, this.clock, this.goOn, this.toNow, this.speedChoice); // prettier-ignore
  }

  // ---- messages from the server ----------------------------------------------------------------------------------

  welcome(message) {
    this.facts = message;
    this.store = new Store(message);
    this.hands?.close();
    this.hands = new Hands(message.controls, (what) => this.link.send(what));
    this.hands.makePads(this.pads);
    const named = (keys) => keys.map((key) => key.replace("Arrow", "").replace("Key", "")).join(" or ");
    const told = message.controls.flatMap((c) => (c.kind === "button" ? [`${named(c.keys_more)}: ${c.label}`] : [`${named(c.keys_more)}: ${c.more}`, `${named(c.keys_less)}: ${c.less}`]));
    setText(this.helpLine, `Keys: ${told.join(" · ")} · P: pause`);
  }

  up(on) {
    this.classList.toggle("fd-down", !on);
    if (!on) setText(this.status, "Connection lost; trying again …");
  }

  gone(note) {
    setText(this.status, note ?? "This match is over and was removed: start another.");
  }

  cut(tick) {
    this.store?.cut(tick);
    this.graph = null;
    this.map.jumped = true;
    this.lookAt(null);
    this.shown = Math.max(tick, 0);
  }

  newGraph(message) {
    this.graph = message.graph;
    this.graphTick = message.tick;
    this.graphs += 1;
  }

  newState(state) {
    const restarted = this.state === null || this.state.seed !== state.seed || this.state.start !== state.start;
    this.state = state;
    this.mine = state.seats.findIndex((seat) => seat.yours);
    this.me = this.mine < 0 ? (this.me ?? 0) : this.mine;
    if (this.hands) this.hands.active = this.mine >= 0;
    this.pads.hidden = this.mine < 0;
    this.classList.toggle("fd-flying", this.mine >= 0);
    if (restarted) {
      this.seed.value = String(state.seed);
      this.startSelect = choice("Start", this.facts.starts, state.start ?? "default", () => this.restart(), "Initial positions");
      this.startChoice.replaceChildren(this.startSelect);
    }
    setText(this.playButton, state.paused ? "Resume" : "Pause");
    this.speedChoice.value = SPEEDS.find((s) => Number(s) === state.speed) ?? "1";
    this.showSeats(state);
    this.showStatus(state);
  }

  showSeats(state) {
    const rows = state.seats.map((seat, side) => {
      const row = el("div", { class: `fd-seat fd-${SIDES[side]}` }, el("span", { class: "fd-dot", "aria-hidden": "true" }), el("b", { text: SIDES[side] }));
      const names = [...this.facts.names];
      const shown = seat.person ? (seat.yours ? "you" : seat.here ? "another person" : "an empty seat") : seat.name;
      if (!names.includes(shown)) names.unshift(shown);
      row.append(choice(`Pilot of ${SIDES[side]}`, names, shown, (name) => name !== shown && this.link.send({ do: "give", seat: side, to: name })));
      if (!seat.yours && (!seat.person || !seat.here)) row.append(button("Take over", () => this.takeOver(side), { title: `Fly ${SIDES[side]} yourself from here on` }));
      if (seat.yours) row.append(button("Invite", () => this.link.send({ do: "give", seat: 1 - side, to: "you" }), { title: "Leave the other seat to a person who opens this page" }));
      return row;
    });
    this.seats.replaceChildren(...rows);
  }

  showStatus(state) {
    let text = state.note;
    if (!text && state.over) text = `The match ended after ${(state.over.tick * this.store.tickS).toFixed(0)} s.`;
    if (!text && state.waiting.length) text = `Waiting for ${state.waiting.map((side) => SIDES[side]).join(" and ")}: send this page's address to someone, or choose a pilot.`;
    if (!text) text = state.paused ? "Paused." : this.mine >= 0 ? `You fly ${SIDES[this.mine]}.` : "You are watching.";
    setText(this.status, text);
    this.banner.hidden = !state.over;
    if (!state.over) return;
    const outcome = state.over.outcomes;
    const winner = outcome.indexOf("win");
    const words = winner >= 0 ? `${["Blue", "Red"][winner]} wins` : (ENDINGS[outcome[0]] ?? outcome[0]);
    const personal = this.mine >= 0 && winner >= 0 ? (winner === this.mine ? " You won." : " You were shot down.") : "";
    this.banner.replaceChildren(el("b", { text: `${words}.${personal}` }),
      el("span", { text: "Go back to any moment below, and fly on from there." }),
      button("Fight again", () => this.restart())); // prettier-ignore
  }

  // ---- input --------------------------------------------------------------------------------------------------------

  // Users who fly control the match; if there are none, all viewers do.
  get decides() {
    return this.mine >= 0 || !this.state.seats.some((seat) => seat.person && seat.here);
  }

  pause() {
    if (this.scrub !== null) this.lookAt(null);
    this.link.send({ do: "pause", on: !this.state.paused });
  }

  lookAt(tick) {
    if (tick !== null && this.store) tick = Math.round(Math.min(Math.max(tick, this.store.first), this.store.last));
    const live = tick === null || (this.store && tick >= this.store.last && this.state?.paused && this.scrub === null);
    if (!live && !this.state.paused && this.state.over === null && this.decides) this.link.send({ do: "pause", on: true });
    this.scrub = live ? null : tick;
    this.link?.send({ do: "look", tick: this.scrub });
    this.goOn.hidden = this.toNow.hidden = this.scrub === null;
    this.map.jumped = true;
  }

  rewind() {
    if (this.scrub !== null) this.link.send({ do: "rewind", tick: this.scrub, paused: false });
  }

  // Continue from the time shown.
  takeOver(side) {
    if (this.scrub !== null && this.decides) this.link.send({ do: "rewind", tick: this.scrub, paused: true });
    this.link.send({ do: "take", seat: side });
    this.link.send({ do: "pause", on: false });
  }

  restart() {
    const seed = Number(this.seed.value);
    if (!Number.isSafeInteger(seed) || seed < 0) return setText(this.status, "The seed must be a whole number, 0 or more.");
    this.link.send({ do: "restart", seed, start: this.startSelect.value });
  }

  shareLink() {
    const seats = this.state.seats.map((seat) => (seat.person ? "you" : seat.name));
    const query = new URLSearchParams({ blue: seats[0], red: seats[1], start: this.startSelect.value, seed: String(this.state.seed) });
    return `${location.origin}/play?${query}`;
  }

  async copyLink() {
    const link = this.shareLink();
    try {
      await navigator.clipboard.writeText(link);
      setText(this.status, `Copied: ${link}`);
    } catch {
      setText(this.status, link);
    }
  }

  // ---- drawing ------------------ -----------------------------------------------------------------------------------

  tick(now) {
    if (!this.isConnected) return;
    requestAnimationFrame((next) => this.tick(next));
    const seconds = Math.min((now - this.before) / 1000, 0.2);
    this.before = now;
    if (this.store === null || this.state === null || this.store.rows.length === 0) return;
    if (this.hands && this.mine >= 0) this.hands.move(seconds, now);
    this.runClock(seconds);
    const moment = this.store.moment(this.shown);
    const ending = this.state.over && this.shown >= this.store.last - 1 ? this.state.over.outcomes : null;
    const names = this.state.seats.map((seat) => (seat.yours ? "you" : seat.person ? "person" : seat.name.split("/").pop()));
    const begun = performance.now();
    this.map.draw(this.store, moment, { graph: this.graph, me: this.me, names, ending });
    this.drawn += 1;
    if (this.drawn % 4 === 0) this.showSlow(moment, names);
    if (this.graphs !== this.graphsDrawn || now - this.graphDrawn > 250) this.drawGraph(now);
    this.cost = 0.95 * (this.cost ?? 0) + 0.05 * (performance.now() - begun); // ms, for benchmarks
  }

  drawGraph(now) {
    this.graphsDrawn = this.graphs;
    this.graphDrawn = now;
    this.spaceTime.draw(this.graph, { me: this.me, names: this.mine < 0 ? SIDES : ["you", "enemy"] });
  }

  // The time shown follows the newest frame with a short, constant delay.
  runClock(seconds) {
    const { last, first, tickS } = this.store;
    if (this.scrub !== null) this.shown = this.scrub;
    else if (this.state.paused || this.state.over || this.state.waiting.length) this.shown += 0.5 * (last - this.shown);
    else {
      const target = last - LAG_TICKS;
      this.shown += (seconds * this.state.speed) / tickS;
      this.shown += 0.08 * (target - this.shown);
      if (Math.abs(target - this.shown) > 12) this.shown = target;
    }
    this.shown = Math.min(Math.max(this.shown, first), last);
  }

  // Keep aircraft and labels clear of the panels above the map.
  keepMapFree() {
    const map = this.mapCanvas.getBoundingClientRect();
    const boxOf = (above) => {
      const box = above.getBoundingClientRect();
      return [box.left - map.left, box.top - map.top, box.right - map.left, box.bottom - map.top];
    };
    this.map.covered = [this.tools, this.verdict, this.banner].filter((above) => !above.hidden).map(boxOf);
    this.map.head = boxOf(this.tools)[3];
    this.map.foot = this.verdict.hidden ? 0 : map.height - boxOf(this.verdict)[1] + 16; // a label stands below an aircraft
  }

  showSlow(moment, names) {
    this.gauges.forEach((gauge, side) => {
      gauge.show(moment, this.graph, SIDES[side], names[side]);
      gauge.element.style.order = side === this.me ? 0 : 1;
    });
    for (const pad of this.pads.children) pad.show?.();
    const call = this.mine >= 0 && this.graph !== null && !this.state.over ? this.graph.sides[this.mine].verdict : null;
    this.verdict.hidden = call === null;
    if (call !== null) {
      setText(this.verdict, call.text);
      this.verdict.dataset.level = call.level;
    }
    this.keepMapFree();
    this.slider.min = String(this.store.first);
    this.slider.max = String(Math.max(this.store.last, this.store.first + 1));
    if (this.scrub === null) this.slider.value = String(this.store.last);
    const time = (tick) => (tick * this.store.tickS).toFixed(1);
    setText(this.clock, this.scrub === null ? `${time(this.shown)} s` : `${time(this.scrub)} of ${time(this.store.last)} s`);
  }
}

window.addEventListener("keydown", (event) => {
  if (event.code !== "KeyP" || event.repeat || event.ctrlKey || event.metaKey) return;
  if (event.target instanceof Element && event.target.closest("input, select, textarea")) return;
  document.querySelector("fledge-match")?.pause();
});
customElements.define("fledge-match", DuelMatch);
