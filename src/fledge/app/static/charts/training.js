// <fledge-training>, the training page: the list of runs, their curves, settings and checkpoints. In the app it polls the
// server; in a saved page it reads the data inside the page.
import { Chart } from "./chart.js";
import { make, shortNumber } from "./format.js";
import { Hub } from "./hub.js";
import { swatch } from "./lines.js";
import { LiveSource, SavedSource } from "./source.js";
import { smooth } from "./scale.js";
import { compared, headlineOf, sectionsOf, tilesOf } from "./summary.js";
import { showCheckpoints, showSettings } from "./tables.js";

const AXES = {
  frames: { label: "decisions", button: "Decisions", format: (value) => shortNumber(value, 4) },
  step: { label: "iterations", button: "Iterations", format: (value) => shortNumber(Math.round(value), 4) },
  seconds: { label: "of training", button: "Time", format: (value) => clock(value) },
};
const TABS = { curves: "Curves", settings: "Settings", checkpoints: "Checkpoints" };
const COLORS = 8;
const DASHES = [[], [6, 4], [2, 3], [9, 3, 2, 3]];
const FIRST = 4; // runs that a saved page shows at first
const LISTED = 300; // runs
const POLL_MS = 2000;

function clock(seconds) {
  if (seconds >= 36000) return `${shortNumber(seconds / 3600, 3)} h`;
  if (seconds >= 600) return `${shortNumber(seconds / 60, 3)} min`;
  return `${shortNumber(seconds, 3)} s`;
}

class TrainingPage extends HTMLElement {
  connectedCallback() {
    if (this.hub) return; // the element was only moved within the page
    const saved = document.getElementById("fledge-data");
    this.source = saved ? new SavedSource(JSON.parse(saved.textContent)) : new LiveSource();
    this.hub = new Hub();
    this.runs = [];
    this.found = new Map(); // by id, what curves() gave
    this.charts = new Map(); // by section and title
    this.readAddress();
    this.build();
    this.turn();
  }

  disconnectedCallback() {
    clearTimeout(this.timer);
  }

  // ---- the selection is kept in the address, so that a link shows the same ----------------------------------------------

  readAddress() {
    const asked = new URLSearchParams(location.search);
    this.chosen = asked.get("runs") ? asked.get("runs").split(",") : null;
    this.axis = asked.get("x") in AXES ? asked.get("x") : "frames";
    this.tab = asked.get("tab") in TABS ? asked.get("tab") : "curves";
    this.weight = Math.min(Math.max(Number(asked.get("smooth") ?? 0.6) || 0, 0), 0.99);
  }

  writeAddress() {
    if (!this.source.live) return;
    const told = new URLSearchParams({ runs: this.selected().join(","), x: this.axis, smooth: this.weight, tab: this.tab });
    history.replaceState(history.state, "", `${location.pathname}?${told}`);
  }

  selected() {
    const known = new Set(this.runs.map((run) => run.id));
    const chosen = (this.chosen ?? this.runs.slice(0, this.source.live ? 1 : FIRST).map((run) => run.id)).filter((id) =>
      known.has(id),
    );
    return chosen.slice(0, COLORS);
  }

  // ---- layout ----------------------------------------------------------------------------------------------------------

  build() {
    this.trouble = make("div", "ft-trouble");
    this.trouble.setAttribute("role", "status");
    this.trouble.hidden = true;
    const bar = make("div", "ft-bar");
    bar.append(
      this.choice("Show", TABS, "tab", () => this.fill()),
      this.choice("Axis", mapValues(AXES, (axis) => axis.button), "axis", () => this.draw()),
      this.slider(),
      this.saveLink(),
    );
    this.list = make("aside", "ft-runs");
    this.list.setAttribute("aria-label", "Runs");
    this.tiles = make("div", "ft-tiles");
    this.content = make("div", "ft-content");
    const right = make("div", "ft-right");
    right.append(this.tiles, this.content);
    const layout = make("div", "ft-layout");
    layout.append(this.list, right);
    this.replaceChildren(this.trouble, bar, layout);
  }

  choice(label, options, name, changed) {
    const group = make("div", "ft-choice");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", label);
    group.dataset.name = name;
    for (const [value, text] of Object.entries(options)) {
      const button = make("button", "fl-button", text);
      button.type = "button";
      button.dataset.value = value;
      button.setAttribute("aria-pressed", String(this[name] === value));
      button.addEventListener("click", () => {
        this[name] = value;
        for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
        this.hub.range = null;
        this.writeAddress();
        changed();
      });
      group.append(button);
    }
    return group;
  }

