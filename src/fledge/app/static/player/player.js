// <fledge-player>: watch the episodes of a recording, or of a training that runs.
//
// data-options: { entry } of the server, or { embedded: id of a script element with data }; three: where three.js is;
// live: whether frames are still coming.
import { make, shownTime } from "./build.js";
import { Episodes } from "./episodes.js";
import { Figures } from "./figures.js";
import { Live } from "./live.js";
import { Map2D } from "./map2d.js";
import { Meaning } from "./meaning.js";
import { colour, outcomeColours, words } from "./palette.js";
import { Scene3D } from "./scene3d.js";
import { BEAM_FRAMES, EmbeddedSource, ServerSource } from "./source.js";
import { Transport } from "./transport.js";

const BEFORE_S = 3; // before the end, where "before the crash" leads
const MOST_BESIDE = 64; // films that are shown together

export class FledgePlayer extends HTMLElement {
  connectedCallback() {
    if (this.started) return;
    this.started = true;
    this.options = JSON.parse(this.dataset.options || "{}");
    this.source = this.options.embedded
      ? new EmbeddedSource(JSON.parse(document.getElementById(this.options.embedded).textContent))
      : new ServerSource(this.options.entry);
    this.classList.toggle("fp-saved", Boolean(this.options.embedded));
    this.films = new Map(); // by number
    this.stages = new Map(); // by key
    this.group = [];
    this.t = 0;
    this.playing = false;
    this.speed = 1;
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

  // ---- the page's parts --------------------------------------------------------------------------------------------------

  build() {
    this.stageHost = make("div", { class: "fp-canvas" });
    this.heading = make("div", { class: "fp-title", role: "status" });
    this.message = make("div", { class: "fp-message", role: "alert", hidden: true });
    this.legend = make("div", { class: "fp-legend" });
    this.looks = this.makeLooks();
    this.figureHost = make("div", { class: "fp-figures" });
    this.transport = new Transport(this);
    const side = make("aside", { class: "fp-side" });
    const listHost = make("section", { class: "fp-episodes" }, make("h2", {}, "Episodes"));
    side.append(listHost, make("section", { class: "fp-instruments" }, make("h2", {}, "Instruments"), this.figureHost));
    const stage = make("div", { class: "fp-stage", tabindex: "0", role: "application", "aria-label": "Scene: space plays, arrows step" });
    stage.append(this.stageHost, this.heading, this.legend, this.looks, this.message);
    this.stageElement = stage;
    this.meaning = new Meaning(this);
    const views = make("div", { class: "fp-views" }, stage, this.meaning.element);
    this.append(make("div", { class: "fp-main" }, views, this.transport.element), side);
    this.episodes = new Episodes(listHost, (number) => this.choose(number));
    this.figures = new Figures(this.figureHost, (t) => this.seek(t));
    this.addEventListener("keydown", (event) => this.key(event));
    this.stageHost.addEventListener("click", (event) => {
      const film = this.view?.pick(event.clientX, event.clientY);
      if (film && film !== this.film) this.choose(film.number, true);
    });
  }

  makeLooks() {
    const toggle = (name, label, title) =>
      make("button", { type: "button", class: "fp-look", "data-shows": name, title, "aria-pressed": String(this.shows[name]), onclick: () => this.toggle(name) }, label);
    const look = (name, label, title) =>
      make("button", { type: "button", class: "fp-look", "data-look": name, title, "aria-pressed": String(this.mode === name), onclick: () => this.look(name) }, label);
    return make(
      "div",
      { class: "fp-looks" },
      make("div", { class: "fp-group", role: "group", "aria-label": "Camera" }, look("overview", "Overview", "See everything (O)"), look("follow", "Follow", "Stay with the chosen one (F)"), look("top", "Top", "From above (T)")),
      make(
        "div",
        { class: "fp-group", role: "group", "aria-label": "What is shown" },
        toggle("trails", "Trails", "Where they have been"),
        toggle("beams", "Beams", "What its LiDAR meets"),
        toggle("beside", "Together", "All episodes on the same map at once"),
      ),
    );
  }

  async begin() {
    this.say("Loading…", true);
    this.told = await this.source.list();
    this.tints = outcomeColours(this.told);
    this.episodes.setList(this.told, this.tints);
    if (this.told.damage) this.note = `Damaged: ${this.told.damage}`;
    if (this.options.live) {
      this.live = new Live(this);
      this.shows.beside = true;
      this.drawToggles();
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

  // What the address asks for: an episode and a moment of it; else the first one, from its beginning.
  async followLink() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const wanted = Number(asked.get("e"));
    const known = asked.has("e") && this.told.episodes.some((row) => row.number === wanted);
    await this.choose(known ? wanted : this.told.episodes[0].number);
    this.play(!asked.has("t"));
    if (asked.has("t")) this.seek(Number(asked.get("t")) || 0);
  }

  // ---- choosing ----------------------------------------------------------------------------------------------------------

  // Show an episode; with `keep`, at the moment that is shown now.
  async choose(number, keep = false) {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    this.episodes.choose(number);
    try {
      const film = await this.load(number);
      if (turn !== this.turn || this.ended) return;
      this.film = film;
      await this.makeView(film);
      await this.gather(keep);
      this.say("");
    } catch (error) {
      if (turn === this.turn) this.say(`Episode ${number} cannot be shown: ${error.message}.`);
    }
  }

  async load(number) {
    if (this.films.has(number)) return this.films.get(number);
    const row = this.told.episodes.find((each) => each.number === number);
    const film = await this.source.film(number, !row?.stage || !this.stages.has(row.stage));
    this.films.set(number, film);
    if (film.head.stage_shapes) this.stages.set(film.head.stage ?? `own ${number}`, this.shapesOf(film));
    return film;
  }

  shapesOf(film) {
    const told = film.head.stage_shapes;
    return { bounds: told.bounds, boxes: film.array(told.boxes), cylinders: film.array(told.cylinders), flat: film.head.flat };
  }

  async makeView(film) {
    const flat = film.head.flat || !film.head.actors.length;
    if (!this.view || this.viewFlat !== flat) {
      this.view?.dispose();
      this.view = flat ? new Map2D(this.stageHost) : await this.makeScene();
      this.viewFlat = flat;
      this.classList.toggle("fp-flat", flat);
      this.stageShown = null;
    }
    const key = film.head.stage ?? `own ${film.number}`;
    if (this.stageShown !== key && this.stages.has(key)) {
      this.stageShown = key;
      this.view.setStage(this.stages.get(key));
      this.view.look(this.mode);
    }
  }

  async makeScene() {
    try {
      return new Scene3D(this.stageHost, this.options.three ? await import(this.options.three) : globalThis.fledgeThree);
    } catch (error) {
      console.warn(`no 3-D here (${error.message}): the map from above instead`);
      return new Map2D(this.stageHost);
    }
  }

  // The films that are shown: the chosen one, and with "together" all on its stage.
  async gather(keep) {
    const row = this.told.episodes.find((each) => each.number === this.film.number);
    let films = [this.film];
    if (this.shows.beside && row?.stage) {
      const others = this.told.episodes.filter((each) => each.stage === row.stage && each.number !== row.number && this.fits(each, row));
      const loaded = await Promise.all(others.slice(0, MOST_BESIDE - 1).map((each) => this.load(each.number).catch(() => null)));
      films = [this.film, ...loaded.filter(Boolean)];
    }
    const first = Math.min(...films.map((film) => film.head.clock_s));
    const before = this.film.offset;
    for (const film of films) film.offset = film.head.clock_s - first;
    this.group = films;
    this.length = Math.max(...films.map((film) => film.offset + film.end));
    this.view.setFilms(films, this.film, films.map((film) => colour(this.tints[film.head.outcome] ?? "s0")));
    this.figures.setFilm(this.film);
    this.meaning.setFilm(this.film);
    this.transport.setMarks();
    this.seek(keep ? this.t + this.film.offset - before : this.film.offset);
    if (!keep && this.mode === "follow") this.view.look("follow");
    this.drawTitle();
    this.drawLegend();
    this.drawToggles();
  }

  fits(each, row) {
    return !this.live || Math.abs(each.clock_s - row.clock_s) < 120;
  }

  // ---- moments -----------------------------------------------------------------------------------------------------------

  seek(t) {
    this.t = Math.min(Math.max(0, t), this.length ?? 0);
    this.changed = true;
    if (!this.options.live) this.noteMoment();
  }

  play(on) {
    if (on && this.t >= this.length - 1e-3) this.t = this.film?.offset ?? 0;
    this.playing = on;
    this.changed = true;
    this.transport.drawPlay();
    if (!on) this.noteMoment();
  }

  beforeEnd() {
    if (!this.film) return;
    this.seek(this.film.offset + Math.max(0, this.film.end - BEFORE_S));
    this.look("follow");
    this.play(true);
  }

  step(frames) {
    const film = this.film;
    if (!film) return;
    this.play(false);
    const moment = film.at(this.t - film.offset);
    const frame = Math.min(film.frames - 1, Math.max(0, moment.frame + frames + (frames < 0 && moment.part > 0 ? 1 : 0)));
    this.seek(film.offset + film.time[frame]);
  }

  // The address of this moment, to be shared.
  noteMoment() {
    if (!this.film || this.options.live || this.playing) return;
    clearTimeout(this.noting);
    this.noting = setTimeout(() => history.replaceState(null, "", `#e=${this.film.number}&t=${this.t.toFixed(2)}`), 150);
  }

  frame(now) {
    if (this.ended) return;
    requestAnimationFrame((next) => this.frame(next));
    const passed = Math.min(0.25, (now - (this.now ?? now)) / 1000);
    this.now = now;
    if (!this.film || !this.group.includes(this.film)) return; // it is still loading
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
      this.view.update(this.t, { ...this.shows, close: this.mode === "follow", beamsOf: (film, frame) => this.beamsOf(film, frame) });
      this.figures.update(this.t);
      this.meaning.update(this.t);
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

  beamsOf(film, frame) {
    if (!film.head.beams) return null;
    const part = Math.floor(frame / BEAM_FRAMES);
    const found = film.beamsAt(frame, BEAM_FRAMES);
    for (const wanted of [part, part + 1]) {
      // what is being flown was asked for in part: again, once there is more of it
      const known = film.beamParts.get(wanted);
      const enough = known && (wanted !== part || found || known.head.beams === null);
      if (enough || wanted * BEAM_FRAMES >= film.frames || film.beamsAsked.has(wanted)) continue;
      film.beamsAsked.add(wanted);
      this.source
        .beams(film, wanted)
        .then((answer) => film.beamParts.set(wanted, answer))
        .catch(() => null)
        .finally(() => {
          setTimeout(() => film.beamsAsked.delete(wanted), 250);
          this.changed = true;
        });
    }
    return found;
  }

  // ---- what people do ----------------------------------------------------------------------------------------------------

  look(mode) {
    this.mode = mode;
    this.view?.look(mode);
    this.drawToggles();
    this.changed = true;
  }

  toggle(name) {
    this.shows[name] = !this.shows[name];
    this.changed = true;
    this.drawToggles();
    if (name === "beside" && this.film) this.gather(true).catch((error) => this.say(error.message));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const big = event.shiftKey ? 20 : 1;
    const keys = {
      " ": () => this.play(!this.playing),
      ArrowLeft: () => this.step(-big),
      ArrowRight: () => this.step(big),
      ArrowUp: () => this.choose(this.episodes.neighbour(-1)),
      ArrowDown: () => this.choose(this.episodes.neighbour(1)),
      Home: () => this.seek(0),
      End: () => this.seek(this.length),
      b: () => this.beforeEnd(),
      f: () => this.look("follow"),
      o: () => this.look("overview"),
      t: () => this.look("top"),
      "+": () => this.transport.faster(1),
      "-": () => this.transport.faster(-1),
    };
    const action = keys[event.key];
    if (!action || (event.key === " " && event.target.tagName === "BUTTON")) return;
    event.preventDefault();
    action();
  }

  // ---- words -------------------------------------------------------------------------------------------------------------

  say(sentence, quiet = false) {
    this.message.textContent = sentence;
    this.message.hidden = !sentence;
    this.message.classList.toggle("fp-quiet", quiet);
  }

  // There is nothing to show: only the sentence, and the way back.
  fail(sentence) {
    this.say(sentence);
    this.classList.add("fp-failed");
    if (!this.options.embedded) this.message.append(make("br"), make("a", { href: "/watch" }, "Back to the list"));
  }

  drawTitle() {
    const { head } = this.film;
    const dot = make("span", { class: "fp-dot", style: `background: var(--fl-${this.tints[head.outcome] ?? "s7"})` });
    const beside = this.group.length > 1 ? ` · ${this.group.length} together` : "";
    const texts = [`#${head.number} ${words(head.outcome)}`, make("small", {}, `${head.task}${beside}`)];
    this.heading.replaceChildren(dot, ...texts);
    if (this.note) this.heading.append(make("small", { class: "fl-error" }, this.note));
    this.stageHost.setAttribute("role", "img");
    this.stageHost.setAttribute("aria-label", `Episode ${head.number} of ${head.task}, ${words(head.outcome)}, ${shownTime(this.film.end)}`);
    this.transport.drawBefore();
  }

  drawLegend() {
    const { head } = this.film;
    const entries = [];
    const sign = (name, text) => entries.push(make("span", {}, make("i", { class: `fp-sign fp-sign-${name}` }), text));
    if (this.group.length > 1) {
      const met = new Set(this.group.map((film) => film.head.outcome));
      for (const name of met) entries.push(make("span", {}, make("i", { class: "fp-sign", style: `background: var(--fl-${this.tints[name] ?? "s7"})` }), words(name)));
    }
    if (head.actors.some((actor) => actor.kind === "goal")) sign("goal", "goal");
    if (head.crowd) sign("mover", "moving obstacle");
    if (head.crowd?.seen) sign("seen", "detected");
    if (head.beams && this.shows.beams) sign("beam", "LiDAR hit");
    if (head.actors.some((actor) => actor.energy)) sign("energy", "energy left");
    const grid = this.view.gridStep;
    if (grid) entries.push(make("span", {}, `grid ${grid >= 1000 ? `${grid / 1000} km` : `${grid} m`}`));
    this.legend.replaceChildren(...entries);
  }

  drawToggles() {
    for (const button of this.looks.querySelectorAll("[data-shows]")) button.setAttribute("aria-pressed", String(this.shows[button.dataset.shows]));
    for (const button of this.looks.querySelectorAll("[data-look]")) button.setAttribute("aria-pressed", String(this.mode === button.dataset.look));
    const beams = this.looks.querySelector("[data-shows=beams]");
    beams.hidden = Boolean(this.film) && !this.film.head.beams;
    const beside = this.looks.querySelector("[data-shows=beside]");
    beside.hidden = Boolean(this.film) && !this.film.head.stage;
    this.looks.querySelector("[data-look=top]").hidden = this.viewFlat === true;
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
      if (this.film) this.view.setFilms(this.group, this.film, this.group.map((film) => colour(this.tints[film.head.outcome] ?? "s0")));
      this.changed = true;
    });
    this.themes.observe(document.body, { attributes: true, attributeFilter: ["class"] });
  }
}

if (!customElements.get("fledge-player")) customElements.define("fledge-player", FledgePlayer);
