// <fledge-player>: shows the episodes of a recording, or of a running training.
//
// data-options: { entry } of the server, or { embedded: id of a script element with data }; three: address of three.js;
// live: whether frames are still coming.
import { beamsOf } from "./beams.js";
import { make } from "./build.js";
import { Captions } from "./captions.js";
import { Episodes } from "./episodes.js";
import { Figures } from "./figures.js";
import { handleKey } from "./keys.js";
import { Live } from "./live.js";
import { Looks } from "./looks.js";
import { Map2D } from "./map2d.js";
import { colour, outcomeColours } from "./palette.js";
import { Scene3D } from "./scene3d.js";
import { EmbeddedSource, ServerSource } from "./source.js";
import { TaskGraph } from "./task_graph.js";
import { Transport } from "./transport.js";

const BEFORE_S = 3; // the button "Before the end" jumps this far before the end
const MAX_TOGETHER = 64; // episodes that are shown together

export class FledgePlayer extends HTMLElement {
  connectedCallback() {
    if (this.started) return;
    this.started = true;
    this.options = JSON.parse(this.dataset.options || "{}");
    this.source = this.options.embedded
      ? new EmbeddedSource(JSON.parse(document.getElementById(this.options.embedded).textContent))
      : new ServerSource(this.options.entry);
    this.classList.toggle("fp-saved", Boolean(this.options.embedded));
    this.payloads = new Map(); // by number
    this.stages = new Map(); // by key
    this.group = [];
    this.t = 0;
    [this.playing, this.speed] = [false, 1];
    this.shows = { beams: true, trails: true, crowd: true, beside: false };
    this.mode = "overview";
    this.build();
    this.watchPage();
    this.begin().catch((error) => this.fail(`This cannot be shown: ${error.message}.`));
  }

  disconnectedCallback() {
    this.ended = true;
    this.live?.stop();
    this.view?.dispose();
    this.observer?.disconnect();
    this.themes?.disconnect();
  }

  // ---- parts of the page --------------------------------------------------------------------------------------------------

  build() {
    this.stageHost = make("div", { class: "fp-canvas" });
    this.message = make("div", { class: "fp-message", role: "alert", hidden: true });
    this.captions = new Captions(this);
    this.looks = new Looks(this);
    this.figureHost = make("div", { class: "fp-figures" });
    this.transport = new Transport(this);
    const side = make("aside", { class: "fp-side" });
    const listHost = make("section", { class: "fp-episodes" }, make("h2", {}, "Episodes"));
    side.append(listHost, make("section", { class: "fp-instruments" }, make("h2", {}, "Instruments"), this.figureHost));
    const stage = make("div", { class: "fp-stage", tabindex: "0", role: "application", "aria-label": "Scene: space plays, arrows step" });
    stage.append(this.stageHost, this.captions.title, this.captions.legend, this.looks.element, this.message);
    this.stageElement = stage;
    this.taskGraph = new TaskGraph(this);
    const views = make("div", { class: "fp-views" }, stage, this.taskGraph.element);
    this.append(make("div", { class: "fp-main" }, views, this.transport.element), side);
    this.episodes = new Episodes(listHost, (number) => this.choose(number));
    this.figures = new Figures(this.figureHost, (t) => this.seek(t));
    this.addEventListener("keydown", (event) => handleKey(this, event));
    this.stageHost.addEventListener("click", (event) => {
      const payload = this.view?.pick(event.clientX, event.clientY);
      if (payload && payload !== this.payload) this.choose(payload.number, true);
    });
  }

  async begin() {
    this.say("Loading…", true);
    this.told = await this.source.list();
    await this.taskGraph.load(this.told.graph_script);
    this.tints = outcomeColours(this.told);
    this.episodes.setList(this.told, this.tints);
    this.note = this.told.damage ? `Damaged: ${this.told.damage}` : "";
    if (this.options.live) {
      this.live = new Live(this);
      this.shows.beside = true;
      this.looks.draw();
      this.live.start();
    } else if (!this.told.episodes.length) {
      this.fail(this.told.closed ? "This recording holds no episodes." : "Nothing has been recorded yet.");
      return;
    } else {
      await this.followLink();
      addEventListener("hashchange", () => this.followLink());
    }
    requestAnimationFrame((now) => this.frame(now));
  }

