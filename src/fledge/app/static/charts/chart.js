// One chart: lines over a common axis, with a cursor that all charts of a page share.
//
//   const hub = new Hub();                       the page's cursor and range
//   const chart = new Chart(spec, hub);          spec: {title, unit, about, lines}
//   place.append(chart.element);
//   chart.show([{label, color, dash, x, y, low, high, smoothed}]);
//
// Drag selects a range for all charts, a double click shows everything again; arrow keys move the cursor.
import { make, shortNumber } from "./format.js";
import { drawLine, indexAt, lastOf, swatch } from "./lines.js";
import { rangeOf, ticks } from "./scale.js";

const PAD = { left: 52, right: 10, top: 8, bottom: 24 };

export class Chart {
  constructor(spec, hub) {
    this.spec = spec;
    this.hub = hub;
    this.series = [];
    this.visible = true;
    this.element = make("figure", "fc");
    const head = make("figcaption", "fc-head");
    const title = make("h3", "", spec.title);
    if (spec.unit) title.append(make("span", "fc-unit", spec.unit));
    title.title = spec.about;
    this.now = make("span", "fc-now");
    head.append(title, this.now);
    this.canvas = make("canvas", "fc-canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.tip = make("div", "fc-tip");
    this.tip.hidden = true;
    this.legend = make("div", "fc-legend");
    const body = make("div", "fc-body");
    body.append(this.canvas, this.tip);
    this.element.append(head, body, this.legend);
    hub.charts.add(this);
    this.listen();
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("pointermove", (event) => {
      if (this.drag !== undefined) this.drag[1] = event.offsetX;
      this.hub.point(this.valueAt(event.offsetX), this);
    });
    canvas.addEventListener("pointerleave", () => {
      if (this.drag === undefined) this.hub.point(null);
    });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return; // a finger scrolls the page
      canvas.setPointerCapture(event.pointerId);
      this.drag = [event.offsetX, event.offsetX];
    });
    canvas.addEventListener("pointerup", () => {
      const [from, to] = this.drag ?? [0, 0];
      this.drag = undefined;
      if (Math.abs(to - from) > 8) {
        this.hub.select([this.valueAt(Math.min(from, to)), this.valueAt(Math.max(from, to))]);
      } else this.later();
    });
    canvas.addEventListener("pointercancel", () => {
      this.drag = undefined;
    });
    canvas.addEventListener("dblclick", () => this.hub.select(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
    this.resized = new ResizeObserver(() => this.later());
    this.resized.observe(canvas);
    this.seen = new IntersectionObserver((entries) => {
      this.visible = entries[entries.length - 1].isIntersecting;
      if (this.visible) this.later();
    });
    this.seen.observe(canvas);
  }

  remove() {
    this.hub.charts.delete(this);
    this.resized.disconnect();
    this.seen.disconnect();
    this.element.remove();
  }

  key(event) {
    const [low, high] = this.hub.bounds;
    const step = { ArrowLeft: -0.01, ArrowRight: 0.01 }[event.key];
    if (event.key === "Escape") this.hub.select(null);
    if (step === undefined) return;
    event.preventDefault();
    const from = this.hub.cursor ?? high;
    this.hub.point(Math.min(Math.max(from + step * (high - low), low), high), this);
  }

  show(series) {
    this.series = series;
    const share = this.spec.unit === "%";
    const told = series.map((line) => `${line.label} ${this.value(lastOf(line.smoothed))}`);
    this.canvas.setAttribute("aria-label", `${this.spec.title}: ${told.join(", ")}`);
    this.figures = series.length === 1 ? [this.now] : series.map(() => make("b"));
    this.now.textContent = "";
    this.legend.replaceChildren();
    series.forEach((line, k) => {
      if (series.length === 1) return;
      const item = make("span", "fc-item");
      item.append(swatch(line), make("span", "fc-name", line.label), this.figures[k]);
      this.legend.append(item);
    });
    this.tell(null);
    this.share = share;
    this.later();
  }

  // Update the values in the legend: at the cursor, or the newest.
  tell(x) {
    this.series.forEach((line, k) => {
      const at = x === null ? null : indexAt(line, x);
      const value = x === null ? lastOf(line.smoothed) : at === null ? null : line.smoothed[at];
      this.figures[k].textContent = this.value(value);
    });
  }

  value(number) {
    if (number === null) return "–";
    if (this.spec.unit === "%") return `${shortNumber(Math.abs(number) < 0.005 ? 0 : number, 3)} %`;
    return shortNumber(number, 3);
  }

  later() {
    if (this.waiting || !this.visible) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  valueAt(pixel) {
    const [low, high] = this.hub.bounds;
    const width = this.canvas.clientWidth - PAD.left - PAD.right;
    return low + (Math.min(Math.max(pixel - PAD.left, 0), width) / Math.max(width, 1)) * (high - low);
  }

  // Return the lines' values within the shown range.
  within() {
    const [low, high] = this.hub.bounds;
    const values = [];
    for (const line of this.series) {
      for (let k = 0; k < line.x.length; k += 1) {
        if (line.x[k] < low || line.x[k] > high) continue;
        if (line.smoothed[k] !== null) values.push(line.smoothed[k]);
        if (line.y[k] !== null) values.push(line.y[k]);
      }
    }
    return values;
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (width === 0 || height === 0) return;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    const paint = this.canvas.getContext("2d");
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.clearRect(0, 0, width, height);
    const style = getComputedStyle(this.canvas);
    const colors = { line: style.getPropertyValue("--fl-line"), soft: style.getPropertyValue("--fl-soft") };
    paint.font = `11px ${style.fontFamily}`;
    const y = rangeOf(this.within(), this.share);
    if (y === null) {
      paint.fillStyle = colors.soft;
      paint.textAlign = "center";
      paint.fillText("nothing logged yet", width / 2, height / 2);
      this.tip.hidden = true;
      return;
    }
    const [low, high] = this.hub.bounds;
    const view = {
      x: (value) => PAD.left + ((value - low) / (high - low || 1)) * (width - PAD.left - PAD.right),
      y: (value) => height - PAD.bottom - ((value - y.low) / (y.high - y.low || 1)) * (height - PAD.top - PAD.bottom),
      width,
      height,
    };
    this.drawAxes(paint, view, y, colors);
    paint.save();
    paint.beginPath();
    paint.rect(PAD.left, PAD.top - 2, width - PAD.left - PAD.right, height - PAD.top - PAD.bottom + 4);
    paint.clip();
    for (const line of this.series) drawLine(paint, view, line, style);
    if (this.drag !== undefined) {
      paint.fillStyle = colors.soft;
      paint.globalAlpha = 0.2;
      paint.fillRect(this.drag[0], PAD.top, this.drag[1] - this.drag[0], height - PAD.top - PAD.bottom);
      paint.globalAlpha = 1;
    }
    paint.restore();
    this.drawCursor(paint, view, colors, style);
  }

  drawAxes(paint, view, y, colors) {
    const [low, high] = this.hub.bounds;
    paint.strokeStyle = colors.line;
    paint.fillStyle = colors.soft;
    paint.lineWidth = 1;
    paint.textAlign = "right";
    paint.textBaseline = "middle";
    for (const value of ticks(y.low, y.high, Math.max(2, Math.floor(view.height / 36)))) {
      const at = Math.round(view.y(value)) + 0.5;
      paint.beginPath();
      paint.moveTo(PAD.left, at);
      paint.lineTo(view.width - PAD.right, at);
      paint.stroke();
      paint.fillText(shortNumber(value, 4), PAD.left - 6, at);
    }
    paint.textBaseline = "top";
    paint.textAlign = "right";
    paint.fillText(this.hub.axis.label, view.width - PAD.right, view.height - PAD.bottom + 6);
    const end = view.width - PAD.right - paint.measureText(this.hub.axis.label).width - 8;
    paint.textAlign = "center";
    for (const value of ticks(low, high, Math.max(2, Math.floor(view.width / 75)))) {
      const at = view.x(value);
      if (at + paint.measureText(this.hub.axis.format(value)).width / 2 > end && value !== low) continue; // there its name stands
      paint.fillText(this.hub.axis.format(value), Math.max(at, PAD.left), view.height - PAD.bottom + 6);
    }
    if (y.cut) {
      paint.textAlign = "right";
      paint.fillText("outliers cut off", view.width - PAD.right, PAD.top);
    }
  }

  drawCursor(paint, view, colors, style) {
    const x = this.hub.cursor;
    const [low, high] = this.hub.bounds;
    const shown = x !== null && x >= low && x <= high;
    this.tip.hidden = !shown || this.hub.owner !== this;
    this.tell(shown ? x : null);
    if (!shown) return;
    const at = view.x(x);
    paint.strokeStyle = colors.soft;
    paint.beginPath();
    paint.moveTo(at, PAD.top);
    paint.lineTo(at, view.height - PAD.bottom);
    paint.stroke();
    const rows = [];
    for (const line of this.series) {
      const k = indexAt(line, x);
      if (k === null || line.smoothed[k] === null) continue;
      paint.fillStyle = style.getPropertyValue(line.color);
      paint.beginPath();
      paint.arc(view.x(line.x[k]), view.y(line.smoothed[k]), 3, 0, 2 * Math.PI);
      paint.fill();
      const row = make("div", "fc-row");
      row.append(swatch(line), make("span", "fc-name", line.label), make("b", "", this.value(line.smoothed[k])));
      if (line.smoothed !== line.y) row.append(make("span", "fc-raw", this.value(line.y[k])));
      rows.push(row);
    }
    const head = make("div", "fc-at", `${this.hub.axis.format(x)} ${this.hub.axis.label}`);
    this.tip.replaceChildren(head, ...rows);
    this.tip.classList.toggle("fc-left", at > view.width / 2);
  }
}