  slider() {
    const label = make("label", "ft-smooth", "Smoothing ");
    const input = make("input");
    Object.assign(input, { type: "range", min: "0", max: "0.99", step: "0.01", value: String(this.weight) });
    const shown = make("output", "", this.weight.toFixed(2));
    input.addEventListener("input", () => {
      this.weight = Number(input.value);
      shown.textContent = this.weight.toFixed(2);
      this.writeAddress();
      this.draw();
    });
    label.append(input, shown);
    return label;
  }

  saveLink() {
    this.save = make("a", "fl-button ft-save", "Save page");
    this.save.hidden = !this.source.live;
    this.save.title = "Download these runs as one HTML file";
    return this.save;
  }

  // ---- polling ---------------------------------------------------------------------------------------------------------

  async turn() {
    clearTimeout(this.timer);
    let wait = POLL_MS;
    try {
      if (!document.hidden) await this.refresh();
      this.say("");
      if (!this.runs.some((run) => run.state === "running" || run.state === "new")) wait *= 3;
    } catch (error) {
      this.say(`The server does not answer (${error.message}); trying again.`);
    }
    if (this.source.live && this.isConnected) this.timer = setTimeout(() => this.turn(), wait);
  }

  say(text) {
    this.trouble.textContent = text;
    this.trouble.hidden = text === "";
  }

  async refresh() {
    this.runs = inOrder(this.runs, await this.source.runs());
    const ids = this.selected();
    if (this.chosen === null && ids.length) this.chosen = ids; // keep what was shown first when newer runs appear
    const found = await Promise.all(ids.map((id) => this.source.curves(id).catch((error) => ({ id, error }))));
    if (ids.length && found.every((each) => each.error)) throw found[0].error;
    this.found = new Map(found.filter((each) => !each.error).map((each) => [each.run.id, each]));
    this.source.forget?.(ids);
    this.fillList();
    this.fillTiles();
    if (this.tab === "curves" || this.content.childElementCount === 0) await this.fill();
    this.dataset.rows = [...this.found.values()].map((each) => each.curves.rows).join(","); // for tests
  }

  toggle(id) {
    const ids = this.selected();
    this.chosen = ids.includes(id) ? ids.filter((other) => other !== id) : [...ids, id].slice(-COLORS);
    this.writeAddress();
    this.content.replaceChildren();
    this.turn();
  }

  colorOf(id) {
    return `--fl-s${this.selected().indexOf(id) % COLORS}`;
  }

  fillList() {
    const chosen = this.selected();
    const heading = make("h2", "", this.runs.length === 1 ? "1 run" : `${this.runs.length} runs`);
    const rows = this.runs.slice(0, LISTED).map((run) => {
      const label = make("label", "ft-run");
      const box = make("input");
      box.type = "checkbox";
      box.checked = chosen.includes(run.id);
      box.addEventListener("change", () => this.toggle(run.id));
      const mark = box.checked ? swatch({ color: this.colorOf(run.id) }) : make("span", "fc-swatch ft-none");
      const name = make("span", "ft-name", run.name);
      name.title = run.name;
      const about = make("span", "ft-about", [run.task, run.algo].filter(Boolean).join(" · "));
      const state = make("span", `ft-state ft-${run.state}`, run.state);
      label.append(box, mark, name, state, about, make("span", "ft-value", headlineOf(run)));
      return label;
    });
    if (rows.length === 0) rows.push(make("p", "fl-note", "No runs yet. Start one with `fledge train`; it appears here."));
    const left = this.runs.length - LISTED;
    if (left > 0) rows.push(make("p", "fl-note", `${left} older runs are not listed: give \`fledge watch\` their folder.`));
    const focused = this.list.contains(document.activeElement)
      ? [...this.list.querySelectorAll("input")].indexOf(document.activeElement)
      : -1;
    this.list.replaceChildren(heading, ...rows);
    this.list.querySelectorAll("input")[focused]?.focus();
    this.save.hidden = !this.source.live || chosen.length === 0;
    this.save.href = `/api/save?ids=${chosen.map(encodeURIComponent).join(",")}`;
  }