  // Show the episode and time in the address; by default the first episode from its start.
  async followLink() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const wanted = Number(asked.get("e"));
    const known = asked.has("e") && this.told.episodes.some((row) => row.number === wanted);
    await this.choose(known ? wanted : this.told.episodes[0].number);
    this.play(!asked.has("t"));
    if (asked.has("t")) this.seek(Number(asked.get("t")) || 0);
  }

  // ---- selection ----------------------------------------------------------------------------------------------------------

  // Show an episode; with `keep`, from the current time on.
  async choose(number, keep = false) {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    this.episodes.choose(number);
    try {
      const payload = await this.load(number);
      if (turn !== this.turn || this.ended) return;
      this.payload = payload;
      await this.makeView(payload);
      await this.gather(keep);
      this.say("");
    } catch (error) {
      if (turn === this.turn) this.say(`Episode ${number} cannot be shown: ${error.message}.`);
    }
  }

  async load(number) {
    if (this.payloads.has(number)) return this.payloads.get(number);
    const row = this.told.episodes.find((each) => each.number === number);
    const payload = await this.source.episode(number, !row?.stage || !this.stages.has(row.stage));
    this.payloads.set(number, payload);
    if (payload.head.stage_shapes) this.stages.set(payload.head.stage ?? `own ${number}`, this.shapesOf(payload));
    return payload;
  }

  shapesOf(payload) {
    const told = payload.head.stage_shapes;
    return { bounds: told.bounds, boxes: payload.array(told.boxes), cylinders: payload.array(told.cylinders), flat: payload.head.flat };
  }

  async makeView(payload) {
    const flat = payload.head.flat || !payload.head.actors.length;
    if (!this.view || this.viewFlat !== flat) {
      this.view?.dispose();
      this.view = flat ? new Map2D(this.stageHost) : await this.makeScene();
      this.viewFlat = flat;
      this.classList.toggle("fp-flat", flat);
      this.stageShown = null;
    }
    const key = payload.head.stage ?? `own ${payload.number}`;
    if (this.stageShown !== key && this.stages.has(key)) {
      this.stageShown = key;
      this.view.setStage(this.stages.get(key));
      this.view.look(this.mode);
    }
  }

  async makeScene() {
    try {
      if (this.contextLost) throw new Error("the graphics context was lost");
      const scene = new Scene3D(this.stageHost, this.options.three ? await import(this.options.three) : globalThis.fledgeThree);
      scene.canvas.addEventListener("webglcontextlost", () => this.leaveScene(scene));
      return scene;
    } catch (error) {
      console.warn(`no 3-D here (${error.message}): the map from above instead`);
      this.stageHost.replaceChildren(); // an unfinished scene
      this.note ||= "This browser has no WebGL: seen from above";
      return new Map2D(this.stageHost);
    }
  }

  // Show the map instead of a 3-D scene that can no longer draw.
  leaveScene(scene) {
    if (scene !== this.view || this.ended) return;
    this.contextLost = true;
    scene.dispose();
    this.view = null;
    this.choose(this.payload.number, true);
  }

  // Load the episodes to show: the selected one, and with "together" all on the same map.
  async gather(keep) {
    const row = this.told.episodes.find((each) => each.number === this.payload.number);
    let payloads = [this.payload];
    if (this.shows.beside && row?.stage) {
      const others = this.told.episodes.filter((each) => each.stage === row.stage && each.number !== row.number && this.fits(each, row));
      const loaded = await Promise.all(others.slice(0, MAX_TOGETHER - 1).map((each) => this.load(each.number).catch(() => null)));
      payloads = [this.payload, ...loaded.filter(Boolean)];
    }
    const first = Math.min(...payloads.map((payload) => payload.head.clock_s));
    const before = this.payload.offset;
    for (const payload of payloads) payload.offset = payload.head.clock_s - first;
    this.group = payloads;
    this.length = Math.max(...payloads.map((payload) => payload.offset + payload.end));
    this.view.setPayloads(payloads, this.payload, payloads.map((payload) => colour(this.tints[payload.head.outcome] ?? "s0")));
    this.figures.setPayload(this.payload);
    this.taskGraph.setPayload(this.payload);
    this.transport.setMarks();
    this.seek(keep ? this.t + this.payload.offset - before : this.payload.offset);
    if (!keep && this.mode === "follow") this.view.look("follow");
    this.captions.draw();
    this.looks.draw();
  }

  fits(each, row) {
    return !this.live || Math.abs(each.clock_s - row.clock_s) < 120;
  }

  // ---- time -----------------------------------------------------------------------------------------------------------

  seek(t) {
    this.t = Math.min(Math.max(0, t), this.length ?? 0);
    this.changed = true;
    if (!this.options.live) this.noteMoment();
  }

  play(on) {
    if (on && this.t >= this.length - 1e-3) this.t = this.payload?.offset ?? 0;
    this.playing = on;
    this.changed = true;
    this.transport.drawPlay();
    if (!on) this.noteMoment();
  }

  beforeEnd() {
    if (!this.payload) return;
    this.seek(this.payload.offset + Math.max(0, this.payload.end - BEFORE_S));
    this.look("follow");
    this.play(true);
  }

  step(frames) {
    const payload = this.payload;
    if (!payload) return;
    this.play(false);
    const moment = payload.at(this.t - payload.offset);
    const frame = Math.min(payload.frames - 1, Math.max(0, moment.frame + frames + (frames < 0 && moment.part > 0 ? 1 : 0)));
    this.seek(payload.offset + payload.time[frame]);
  }

  // Put the episode and time into the address, so that the link can be shared.
  noteMoment() {
    if (!this.payload || this.options.live || this.playing) return;
    clearTimeout(this.noting);
    this.noting = setTimeout(() => history.replaceState(null, "", `#e=${this.payload.number}&t=${this.t.toFixed(2)}`), 150);
  }

  frame(now) {
    if (this.ended) return;
    requestAnimationFrame((next) => this.frame(next));
    const passed = Math.min(0.25, (now - (this.now ?? now)) / 1000);
    this.now = now;
    if (!this.view || !this.payload || !this.group.includes(this.payload)) return; // it is still loading
    if (this.live) this.live.advance(passed);
    else if (this.playing) {
      this.t += passed * this.speed;
      this.changed = true;
      if (this.t >= this.length) {
        this.t = this.length;
        this.play(false);
      }
    }
    if (this.changed) {
      this.changed = false;
      this.view.update(this.t, { ...this.shows, close: this.mode === "follow", beamsOf: (payload, frame) => beamsOf(this, payload, frame) });
      this.figures.update(this.t);
      this.taskGraph.update(this.t);
      this.transport.draw();
    }
    if (this.view.render()) this.count(now);
  }

  count(now) {
    this.drawn = (this.drawn ?? 0) + 1;
    if (now - (this.counted ?? 0) >= 1000) {
      this.dataset.fps = this.counted ? ((this.drawn * 1000) / (now - this.counted)).toFixed(1) : "";
      [this.drawn, this.counted] = [0, now];
    }
  }

  // ---- input --------------------------------------------------------------------------------------------------------------

  look(mode) {
    this.mode = mode;
    this.view?.look(mode);
    this.looks.draw();
    this.changed = true;
  }

  toggle(name) {
    this.shows[name] = !this.shows[name];
    this.changed = true;
    this.looks.draw();
    if (name === "beside" && this.payload) this.gather(true).catch((error) => this.say(error.message));
  }

  // ---- messages -------------------------------------------------------------------------------------------------------------

  say(sentence, quiet = false) {
    this.message.textContent = sentence;
    this.message.hidden = !sentence;
    this.message.classList.toggle("fp-quiet", quiet);
  }

  // Show only a message and a link to the list.
  fail(sentence) {
    this.say(sentence);
    this.classList.add("fp-failed");
    if (!this.options.embedded) this.message.append(make("br"), make("a", { href: "/watch" }, "Back to the list"));
  }

  watchPage() {
    this.observer = new ResizeObserver(() => {
      this.view?.resize();
      this.changed = true;
    });
    this.observer.observe(this.stageHost);
    this.themes = new MutationObserver(() => {
      if (!this.view) return;
      this.view.readTheme();
      if (this.payload) this.view.setPayloads(this.group, this.payload, this.group.map((payload) => colour(this.tints[payload.head.outcome] ?? "s0")));
      this.changed = true;
    });
    this.themes.observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }
}

if (!customElements.get("fledge-player")) customElements.define("fledge-player", FledgePlayer);
