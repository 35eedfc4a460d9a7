// Figures over time: a small curve for each, with its value at the time shown.
import { colour } from "./palette.js";
import { make, shownNumber } from "./build.js";

const POINTS = 400;

export class Figures {
  constructor(host, onSeek) {
    this.host = host;
    this.onSeek = onSeek;
    this.rows = [];
  }

  setPayload(payload) {
    this.payload = payload;
    this.version = -1;
    this.host.replaceChildren();
    this.rows = (payload ? payload.head.instruments : []).map((each, k) => this.makeRow(each, k));
    if (payload && !this.rows.length) this.host.append(make("p", { class: "fl-note" }, "This task records no figures."));
  }

  makeRow(each, k) {
    const value = make("span", { class: "fp-value" }, "–");
    const canvas = make("canvas", { class: "fp-curve", role: "img", "aria-label": `${each.name} over time` });
    const head = make("div", { class: "fp-figure-head" }, make("span", {}, each.name), value);
    const row = make("div", { class: "fp-figure" }, head, canvas);
    canvas.addEventListener("pointerdown", (event) => {
      const box = canvas.getBoundingClientRect();
      this.onSeek(this.payload.offset + ((event.clientX - box.left) / box.width) * this.payload.end);
    });
    this.host.append(row);
    return { name: each.values, unit: each.unit, value, canvas, place: k };
  }

  update(t) {
    if (!this.payload || !this.rows.length) return;
    const moment = this.payload.at(t - this.payload.offset);
    for (const row of this.rows) {
      const values = this.payload.array(row.name);
      row.counts ??= values.every((value) => Number.isInteger(value) || Number.isNaN(value));
      const text = `${shownFigure(row, values[Math.min(moment.frame, values.length - 1)])} ${row.unit}`.trim();
      if (row.value.textContent !== text) row.value.textContent = text;
      this.draw(row, values, t - this.payload.offset);
    }
  }

  draw(row, values, t) {
    const { canvas } = row;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width) return;
    if (canvas.width !== Math.round(width * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      row.path = null;
    }
    if (!row.path || row.version !== this.payload.version || row.width !== width) this.trace(row, values, width, height);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.strokeStyle = colour(`s${row.place % 8}`);
    pen.lineWidth = 1.4;
    pen.stroke(row.path);
    pen.fillStyle = colour("soft");
    pen.font = "10px system-ui, sans-serif";
    pen.strokeStyle = colour("panel");
    pen.lineWidth = 3;
    pen.lineJoin = "round";
    const note = (text, y, base) => {
      pen.textBaseline = base;
      pen.strokeText(text, 2, y);
      pen.fillText(text, 2, y);
    };
    if (row.known) note(shownFigure(row, row.high), 1, "top");
    if (row.known && row.low !== row.high) note(shownFigure(row, row.low), height - 1, "bottom");
    const x = this.payload.end > 0 ? Math.min(1, Math.max(0, t / this.payload.end)) * width : 0;
    pen.fillStyle = colour("accent");
    pen.fillRect(Math.min(width - 1.5, x), 0, 1.5, height);
  }

  trace(row, values, width, height) {
    const finite = values.filter(Number.isFinite);
    row.known = finite.length > 0;
    row.low = finite.length ? finite.reduce((a, b) => Math.min(a, b)) : 0;
    row.high = finite.length ? finite.reduce((a, b) => Math.max(a, b)) : 1;
    const span = row.high - row.low || 1;
    const floor = row.high > row.low ? row.low : row.low - 0.5; // a constant value is drawn in the middle
    const path = new Path2D();
    const end = this.payload.end || 1;
    const skip = Math.max(1, Math.floor(values.length / POINTS));
    let open = false;
    for (let k = 0; k < values.length; k += skip) {
      if (!Number.isFinite(values[k])) {
        open = false;
        continue;
      }
      const x = (this.payload.time[k] / end) * width;
      const y = height - 3 - ((values[k] - floor) / span) * (height - 6);
      if (open) path.lineTo(x, y);
      else path.moveTo(x, y);
      open = true;
    }
    [row.path, row.version, row.width] = [path, this.payload.version, width];
  }
}

// Counts have no decimals.
function shownFigure(row, value) {
  return row.counts && Number.isInteger(value) ? String(value) : shownNumber(value);
}