  fillTiles() {
    const runs = this.selected().map((id) => this.found.get(id)?.run).filter(Boolean);
    const shown = runs.length > 1 ? [compared(runs, (id) => this.colorOf(id))] : runs.map(tilesOf);
    this.tiles.replaceChildren(...shown, ...runs.filter((run) => run.trouble).map((run) => make("p", "fl-note", run.trouble)));
    const reading = [...this.found.values()].find((each) => each.curves.read < 1);
    if (reading) this.say(`Reading ${reading.run.name}: ${Math.floor(100 * reading.curves.read)} %`);
  }

  async fill() {
    const ids = this.selected();
    for (const name of ["ft-smooth", "ft-choice[data-name=axis]"]) {
      this.querySelector(`.${name}`).hidden = this.tab !== "curves";
    }
    this.tiles.hidden = this.tab !== "curves";
    if (this.tab === "curves") return this.draw();
    for (const chart of this.charts.values()) chart.remove();
    this.charts.clear();
    const names = ids.map((id) => this.found.get(id)?.run.name ?? "");
    if (this.tab === "settings") showSettings(this.content, await this.source.settings(ids), names);
    else await showCheckpoints(this.content, this.source, ids, names);
  }

  // ---- curves -------------------------------------------------------------------------------------------------------------

  draw() {
    if (this.tab !== "curves") return;
    const found = this.selected().map((id) => this.found.get(id)).filter(Boolean);
    this.hub.axis = AXES[this.axis];
    const ends = found.flatMap((each) => each.curves.x[this.axis].slice(-1));
    this.hub.extent = [0, Math.max(...ends, 0) || 1];
    const wanted = sectionsOf(found);
    const kept = new Set();
    const places = wanted.map((section) => {
      const grid = make("div", section.title ? "ft-grid" : "ft-grid ft-first");
      for (const spec of section.charts) {
        const key = `${section.title}/${spec.title}`;
        kept.add(key);
        if (!this.charts.has(key)) this.charts.set(key, new Chart(spec, this.hub));
        const chart = this.charts.get(key);
        chart.spec.lines = spec.lines;
        chart.show(this.linesOf(found, spec));
        grid.append(chart.element);
      }
      const part = make("section");
      if (section.title) part.append(make("h2", "", section.title));
      part.append(grid);
      return part;
    });
    for (const [key, chart] of this.charts) {
      if (!kept.has(key)) {
        chart.remove();
        this.charts.delete(key);
      }
    }
    const shape = JSON.stringify(wanted.map((section) => [section.title, section.charts.map((spec) => spec.title)]));
    if (shape !== this.shape || !this.content.querySelector(".fc")) {
      this.shape = shape;
      this.content.replaceChildren(...places);
      if (found.length === 0 && this.runs.length) this.content.append(make("p", "fl-note", "Select a run to see its curves."));
    } else {
      // the same charts: keep their elements, so that nothing moves or loses the focus
      const grids = this.content.querySelectorAll(".ft-grid");
      places.forEach((part, k) => {
        const figures = [...part.querySelectorAll(".fc")];
        if (figures.length) grids[k].append(...figures);
      });
    }
  }

  linesOf(found, spec) {
    const lines = [];
    for (const { run, curves } of found) {
      spec.lines.forEach((line, k) => {
        const values = curves.values[line.name];
        if (!values) return;
        const scaled = (list) => list?.map((value) => (value === null ? null : value * line.scale));
        const y = scaled(values.mean);
        const several = found.length > 1;
        const label = several ? (spec.lines.length > 1 ? `${run.name} · ${line.label}` : run.name) : line.label;
        lines.push({
          label,
          color: several ? this.colorOf(run.id) : `--fl-s${k % COLORS}`,
          dash: several ? DASHES[k % DASHES.length] : [],
          x: curves.x[this.axis],
          y,
          low: scaled(values.min),
          high: scaled(values.max),
          smoothed: spec.smooth ? smooth(y, this.weight) : y,
        });
      });
    }
    return lines;
  }
}

// Keep the order of the known runs; new ones come first.
function inOrder(before, runs) {
  const places = new Map(before.map((run, k) => [run.id, k]));
  return [...runs].sort((a, b) => (places.get(a.id) ?? -1) - (places.get(b.id) ?? -1));
}

function mapValues(object, change) {
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, change(value)]));
}

customElements.define("fledge-training", TrainingPage);
