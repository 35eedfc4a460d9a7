// Key figures of runs, and the charts that several runs share.
import { duration, make, shortNumber, wholeNumber } from "./format.js";
import { swatch } from "./lines.js";
import { table } from "./tables.js";

// Merge the sections of all runs; charts of the same title are merged.
export function sectionsOf(found) {
  const sections = new Map();
  for (const { run } of found) {
    for (const section of run.sections) {
      if (!sections.has(section.title)) sections.set(section.title, new Map());
      const charts = sections.get(section.title);
      for (const chart of section.charts) {
        const known = charts.get(chart.title) ?? { ...chart, lines: [] };
        for (const line of chart.lines) {
          if (!known.lines.some((other) => other.name === line.name)) known.lines.push(line);
        }
        charts.set(chart.title, known);
      }
    }
  }
  return [...sections].map(([title, charts]) => ({ title, charts: [...charts.values()] }));
}

export function headlineOf(run) {
  const { name, value, share } = run.headline;
  if (value === null || value === undefined) return "";
  return `${name.replaceAll("_", " ")} ${share ? `${shortNumber(100 * value, 3)} %` : shortNumber(value, 4)}`;
}

// Key figures of one run, each with its meaning.
function figuresOf(run) {
  const { name, value, share } = run.headline;
  const known = (number, text) => (number === null || number === undefined ? "–" : text);
  const done = run.total_frames ? ` of ${shortNumber(run.total_frames, 3)}` : "";
  return [
    [known(value, share ? `${shortNumber(100 * value, 3)} %` : shortNumber(value, 4)), `${name.replaceAll("_", " ")}, last 20 iterations`],
    [known(run.frames, shortNumber(run.frames, 4) + done), "decisions"],
    [wholeNumber(run.frames_per_second), "decisions/s"],
    [duration(run.seconds), "of training"],
    [run.saves ? wholeNumber(run.saves) : "–", "checkpoints saved"],
    [known(run.saves ? run.stall_p99_ms : null, `${shortNumber(run.stall_p99_ms, 2)} ms`), "wait for a save (p99)"],
    [known(run.memory_mb, `${wholeNumber(run.memory_mb)} MB`), "memory"],
  ];
}

export function tilesOf(run) {
  const row = make("div", "ft-row");
  for (const [figure, meaning] of figuresOf(run)) {
    if (figure === "–") continue;
    const tile = make("div", "ft-tile");
    const [now, whole] = figure.split(" of "); // a tile has room for the first
    tile.append(make("b", "", now), make("span", "", whole ? `${meaning}, of ${whole}` : meaning));
    row.append(tile);
  }
  return row;
}

// Key figures of several runs, as a table.
export function compared(runs, colorOf) {
  const all = runs.map(figuresOf);
  const kept = all[0].map((_, k) => all.some((figures) => figures[k][0] !== "–")); // no column of dashes
  const same = runs.every((run) => run.headline.name === runs[0].headline.name);
  const heads = all[0].map(([, meaning], k) => (k === 0 && !same ? "primary metric, last 20 iterations" : meaning));
  const rows = runs.map((run, number) => {
    const line = make("tr");
    const name = make("th");
    name.scope = "row";
    const who = make("span", "fc-item");
    who.append(swatch({ color: colorOf(run.id) }), make("b", "", run.name));
    name.append(who);
    line.append(name, ...all[number].map(([figure], k) => labelled(figure, heads[k])).filter((_, k) => kept[k]));
    return line;
  });
  const around = table(["run", ...heads.filter((_, k) => kept[k])], rows);
  around.classList.add("fl-panel", "ft-compared");
  return around;
}

// A table cell with its column's name, which is shown before it on narrow screens.
function labelled(figure, name) {
  const cell = make("td", "ft-number", figure);
  cell.dataset.label = name;
  return cell;
}
