// <fledge-sweeps>, the page of sweeps. It polls the server for the summary of one sweep and draws it as SVG.
import { duration, make, shortNumber } from "../charts/format.js";
import { table } from "../charts/tables.js";

const POLL_MS = 2000;
const STATES = { search: "running", confirm: "confirming with further seeds", finished: "finished", stopped: "stopped", new: "no trial yet" };
const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP] = [420, 190, 44, 24, 8];

function svg(tag, attributes = {}, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

// A scale from values to places; `log` for logarithmic ones.
function scale(low, high, from, to, log = false) {
  const at = (value) => (log ? Math.log(value) : value);
  const span = at(high) - at(low) || 1;
  return (value) => from + ((at(value) - at(low)) / span) * (to - from);
}

class SweepPage extends HTMLElement {
  connectedCallback() {
    if (this.timer !== undefined) return; // only moved within the page
    this.chosen = new URLSearchParams(location.search).get("id");
    this.turn();
  }

  disconnectedCallback() {
    clearTimeout(this.timer);
  }

  async ask(path) {
    const answer = await fetch(path);
    if (!answer.ok) throw new Error((await answer.json()).detail ?? answer.statusText);
    return answer.json();
  }

  async turn() {
    try {
      if (!document.hidden) await this.refresh();
    } catch (error) {
      this.querySelector(".ft-trouble")?.remove();
      this.prepend(make("div", "ft-trouble", `The server does not answer (${error.message}); trying again.`));
    }
    if (this.isConnected) this.timer = setTimeout(() => this.turn(), POLL_MS);
  }

  async refresh() {
    const { sweeps } = await this.ask("/api/sweeps");
    if (!sweeps.length) {
      this.replaceChildren(make("p", "fl-note", "No sweeps here. Start one with `fledge tune`; it appears here."));
      return;
    }
    const id = sweeps.some((each) => each.id === this.chosen) ? this.chosen : sweeps[0].id;
    const sweep = await this.ask(`/api/sweeps/${encodeURIComponent(id)}`);
    const told = JSON.stringify([sweeps, sweep]);
    if (told === this.told) return; // nothing moves while nothing changes
    this.told = told;
    this.show(sweeps, sweep);
  }

  show(sweeps, sweep) {
    const bar = make("div", "ft-bar");
    const choice = make("select", "fl-field");
    choice.setAttribute("aria-label", "Sweep");
    for (const each of sweeps) {
      const option = make("option", "", each.name);
      option.value = each.id;
      option.selected = each.id === sweep.id;
      choice.append(option);
    }
    choice.addEventListener("change", () => {
      this.chosen = choice.value;
      history.replaceState(history.state, "", `${location.pathname}?id=${encodeURIComponent(choice.value)}`);
      clearTimeout(this.timer);
      this.turn();
    });
    bar.append(choice, make("span", `ft-state ft-${sweep.state === "search" || sweep.state === "confirm" ? "running" : sweep.state}`, STATES[sweep.state] ?? sweep.state));
    const done = sweep.trials.filter((row) => row.state === "complete" && Number.isFinite(row.value));
    const grid = make("div", "fs-grid");
    if (done.length) grid.append(...this.charts(sweep, done));
    this.replaceChildren(bar, this.tiles(sweep, done), grid, ...this.confirmation(sweep), make("h2", "", "Trials"), this.trials(sweep));
    this.dataset.trials = sweep.trials.length; // for tests
  }

  tiles(sweep, done) {
    const row = make("div", "ft-row");
    const ended = sweep.trials.filter((each) => each.state !== "running").length;
    const best = sweep.trials.find((each) => each.number === sweep.best);
    const figures = [[`${ended} of ${sweep.jobs ?? "?"}`, "trials ended"]];
    if (best) figures.push([shortNumber(best.value), `best ${sweep.metric}, trial ${best.number}`]);
    if (sweep.confirmation?.[0]?.test) figures.push([shortNumber(sweep.confirmation[0].test[0]), `${sweep.metric} of the winner, test seed`]);
    for (const state of ["running", "pruned", "fail"]) {
      const count = sweep.trials.filter((each) => each.state === state).length;
      if (count) figures.push([String(count), state === "fail" ? "failed" : state]);
    }
    const minutes = done.map((each) => each.minutes ?? 0);
    if (minutes.length) figures.push([duration((60 * minutes.reduce((a, b) => a + b, 0)) / minutes.length), "of training in a trial"]);
    for (const [figure, meaning] of figures) {
      const tile = make("div", "ft-tile");
      tile.append(make("b", "", figure), make("span", "", meaning));
      row.append(tile);
    }
    return row;
  }

  charts(sweep, done) {
    const x = sweep.mode === "pbt" ? "generation" : "number";
    const shown = sweep.trials.filter((row) => ["complete", "pruned"].includes(row.state) && Number.isFinite(row.value));
    const charts = [this.scatter("History", sweep, shown, (row) => row[x], [0, Math.max(1, ...shown.map((row) => row[x]))], { best: true, label: sweep.mode === "pbt" ? "generation" : "trial" })];
    const shares = Object.entries(sweep.importance ?? {});
    if (shares.length) charts.push(this.bars("Importance (PED-ANOVA)", shares));
    if (sweep.pareto?.length) {
      const timed = done.filter((row) => Number.isFinite(row.minutes));
      charts.push(this.scatter("Metric against minutes", sweep, timed, (row) => row.minutes, [0, Math.max(...timed.map((row) => row.minutes))], { front: sweep.pareto, label: "minutes of training" }));
    }
    charts.push(this.parallel(sweep, done));
    for (const range of sweep.ranges) {
      const ends = range.choices.length ? [0, Math.max(1, range.choices.length - 1)] : [range.low, range.high];
      const at = (row) => (range.choices.length ? range.choices.indexOf(row.params[range.name]) : row.params[range.name]);
      charts.push(this.scatter(range.name, sweep, done, at, ends, { log: range.log, choices: range.choices }));
    }
    return charts;
  }

  figure(title, width, height, wide = false) {
    const around = make("figure", `fs-chart${wide ? " fs-wide" : ""}`);
    around.style.margin = "0";
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
    around.append(make("h3", "", title), picture);
    return [around, picture];
  }

  scatter(title, sweep, rows, at, [low, high], { log = false, best = false, front = [], choices = [], label = "" }) {
    const [around, picture] = this.figure(title, WIDTH, HEIGHT);
    const values = rows.map((row) => row.value);
    const [bottom, top] = [Math.min(...values), Math.max(...values)];
    const x = scale(low, high, LEFT + 8, WIDTH - 10, log);
    const y = scale(bottom, top === bottom ? bottom + 1 : top, HEIGHT - BOTTOM - 8, TOP + 4);
    picture.append(svg("path", { class: "fs-axis", d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH}` }));
    const ticks = choices.length ? choices.map((name, k) => [k, name]) : [[low, shortNumber(low)], [high, shortNumber(high)]];
    for (const [value, text] of ticks) {
      const anchor = choices.length > 2 || value !== high ? (value === low && choices.length < 3 ? "start" : "middle") : "end";
      picture.append(svg("text", { x: x(value), y: HEIGHT - 8, "text-anchor": anchor }, text));
    }
    for (const value of new Set([bottom, top])) picture.append(svg("text", { x: LEFT - 4, y: y(value) + 4, "text-anchor": "end" }, shortNumber(value)));
    if (label) picture.append(svg("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, label));
    const path = front.length ? front.map((number) => rows.find((row) => row.number === number)).filter(Boolean) : [];
    if (best) {
      let most = -Infinity;
      for (const row of [...rows].sort((a, b) => at(a) - at(b))) {
        if (row.state === "complete" && row.value > most) path.push(row);
        if (row.state === "complete") most = Math.max(most, row.value);
      }
    }
    const steps = path.map((row, k) => (k ? `H${x(at(row))}V${y(row.value)}` : `M${x(at(row))} ${y(row.value)}`)).join("");
    if (steps) picture.append(svg("path", { class: "fs-line", d: `${steps}${best ? `H${x(high)}` : ""}` }));
    for (const row of rows) {
      const kind = row.number === sweep.best ? " fs-best" : row.state === "pruned" ? " fs-pruned" : "";
      const point = svg("circle", { class: `fs-point${kind}`, cx: x(at(row)), cy: y(row.value), r: row.number === sweep.best ? 5 : 4 });
      picture.append(this.linked(point, sweep, row));
    }
    return around;
  }

  // Add a tooltip, and a link to the run of a trial.
  linked(shape, sweep, row) {
    const told = sweep.ranges.map((range) => `${range.name}=${typeof row.params[range.name] === "number" ? shortNumber(row.params[range.name]) : row.params[range.name]}`);
    shape.append(svg("title", {}, `trial ${row.number}: ${sweep.metric} ${shortNumber(row.value)}\n${told.join("\n")}`));
    if (row.id) shape.addEventListener("click", () => location.assign(`/?runs=${encodeURIComponent(row.id)}`));
    return shape;
  }

  bars(title, shares) {
    const height = TOP + 26 * shares.length + 8;
    const [around, picture] = this.figure(title, WIDTH, height);
    shares.forEach(([name, share], k) => {
      picture.append(svg("text", { x: 0, y: TOP + 26 * k + 14 }, name));
      picture.append(svg("rect", { class: "fs-bar", x: 150, y: TOP + 26 * k + 3, width: Math.max(1, 220 * share), height: 15, rx: 2 }));
      picture.append(svg("text", { x: 156 + 220 * share, y: TOP + 26 * k + 14 }, shortNumber(share, 2)));
    });
    return around;
  }

  parallel(sweep, done) {
    const [width, height] = [1180, 230];
    const [around, picture] = this.figure("Parallel coordinates", width, height, true);
    const values = done.map((row) => row.value);
    const [bottom, top] = [Math.min(...values), Math.max(...values)];
    const axes = sweep.ranges.map((range) => {
      const choices = range.choices;
      const ends = choices.length ? [0, Math.max(1, choices.length - 1)] : [range.low, range.high];
      const y = scale(...ends, height - 46, 16, range.log);
      const tick = (k) => (choices.length ? choices.at(k ? -1 : 0) : shortNumber(ends[k]));
      return { name: range.name, tick, y: (row) => y(choices.length ? choices.indexOf(row.params[range.name]) : row.params[range.name]) };
    });
    const last = scale(bottom, top === bottom ? bottom + 1 : top, height - 46, 16);
    axes.push({ name: sweep.metric, tick: (k) => shortNumber(k ? top : bottom), y: (row) => last(row.value) });
    const x = scale(0, axes.length - 1, 60, width - 70);
    for (const row of [...done].sort((a, b) => a.value - b.value)) {
      const share = top === bottom ? 1 : (row.value - bottom) / (top - bottom);
      const line = svg("polyline", { class: "fs-trial", points: axes.map((axis, k) => `${x(k)},${axis.y(row)}`).join(" ") });
      line.style.stroke = `color-mix(in srgb, var(--fl-good) ${Math.round(100 * share)}%, var(--fl-line))`;
      picture.append(this.linked(line, sweep, row));
    }
    axes.forEach((axis, k) => {
      picture.append(svg("path", { class: "fs-axis", d: `M${x(k)} 16V${height - 46}` }));
      for (const end of [0, 1]) picture.append(svg("text", { x: x(k) + 6, y: end ? 14 : height - 34 }, axis.tick(end)));
      picture.append(svg("text", { x: x(k), y: height - 12, "text-anchor": "middle" }, axis.name));
    });
    return around;
  }

  confirmation(sweep) {
    if (!sweep.confirmation?.length) return [];
    const span = (found) => (found ? `${shortNumber(found[0])}${found[1] === null ? "" : ` (${shortNumber(found[1])} to ${shortNumber(found[2])})`}` : "–");
    const rows = sweep.confirmation.map((row, k) => {
      const line = make("tr", k === 0 ? "fs-won" : "");
      const name = row.name === "preset" ? "preset" : `trial ${Number(row.name)}`;
      line.append(...[name, span(row.value), span(row.test), String(row.values.length)].map((text) => make("td", "", text)));
      return line;
    });
    return [make("h2", "", "Confirmed with further seeds (mean, 95 % interval)"), table(["configuration", "validation", "test", "seeds"], rows)];
  }

  trials(sweep) {
    const names = sweep.ranges?.map((range) => range.name) ?? [];
    const order = [...sweep.trials].sort((a, b) => (a.state !== "complete") - (b.state !== "complete") || (b.value ?? 0) - (a.value ?? 0));
    const rows = order.map((row) => {
      const line = make("tr", row.number === sweep.best ? "fs-won" : "");
      const link = make(row.id ? "a" : "span", "", String(row.number));
      if (row.id) link.href = `/?runs=${encodeURIComponent(row.id)}`;
      const first = make("td");
      first.append(link);
      const value = row.value ?? row.reports?.at(-1)?.[1];
      const cells = [shortNumber(value), row.minutes === null ? "" : shortNumber(row.minutes), ...names.map((name) => (typeof row.params[name] === "number" ? shortNumber(row.params[name], 4) : String(row.params[name] ?? "")))];
      line.append(first, ...cells.map((text) => make("td", "ft-number", text)), make("td", row.error ? "fs-error" : "", row.error ?? row.state));
      return line;
    });
    const around = table(["trial", sweep.metric ?? "", "minutes", ...names, "state"], rows);
    around.classList.add("fs-table");
    return around;
  }
}

customElements.define("fledge-sweeps", SweepPage);
